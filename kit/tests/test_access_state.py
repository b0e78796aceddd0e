"""The poll of the access state outlives whatever a dying server makes the driver raise."""

import asyncio
import json

import asyncpg
import pytest

from kit import access_state
from kit.access import Caller
from kit.access_state import AccessState
from kit.errors import Refusal


class Away:
    """Answers once, then fails once, then answers again."""

    def __init__(self, error: Exception) -> None:
        self.answers: list[object] = [{"deployment": "d"}, {"version": 1}, error]

    async def execute_raw(self, sql: str, *args: object) -> object:
        answer = self.answers.pop(0) if self.answers else {"version": 2}
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.InternalClientError("died"),
        asyncpg.CannotConnectNowError("x"),
        ConnectionResetError(),
        TimeoutError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_the_poll_goes_on(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_state, "POLL_SECONDS", 0.005)
    state = AccessState(Away(error))  # type: ignore[arg-type]  # only the poll is asked
    await state.start()
    for _ in range(200):
        if state._version == 2:
            break
        await asyncio.sleep(0.005)
    assert state._version == 2
    await state.stop()


class Moving:
    """Moves the access state while it is read, `moves` times; the token is revoked from the second move on."""

    def __init__(self, moves: int) -> None:
        self.moves, self.reads = moves, 0
        self.state = AccessState(self)  # type: ignore[arg-type]  # only what it reads is asked

    async def execute_raw(self, sql: str, *args: object) -> object:
        self.reads += 1
        token = {"kind": "agent", "personal": False, "session": False, "revoked": self.reads > 2, "grants": [], "origin": []}
        read = {"principal": "user:a", "groups": [], "suspended": False, "default_access": "deny", "token": token}
        if self.reads <= self.moves:
            self.state._version += 1
        return {"access": json.dumps({**read, "rules": [], "memberships": []})}


async def test_what_was_read_while_the_state_moved_is_not_kept() -> None:
    twice = Moving(2)
    twice.state._last_good = float("inf")
    with pytest.raises(Refusal, match="revoked"):
        await twice.state.of("t")
    assert twice.reads == 3
    always = Moving(1000)
    always.state._last_good = float("inf")
    with pytest.raises(Refusal, match="revoked"):
        await always.state.of("t")
    assert "t" not in always.state._callers and always.reads < 20


class Banks:
    """One bank that is there, of one owner; counts how often it is asked."""

    def __init__(self) -> None:
        self.reads = 0

    async def execute_raw(self, sql: str, bank: str) -> object:
        self.reads += 1
        return {"access": json.dumps({"owner": "user:owner" if bank == "project:there" else None, "client": None})}


async def test_a_refusal_costs_the_same_for_a_bank_that_is_there_and_for_one_that_is_not() -> None:
    asked = Banks()
    state = AccessState(asked)  # type: ignore[arg-type]  # only banks are asked

    async def cost(principal: str, bank: str) -> list[int]:
        caller, costs = Caller(principal, "agent", "t", default_access="owner_only"), []
        for _ in range(3):
            before = asked.reads
            given = caller.permissions_on(bank, await state.facts(caller, bank))
            assert bool(given) == (principal == "user:owner" and bank == "project:there")
            costs.append(asked.reads - before)
        return costs

    assert await cost("user:owner", "project:there") == [1, 0, 0]
    there, nowhere = await cost("user:mallory", "project:there"), await cost("user:mallory", "project:nowhere")
    assert there == nowhere == [1, 1, 1]
