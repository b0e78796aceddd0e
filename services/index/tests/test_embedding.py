"""The model is shared fairly: nobody waits for a big push, nothing is embedded for nobody, and no queue is endless."""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from teamlore_embedder import open_embedder

from kit.errors import Refusal
from services.index.embedding import (
    MOST_WAITING,
    NICENESS,
    PIECE_CHARACTERS,
    PIECE_TEXTS,
    TURN_SECONDS,
    Embedding,
    Urgency,
    _Load,
    _say_once,
)
from services.index.following import Vector

LONG = "The retry budget of the checkout service is five attempts. " * 700


class Model:
    """Runs a piece only when told to, and writes down which texts it ran."""

    model, revision, dimension, in_caller = "stand-in", "0" * 64, 3, False

    def __init__(self) -> None:
        self.runs: list[list[str]] = []
        self.called = 0
        self.go = threading.Semaphore(0)
        self.failing = ""

    def embed(self, texts: Sequence[str]) -> Vector:
        self.called += 1
        self.go.acquire(timeout=10)
        self.runs.append(list(texts))
        if self.failing in texts:
            raise ValueError("a text that this model cannot read")
        return np.array([[len(text), 0, 0] for text in texts], dtype=np.float32)

    def seen_whole(self, texts: Sequence[str]) -> list[bool]:
        return [not text.startswith("cut") for text in texts]


@pytest.fixture
async def model() -> Model:
    return Model()


@pytest.fixture
async def embedding(model: Model) -> AsyncIterator[Embedding]:
    opened = Embedding(model)
    yield opened
    opened.close()
    model.go.release(1000)


async def begun(embedding: Embedding, texts: Sequence[str], urgency: Urgency) -> asyncio.Task[list[object]]:
    """A call that waits for the model."""
    task: asyncio.Task[list[object]] = asyncio.ensure_future(embedding.embed(texts, urgency))
    await asyncio.sleep(0.01)
    return task


async def test_each_text_gets_its_own_vector_in_the_order_asked(embedding: Embedding, model: Model) -> None:
    model.go.release(100)
    texts = ["x" * (7 * number % 50 + 1) for number in range(50)] + ["cut  off", "blank \n\ns"]
    seen = await embedding.embed(texts, Urgency.CHECK)
    assert [one.vector[0] for one in seen] == [len(" ".join(text.split())) for text in texts]
    assert [one.whole for one in seen] == [True] * 50 + [False, True]
    assert await embedding.embed([], Urgency.CHECK) == []


async def test_the_more_urgent_goes_first_and_equals_take_turns(embedding: Embedding, model: Model) -> None:
    tasks = [await begun(embedding, [f"follow{n}" for n in range(16)], Urgency.FOLLOW)]
    tasks.append(await begun(embedding, [f"big{n}" for n in range(24)], Urgency.CHECK))
    tasks.append(await begun(embedding, ["small"], Urgency.CHECK))
    tasks.append(await begun(embedding, ["query"], Urgency.QUERY))
    model.go.release(100)
    await asyncio.gather(*tasks)
    firsts = [run[0].rstrip("0123456789") for run in model.runs]
    # One piece of the follower ran already when the others came.
    assert firsts == ["follow", "query", "big", "small", "big", "big", "follow"]


async def test_a_piece_is_small_in_texts_and_in_letters(embedding: Embedding, model: Model) -> None:
    model.go.release(1000)
    await embedding.embed(["short"] * 20 + ["y" * 39_000] * 5, Urgency.CHECK)
    assert max(map(len, model.runs)) == PIECE_TEXTS
    assert all(len(run) <= 2 for run in model.runs if len(run[-1]) > PIECE_CHARACTERS)


async def test_what_nobody_waits_for_any_more_is_not_embedded(embedding: Embedding, model: Model) -> None:
    running = await begun(embedding, [f"abandoned{n}" for n in range(100)], Urgency.CHECK)
    waiting = await begun(embedding, ["abandoned too"], Urgency.CHECK)
    other = await begun(embedding, ["other"], Urgency.CHECK)
    for task in (running, waiting):
        task.cancel()
    await asyncio.gather(running, waiting, return_exceptions=True)
    model.go.release(1000)
    await other
    assert len(model.runs) == 2 and model.runs[1] == ["other"]
    # What was dropped does not count as waiting either.
    await embedding.embed(["z"] * MOST_WAITING[Urgency.CHECK], Urgency.CHECK)


