"""A stream is ordered, joined up, and its bookmarks are true: against random histories that grow while it reads."""

import asyncio
import random
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.feed import watching
from services.feed.cursors import Cursor
from services.feed.heads import Heads, Watch
from services.feed.store import Page
from services.feed.watching import follow


@given(st.lists(st.integers(0, 7), min_size=1, max_size=12), st.integers(1, 5), st.integers(0, 6))
def test_batches_join_up_and_bookmarks_hold(growth: list[int], limit: int, start: int) -> None:
    head = start
    grows = iter(growth)
    drained = False

    async def read(cursor: Cursor | None) -> Page:
        after = cursor or Cursor(1, 0, 0)
        through = min(head, after.seq + limit)
        return Page(
            bytes(range(after.seq + 1, through + 1)), after, Cursor(1, through, through), through < head
        )

    async def admitted() -> None:
        nonlocal head, drained
        more = next(grows, None)
        if more is None:
            drained = True
        else:
            head += more

    async def run() -> list[Page | Cursor]:
        watch = Watch()
        watch.bell.set()
        events = []
        async for event in follow(None, watch, read, admitted, lambda: drained):
            events.append(event)
            watch.bell.set()
        return events

    slow, watching.CHECK_SECONDS = watching.CHECK_SECONDS, 0.001
    try:
        events = asyncio.run(run())
    finally:
        watching.CHECK_SECONDS = slow
    reached = 0
    for event in events:
        if isinstance(event, Page):
            assert event.start.seq == reached
            assert list(event.changes) == list(range(reached + 1, event.end.seq + 1))
            reached = event.end.seq
        else:
            assert event.seq == reached
    assert isinstance(events[-1], Cursor) and reached == head


async def test_only_a_moved_head_rings() -> None:
    heads = {"a": 1, "b": 1}

    async def read(banks: object) -> dict[str, int]:
        return dict(heads)

    poll = Heads(read)
    with poll.watching("a") as a, poll.watching("b") as b:
        await poll.poll_once()
        a.bell.clear()
        b.bell.clear()
        heads["b"] = 2
        await poll.poll_once()
        assert (a.bell.is_set(), b.bell.is_set()) == (False, True)
        poll.hint("a")
        assert a.bell.is_set()


async def _many(growth: list[int], watchers: int, seed: int) -> tuple[int, int]:
    """Commits, hints of which some are lost, a poll, and watchers that read at any speed, in a random order.

    Every read is held against what had been rung for when it was asked for. Gives the reads made and asked for.
    """
    chance, head, rung, reads, asked, drained = random.Random(seed), 0, 0, 0, 0, False

    async def poll(banks: Sequence[str]) -> Mapping[str, int]:
        return {"bank": head}

    heads = Heads(poll)

    async def some_time() -> None:
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)

    async def from_database(cursor: Cursor | None) -> Page:
        nonlocal reads
        reads += 1
        after, through = cursor or Cursor(1, 0, 0), head
        await some_time()
        return Page(b"", after, Cursor(1, through, through), False)

    async def watcher() -> int:
        nonlocal asked
        reached = 0

        async def read(cursor: Cursor | None) -> Page:
            nonlocal asked
            asked += 1
            owed = rung
            page = await heads.shared("bank", cursor, lambda: from_database(cursor))
            assert page.end.seq >= owed, "a read from before the ring lacks what the ring is for"
            return page

        await some_time()
        with heads.watching("bank") as watch:
            async for event in follow(None, watch, read, some_time, lambda: drained):
                if isinstance(event, Page):
                    assert event.start.seq == reached
                    reached = event.end.seq
                else:
                    assert event.seq == reached
                await some_time()
        return reached

    following = [asyncio.create_task(watcher()) for _ in range(watchers)]
    for more in growth:
        await some_time()
        head += more
        await some_time()
        if chance.random() < 0.7:
            rung = head
            heads.hint("bank")
        if chance.random() < 0.3:
            await heads.poll_once()
    await heads.poll_once()
    for _ in range(40):
        await asyncio.sleep(0)
    drained = True
    heads.ring_all()
    assert set(await asyncio.gather(*following)) == {head}
    return reads, asked


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(1, 6), st.integers(0, 10**6))
def test_watchers_who_read_together_are_told_all_and_nothing_stale(
    growth: list[int], watchers: int, seed: int
) -> None:
    asyncio.run(_many(growth, watchers, seed))


async def test_watchers_at_one_place_read_once() -> None:
    reads, asked = await _many([1] * 30, 50, 7)
    assert asked > 500 and reads < asked / 4


async def test_who_goes_away_or_fails_takes_the_read_from_nobody() -> None:
    async def none(banks: Sequence[str]) -> Mapping[str, int]:
        return {}

    heads, gate, calls = Heads(none), asyncio.Event(), 0

    async def read() -> int:
        nonlocal calls
        mine = calls = calls + 1
        await gate.wait()
        if mine == 2:
            raise ValueError("broken")
        return mine

    with heads.watching("bank"):
        first, second, other = (
            asyncio.create_task(heads.shared("bank", place, read)) for place in (1, 1, 2)
        )
        await asyncio.sleep(0)
        first.cancel()
        gate.set()
        assert await second == 1
        with pytest.raises(ValueError, match="broken"):
            await other
        assert await heads.shared("bank", 2, read) == 3, "a failed read is not kept"
