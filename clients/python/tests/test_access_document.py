"""access.yaml: what is read, and that every slip is an error with its path and line."""

import pytest
from teamlore_client._document import DocumentInvalid, read_document

GOOD = """\
default_access: owner_only
groups:
  - group: team:api
    members: [user:alice, user:bob]
grants:
  - subject: team:api
    pattern: "project:*"
    permissions: [read, write]
  - {subject: user:bob, pattern: project:secret-1a2b3c4d, permissions: [read], effect: deny}
teams:
  - team_id: 6f1c0c5e-9c1c-4f0e-8f6b-0d9f6a3b1c2d
    name: API
    members:
      - {principal: user:alice, role: owner}
    clients:
      - client_id: acme
banks:
  - bank: space:handbook
    name: Handbook
    policy: {barrier: off, near_duplicate_threshold: 1, team_memory: true}
"""


def test_a_document_is_the_message_by_its_own_names() -> None:
    document = read_document(GOOD)
    message = document.message
    assert message.default_access == "owner_only"
    assert list(message.groups[0].members) == ["user:alice", "user:bob"]
    assert [each.effect for each in message.grants] == ["allow", "deny"]
    assert message.teams[0].members[0].status == "active"
    policy = message.banks[0].policy
    assert (policy.barrier, policy.near_duplicate_threshold, policy.team_memory) == ("off", 1.0, True)
    assert not policy.HasField("min_lane")
    assert document.line_of("grants[1].subject") == 9
    assert document.line_of("grants[0].effect") == 6
    assert document.line_of("nowhere") is None
    assert list(message.sections) == ["groups", "grants"]


def test_a_section_that_is_absent_is_told_from_an_empty_one() -> None:
    assert list(read_document("default_access: open\n").message.sections) == []
    assert list(read_document("grants: []\n").message.sections) == ["grants"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("- a\n", "access.yaml:1: must be a mapping"),
        ("groups: []\ngrant: []\n", "access.yaml:2: grant: is not known"),
        ("groups:\n  - grup: team:api\n", "access.yaml:2: groups[0].grup: is not known"),
        ("groups: []\ngroups: []\n", "access.yaml:2: groups: stands here twice"),
        ("groups: {}\n", "access.yaml:1: groups: must be a list"),
        ("grants:\n", "access.yaml:1: grants: must be a list"),
        ("sections: [groups]\n", "access.yaml:1: sections: is not known"),
        (
            "groups:\n  - group: team:api\n    members:\n      - 7\n",
            "access.yaml:4: groups[0].members[0]: must be a text",
        ),
        ("default_access: true\n", "default_access: must be a text"),
        ("default_access:\n", "default_access: must be a text"),
        ("teams:\n - archived: yes\n", "teams[0].archived: must be true or false"),
        ("teams:\n - members: [{team_id: x}]\n", "teams[0].members[0].team_id: is not known"),
        (
            "banks:\n - policy: {near_duplicate_threshold: '0.9'}\n",
            "near_duplicate_threshold: must be a number",
        ),
        ("banks:\n - policy: []\n", "banks[0].policy: must be a mapping"),
        ("grants:\n - pattern: *\n", "access.yaml:2"),
        ("grants:\n - pattern: *all\n", "access.yaml:2"),
        ("a: &a []\n", "access.yaml:1: has an anchor"),
        ("groups: !!python/object:os.system []\n", "groups: must be a list"),
        ("default_access: !!binary aGk=\n", "default_access: must be a text"),
        ("a: [\n", "access.yaml:2: is not YAML"),
        ("a: 1\n---\nb: 1\n", "is not YAML"),
        ("<<: {}\n", "is not known"),
        ("? [a]\n: b\n", "is not known"),
        ("default_access: \x07\n", "is not YAML"),
    ],
)
def test_every_slip_names_its_place(text: str, says: str) -> None:
    with pytest.raises(DocumentInvalid) as caught:
        read_document(text)
    assert says in str(caught.value)
