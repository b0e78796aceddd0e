"""A stream is ordered, joined up, and its bookmarks are true: against random histories that grow while it reads."""

import asyncio
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from services.feed import watching
from services.feed.cursors import Cursor
from services.feed.heads import Heads, Watch
from services.feed.store import Page, Step
from services.feed.watching import Batch, Mark, follow

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@given(st.lists(st.integers(0, 7), min_size=1, max_size=12), st.integers(1, 5), st.integers(0, 6))
def test_batches_join_up_and_bookmarks_hold(growth: list[int], limit: int, start: int) -> None:
    head = start
    grows = iter(growth)
    drained = False

    async def read(cursor: Cursor) -> Page:
        through = min(head, cursor.seq + limit)
        steps = tuple(Step(seq, f"id{seq}", NOW, None) for seq in range(cursor.seq + 1, through + 1))
        return Page(steps, through, through, through < head)

    async def admitted() -> None:
        nonlocal head, drained
        more = next(grows, None)
        if more is None:
            drained = True
        else:
            head += more

    async def run() -> list[Batch | Mark]:
        watch = Watch()
        watch.bell.set()
        events = []
        async for event in follow(Cursor(1, 0, 0), watch, read, admitted, lambda: drained):
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
        if isinstance(event, Batch):
            assert event.after == reached
            assert [step.seq for step in event.page.steps] == list(range(reached + 1, event.page.through + 1))
            reached = event.page.through
        else:
            assert event.cursor.seq == reached
    assert isinstance(events[-1], Mark) and reached == head


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