async def test_more_than_can_be_worked_off_is_refused_and_says_when_to_come_back(
    embedding: Embedding, model: Model
) -> None:
    first = await begun(embedding, ["x"] * MOST_WAITING[Urgency.CHECK], Urgency.CHECK)
    with pytest.raises(Refusal) as caught:
        await embedding.embed(["y"] * 100, Urgency.CHECK)
    assert caught.value.reason == "RATE_LIMITED" and caught.value.retry_after
    query = await begun(embedding, ["query"], Urgency.QUERY)
    model.go.release(1000)
    assert len(await query) == 1 and len(await first) == MOST_WAITING[Urgency.CHECK]


async def test_a_text_that_fails_fails_its_own_call_alone(embedding: Embedding, model: Model) -> None:
    model.failing = "bad"
    bad = await begun(embedding, ["bad", *["also"] * 20], Urgency.CHECK)
    good = await begun(embedding, ["good"], Urgency.CHECK)
    model.go.release(1000)
    with pytest.raises(ValueError, match="cannot read"):
        await bad
    assert len(await good) == 1 and len(model.runs) == 2


async def test_a_query_is_answered_while_a_hundred_long_texts_are_worked_off() -> None:
    """With the packaged model: the query ends when a piece or two have run, not when the push has."""
    embedding = Embedding(open_embedder("", 1), 2)
    push = await begun(embedding, [f"{LONG[:39_000]} {number}" for number in range(100)], Urgency.CHECK)
    try:
        for _ in range(3):
            await embedding.embed(["which retry budget does checkout have"], Urgency.QUERY)
        assert not push.done()
        assert len(embedding._lanes[0].queues[Urgency.CHECK][0].left) > 80
    finally:
        push.cancel()
        embedding.close()


