"""Patterns: what a grant reaches and what it never does."""

import fnmatch

from hypothesis import given
from hypothesis import strategies as st

from kit.access import Caller, Grant

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
