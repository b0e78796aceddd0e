"""The poll of the access state outlives whatever a dying server makes the driver raise."""

import asyncio

import asyncpg
import pytest

from kit import identity
from kit.identity import AccessState


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
    monkeypatch.setattr(identity, "POLL_SECONDS", 0.005)
    state = AccessState(Away(error))  # type: ignore[arg-type]  # only the poll is asked
    await state.start()
    for _ in range(200):
        if state._version == 2:
            break
        await asyncio.sleep(0.005)
    assert state._version == 2
    await state.stop()
