"""What the rules of a proto refuse is named by its field; what holds too much is refused before it is looked through."""

from typing import Any

import protovalidate
import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from teamlore.auth.v1 import access_pb2, auth_pb2
from teamlore.compliance.v1 import compliance_pb2
from teamlore.feed.v1 import feed_pb2
from teamlore.index.v1 import index_pb2
from teamlore.sync.v1 import sync_pb2

from kit import validation
from kit.errors import Refusal

MANY = 20_000


def test_a_rule_over_a_whole_message_is_a_refusal_too() -> None:
    for wrong in (
        auth_pb2.StartSessionRequest(),
        auth_pb2.StartSessionRequest(id_token="a", person_token="b"),
    ):
        with pytest.raises(Refusal, match="request: ") as found:
            validation.check(wrong)
        assert found.value.reason == "FIELD_INVALID"
        assert [violation.field for violation in found.value.violations] == [""]
    validation.check(auth_pb2.StartSessionRequest(person_token="b"))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """Every message that protovalidate is given: it looks at each item, however many there are."""
    given, collect = list[Message](), protovalidate.collect_violations

    def counting(message: Message, **more: Any) -> Any:
        given.append(message)
        return collect(message, **more)

    monkeypatch.setattr(protovalidate, "collect_violations", counting)
    return given


def token(**more: Any) -> access_pb2.CreateTokenRequest:
    return access_pb2.CreateTokenRequest(principal="user:a", kind="agent", **more)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (sync_pb2.ForgetRequest(bank="project:a", memory_ids=["a"] * MANY), "memory_ids"),
        (sync_pb2.ForgetRequest(bank="p" * MANY, memory_ids=["a"]), "bank"),
        (sync_pb2.ForgetRequest(bank="project:a", memory_ids=["aaaaaaaa", "a" * MANY]), "memory_ids[1]"),
        (sync_pb2.Record(id="aaaaaaaa", text="x", tags=[""] * MANY), "tags"),
        (sync_pb2.Record(id="aaaaaaaa", text="x" * 50_001), "text"),
        (token(grants=[access_pb2.Grant(pattern="*", permissions=["read"] * MANY)]), "grants[0].permissions"),
        (token(grants=[access_pb2.Grant()] * MANY), "grants"),
        (token(note="n" * 201), "note"),
        (
            access_pb2.ApplyAccessRequest(document={"groups": [{"members": ["a"] * MANY}]}),
            "document.groups[0].members",
        ),
        (sync_pb2.PushRequest(bank="project:a", records=[sync_pb2.Record()] * 101), "records"),
    ],
)
def test_what_holds_too_much_never_gets_to_protovalidate(
    wrong: Message, field: str, seen: list[Message]
) -> None:
    assert [violation.field for violation in validation.violations_of(wrong)] == [field]
    assert seen == []


def test_what_is_measured_is_no_more_than_is_allowed() -> None:
    request = token(grants=[access_pb2.Grant(pattern="*", permissions=["read"] * 5)] * 50)
    assert validation._Measure(request).items == 50 + 50 * 5
    request.grants[0].permissions.extend(["read"] * MANY)
    assert validation._Measure(request).items == 50
    spoiled = sync_pb2.PushRequest(bank="project:a", records=[sync_pb2.Record(tags=[""] * MANY)] * 100)
    assert validation._Measure(spoiled).items == 100, "each record is measured when it is judged alone"


def test_a_large_message_is_told_its_first_fault_alone() -> None:
    for count, told in ((validation.SEVERAL, validation.SEVERAL), (validation.SEVERAL + 1, 1)):
        request = access_pb2.PutGroupRequest(group="team:a", members=[f"!{n}" for n in range(count)])
        assert len(validation.violations_of(request)) == told


def test_one_field_is_judged_without_the_rest(seen: list[Message]) -> None:
    good = sync_pb2.ForgetRequest(bank="project:a", memory_ids=["a"] * MANY)
    assert validation.violations_at(good, "bank") == []
    assert seen == [sync_pb2.ForgetRequest(bank="project:a")]
    bad = sync_pb2.ForgetRequest(bank="no bank", memory_ids=["a"] * MANY)
    assert [violation.field for violation in validation.violations_at(bad, "bank")] == ["bank"]


def test_a_nested_and_a_repeated_field_are_judged_too(seen: list[Message]) -> None:
    grants = [access_pb2.Grant(pattern=pattern, permissions=["no word"]) for pattern in ("*", "no pattern")]
    request = access_pb2.CreateTokenRequest(grants=grants, groups=["team:a"] * MANY)
    found = validation.violations_at(request, "grants.pattern")
    assert [violation.field for violation in found] == ["grants[1].pattern"]
    assert [v.field for v in validation.violations_at(request, "groups")] == ["groups"]
    items = sync_pb2.ForgetRequest(memory_ids=["aaaaaaaa", "?"])
    assert [v.field for v in validation.violations_at(items, "memory_ids")] == ["memory_ids[1]"]
    absent = access_pb2.PutGrantRequest()
    assert [v.field for v in validation.violations_at(absent, "grant.pattern")] == ["grant"]
    seen.clear()
    many = token(grants=[access_pb2.Grant(pattern="*")] * MANY)
    assert [v.field for v in validation.violations_at(many, "grants.pattern")] == ["grants"] and seen == []


def test_every_list_and_every_string_of_a_request_has_a_limit() -> None:
    def unlimited(message: Descriptor) -> list[str]:
        if message.full_name == validation._VALUE or message in done:
            return []
        done.append(message)
        found = []
        for limits in map(validation._limits, message.fields):
            field = limits.field
            at = f"{message.full_name}.{field.name}"
            if field.is_repeated and limits.items == validation.UNSAID:
                found.append(at)
            if field.type == field.TYPE_STRING and limits.text is None:
                found.append(at)
            if limits.is_map and limits.key is None:
                found.append(at)
            if field.message_type is not None and not limits.is_map:
                found += unlimited(field.message_type)
        return found

    done = list[Descriptor]()
    for file in (access_pb2, auth_pb2, compliance_pb2, feed_pb2, index_pb2, sync_pb2):
        for service in file.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                assert unlimited(method.input_type) == []
    assert len(done) > 40


def test_a_request_of_too_many_bytes_names_what_takes_the_most() -> None:
    grants = [access_pb2.AccessGrant(subject="user:a", pattern="project:" + "x" * 240) for _ in range(20)]
    teams = [access_pb2.Team(name="t" * 200, members=[access_pb2.Membership(principal="u" * 200)] * 5)] * 4000
    apply = access_pb2.ApplyAccessRequest(document=access_pb2.AccessDocument(grants=grants, teams=teams))
    assert apply.ByteSize() > validation.LARGEST
    erase = compliance_pb2.EraseMemoriesRequest(bank="b" * 5_000_000, memory_ids=["m" * 64] * 100)
    for request, field in ((apply, "document"), (erase, "bank")):
        with pytest.raises(Refusal) as caught:
            validation.check_size(request, request.ByteSize())
        assert caught.value.reason == "FIELD_INVALID" and [v.field for v in caught.value.violations] == [field]
    validation.check_size(erase, validation.LARGEST)
    unknown = compliance_pb2.EraseMemoriesRequest.FromString(b"\xfa\x7f\x04abcd")
    with pytest.raises(Refusal):
        validation.check_size(unknown, validation.LARGEST + 1)
