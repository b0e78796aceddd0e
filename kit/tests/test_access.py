"""Patterns: what a grant reaches and what it never does."""

import fnmatch
import re
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kit.access import Caller, Grant, Membership
from kit.access_state import caller_of

WORD = st.text("abcx-:*", min_size=1, max_size=8)
ALL = frozenset(("read", "write", "forget", "comply", "admin"))


def caller(*patterns: str) -> Caller:
    return Caller("user:alice", "agent", "t", tuple(Grant(p, ALL) for p in patterns))


def test_a_pattern_covers_its_own_and_not_its_neighbour() -> None:
    assert caller("project:*").may("write", "project:api-1a2b3c")
    assert not caller("project:*").may("write", "projectx")
    assert not caller("project:*").may("write", "Project:api")


@given(st.lists(WORD, max_size=4), WORD)
def test_no_pattern_reaches_a_private_bank(patterns: list[str], name: str) -> None:
    held = caller("*", "private:*", *patterns).permissions_on(f"private:{name}")
    assert held == frozenset()
    assert caller().permissions_on("private:user:alice") == {"read", "write", "forget"}


@given(WORD, WORD, WORD)
def test_who_covers_a_pattern_may_administer_all_that_it_reaches(pattern: str, other: str, bank: str) -> None:
    if (
        caller(pattern).covers(other)
        and fnmatch.fnmatchcase(bank, other)
        and not bank.startswith(("private:", "system:"))
    ):
        assert caller(pattern).may("admin", bank)


def test_system_banks_are_read_by_all_and_written_by_admins() -> None:
    assert caller().permissions_on("system:guide") == {"read"}
    reader = Caller("user:x", "agent", "t", (Grant("*", frozenset(("read", "write"))),))
    assert not reader.may("write", "system:guide")
    assert caller("*").may("write", "system:guide")


NAMES = ("user:ann", "user:ab", "agent:ann")
SUBJECTS = st.sampled_from((*NAMES, "user:*", "user:a[!n]", "*", "team:a", "team:b", "team:*"))
PATTERNS = st.sampled_from(
    ("*", "project:*", "project:a*", "project:a?", "project:[ab]b", "p*", "projectx", "private:*")
)
TARGETS = (
    "project:a",
    "project:ab",
    "project:bb",
    "projectx",
    "space:a",
    "private:user:ann",
    "private:user:bob",
    "Project:a",
)
WORDS = st.lists(st.sampled_from(sorted(ALL)), min_size=1, max_size=5, unique=True)
RULES = st.lists(
    st.tuples(SUBJECTS, PATTERNS, st.sampled_from(("allow", "deny")), WORDS, st.booleans()), max_size=8
)


def matches(pattern: str, text: str) -> bool:
    """Signs of the shell, once more and another way."""
    signs = {"*": ".*", "?": ".", "[!n]": "[^n]", "[ab]": "[ab]"}
    parts = re.findall(r"\[!?\w+\]|.", pattern)
    return re.fullmatch("".join(signs.get(part, re.escape(part)) for part in parts), text) is not None


def reference(who: str, groups: set[str], own: Any, rules: Any, personal: bool, bank: str) -> set[str]:
    """The rule in ten lines: the union of what is allowed, less every deny; a personal key only narrows."""
    narrowed = personal and bool(own)
    if bank.startswith("private:"):
        return {"read", "write", "forget"} if bank == "private:" + who and not narrowed else set()
    held: dict[str, set[str]] = {"allow": set(), "deny": set()}
    for subject, pattern, effect, words, revoked in rules:
        if (subject in groups or matches(subject, who)) and matches(pattern, bank) and not revoked:
            held[effect] |= set(words)
    token = {word for pattern, words in own if matches(pattern, bank) for word in words}
    allowed = held["allow"] & token if narrowed else held["allow"] if personal else held["allow"] | token
    return allowed - held["deny"]


@settings(max_examples=500)
@given(
    st.sampled_from(NAMES),
    st.sets(st.sampled_from(("team:a", "team:b"))),
    st.lists(st.tuples(PATTERNS, WORDS), max_size=3, unique_by=lambda grant: grant[0]),
    RULES,
    st.booleans(),
)
def test_what_is_held_is_what_the_reference_says(
    who: str, groups: set[str], own: Any, rules: Any, personal: bool
) -> None:
    token = {
        "kind": "agent",
        "personal": personal,
        "session": False,
        "revoked": False,
        "expires_at": None,
        "grants": own,
        "origin": [],
    }
    read = {
        "principal": who, "groups": sorted(groups), "suspended": False, "default_access": "deny", "token": token,
        "rules": rules, "memberships": [],
    }  # fmt: skip
    found, refused = caller_of(read, "t")
    assert not refused
    for bank in TARGETS:
        held = reference(who, groups, own, rules, personal, bank)
        assert found.permissions_on(bank) == held, bank
        given_, taken = found.given(bank), found.taken(bank)
        assert {word for word in given_ if given_[word] and not taken[word]} == held


def test_project_star_never_covers_projectx() -> None:
    allow, deny = (
        caller("project:*"),
        Caller("user:a", "agent", "t", (Grant("*", ALL),), (Grant("project:*", ALL),)),
    )
    assert not allow.permissions_on("projectx") and allow.permissions_on("project:x") == ALL
    assert deny.permissions_on("projectx") == ALL and not deny.permissions_on("project:x")
    assert not allow.covers("projectx") and not allow.covers("project*") and not allow.covers("*")


TEAM, OTHER = "00000000-0000-0000-0000-000000000007", "00000000-0000-0000-0000-000000000008"
CLIENTS = (f"client:{TEAM}:acme", f"client:{TEAM}:*", f"client:{TEAM}:a?me")


def test_a_stopped_member_gives_out_no_client_of_its_team() -> None:
    admin = replace(caller("*", f"client:{TEAM}:*"), memberships={TEAM: Membership("owner", True)})
    stopped = replace(admin, memberships={TEAM: Membership("owner", False)})
    for pattern in CLIENTS:
        assert admin.covers(pattern) and not stopped.covers(pattern)
    for pattern in ("client:*", "clien[t]:*", f"?lient:{TEAM}:acme", "*:acme", "client*"):
        assert admin.covers(pattern) and not stopped.covers(pattern)
    for pattern in (f"client:{OTHER}:acme", "project:*", "*"):
        assert admin.covers(pattern) and stopped.covers(pattern)


def test_the_selected_team_binds_what_may_be_given_out() -> None:
    selected = replace(caller("*"), team=OTHER)
    for pattern in (*CLIENTS, "client:*", "clien[t]:*", f"client:{OTHER[:-1]}?:acme"):
        assert caller("*").covers(pattern) and not selected.covers(pattern)
    for pattern in (f"client:{OTHER}:acme", f"client:{OTHER}:*", "project:*", "*"):
        assert selected.covers(pattern)