async def test_while_pushes_are_checked_the_follower_gets_a_piece_a_turn_and_then_the_rest(
    embedding: Embedding, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.index.embedding.TURN_SECONDS", 1000.0)
    monkeypatch.setattr("services.index.embedding.QUIET_SECONDS", 0.01)
    model.go.release(1000)
    pieces = [f"text {number:02}" for number in range(3 * PIECE_TEXTS)]
    with embedding.checking():
        followed = await begun(embedding, pieces, Urgency.FOLLOW)
        await embedding.embed(["a check"], Urgency.CHECK)
        await embedding.embed(["a query"], Urgency.QUERY)
        await asyncio.sleep(0.05)
        assert model.runs == [pieces[:PIECE_TEXTS], ["a check"], ["a query"]]
        monkeypatch.setattr("services.index.embedding.TURN_SECONDS", 0.01)
        async with asyncio.timeout(20):
            while len(model.runs) == 3:
                await asyncio.sleep(0.01)
        monkeypatch.setattr("services.index.embedding.TURN_SECONDS", 1000.0)
        assert not followed.done()
    assert len(await asyncio.wait_for(followed, 20)) == len(pieces)


class Beside(Model):
    """Computes in the thread that calls; writes down at which priority, and stays in a text that says so."""

    in_caller = True

    def __init__(self) -> None:
        super().__init__()
        self.niceness: dict[str, int] = {}
        self.staying, self.stayed = threading.Event(), threading.Semaphore(0)

    def embed(self, texts: Sequence[str]) -> Vector:
        self.niceness[texts[0]] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        if texts[0].startswith("stay"):
            self.stayed.release()
            assert self.staying.wait(10)
        self.go.release()
        return super().embed(texts)


@pytest.fixture
async def beside() -> AsyncIterator[Beside]:
    model = Beside()
    yield model
    model.staying.set()


async def test_who_waits_for_an_answer_never_waits_for_a_piece_of_the_follower(beside: Beside) -> None:
    embedding = Embedding(beside)
    followed = await begun(embedding, ["stay"], Urgency.FOLLOW)
    assert await asyncio.to_thread(beside.stayed.acquire, timeout=10)
    async with asyncio.timeout(10):
        assert len(await embedding.embed(["a check"], Urgency.CHECK)) == 1
        assert len(await embedding.embed(["a query"], Urgency.QUERY)) == 1
    assert not followed.done()
    beside.staying.set()
    assert len(await followed) == 1
    embedding.close()


async def test_so_many_pieces_run_at_once_and_no_more(beside: Beside) -> None:
    embedding = Embedding(beside, 2)
    staying = [await begun(embedding, [f"stay{n}"], Urgency.CHECK) for n in range(3)]
    for _ in range(2):
        assert await asyncio.to_thread(beside.stayed.acquire, timeout=10)
    assert not await asyncio.to_thread(beside.stayed.acquire, timeout=0.05)
    beside.staying.set()
    await asyncio.gather(*staying)
    embedding.close()


async def test_a_model_with_threads_of_its_own_is_called_once_at_a_time(model: Model) -> None:
    embedding = Embedding(model, 2)
    tasks = [await begun(embedding, [f"text{n}"], urgency) for n, urgency in enumerate(Urgency)]
    await asyncio.sleep(0.05)
    assert model.called == 1
    model.go.release(10)
    await asyncio.gather(*tasks)
    embedding.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have no priority of their own")
async def test_the_follower_embeds_at_a_lower_priority_than_all_others(beside: Beside) -> None:
    embedding = Embedding(beside, 2)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    for urgency in (Urgency.FOLLOW, Urgency.CHECK, Urgency.QUERY, Urgency.FOLLOW):
        await embedding.embed([urgency.name], urgency)
    lower = min(19, own + NICENESS)
    assert beside.niceness == {"FOLLOW": lower, "CHECK": own, "QUERY": own}
    assert os.getpriority(os.PRIO_PROCESS, 0) == own
    embedding.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is not asked for")
async def test_where_a_lower_priority_is_refused_the_follower_embeds_all_the_same_and_it_is_said_once(
    beside: Beside, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "setpriority", refuse)
    _say_once.cache_clear()
    embedding = Embedding(beside, 2)
    with caplog.at_level(logging.WARNING, "teamlore.index"):
        stay = await begun(embedding, ["stay"], Urgency.FOLLOW)
        assert len(await embedding.embed(["goes on"], Urgency.FOLLOW)) == 1
        beside.staying.set()
        await stay
    assert [record.message for record in caplog.records] == [
        "the follower embeds at full priority: Operation not permitted"
    ]
    embedding.close()


class Played:
    """A load whose clock is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.load = _Load(lambda: self.now)

    def pieces(self, seconds: float, check: float, between: float) -> int:
        """How many pieces the follower has in so many seconds of checks that long, with such breaks."""
        count, until = 0, self.now + seconds
        while self.now < until:
            with self.load.checking():
                count += self._passed(check)
            count += self._passed(between)
        return count

    def _passed(self, seconds: float) -> int:
        count = 0
        for _ in range(round(seconds / 0.01)):
            if not self.load.pause():
                self.load.take_turn()
                count += 1
            self.now += 0.01
        return count


def test_the_follower_has_a_piece_a_turn_while_pushes_are_checked_much_and_nearly_all_time_while_little() -> (
    None
):
    assert Played().pieces(10, check=0.1, between=0.0) == round(10 / TURN_SECONDS)
    assert Played().pieces(10, check=0.02, between=0.02) == round(10 / TURN_SECONDS)
    assert Played().pieces(10, check=0.01, between=0.05) > 5 * 10 / TURN_SECONDS
    quiet = Played()
    assert quiet.pieces(0.9, check=0.1, between=0.0) == 1
    assert quiet.pieces(1, check=0.0, between=1.0) > 90


@given(st.lists(st.tuples(st.sampled_from(["begin", "end", "wait", "turn"]), st.floats(0, 0.7)), max_size=60))
def test_whatever_is_checked_the_follower_never_waits_longer_than_a_turn(
    steps: list[tuple[str, float]],
) -> None:
    played, open_checks, turn = Played(), [], -float("inf")
    for what, seconds in steps:
        if what == "begin":
            open_checks.append(played.load.checking())
            open_checks[-1].__enter__()
        elif what == "end" and open_checks:
            open_checks.pop().__exit__(None, None, None)
        elif what == "turn" and not played.load.pause():
            played.load.take_turn()
            turn = played.now
        played.now += seconds
        assert played.load.pause() >= 0
        assert played.now + played.load.pause() <= max(played.now, turn + TURN_SECONDS) + 1e-9
