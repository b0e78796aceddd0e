"""A stream is ordered, joined up, and its bookmarks are true: against random histories that grow while it reads."""

import asyncio

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
