"""Writers and watchers as processes of their own: `python -m tests.robustness.work writer|watcher PLAN NAME`.

A killed watcher is started again and goes on from the last line it wrote down, as a laptop does from its file.
"""

import asyncio
import contextlib
import json
import random
import sys
import time
import uuid
from collections.abc import AsyncIterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import grpc
from teamlore.feed.v1 import feed_pb2, feed_pb2_grpc
from teamlore.sync.v1 import sync_pb2, sync_pb2_grpc

from services.sync.pushing import FORGOTTEN, TAKEN
from tests.robustness.calls import (
    RETRYABLE,
    Metadata,
    code_of,
    next_standing,
    own_connection,
    until_done,
)
from tests.robustness.history import Recorder, lines_of

LONGEST_BATCH, LONGEST_FORGET, CLIENTS = 20, 3, 4
KEPT = 400
"""Ids that a client remembers to work on; older ones are left in peace."""


@dataclass(frozen=True)
class Plan:
    """What the processes of a run are told."""

    folder: str
    seed: int
    addresses: dict[str, str]
    """Of each service, through a proxy that cuts connections where there is one."""
    banks: list[str]
    """Where writers write."""
    watched: list[str]
    """What watchers follow."""
    pause: float
    """Longest rest of a client between two calls, in seconds."""
    tokens: dict[str, str]
    """By client: `writer0.0`, `watcher0`, `alice`."""
    foreign: dict[str, str]
    """Id → text of memories in a bank that no writer may read."""
    shared: dict[str, str]
    """Where laptops work: bank → `off` or `on`, whether it tells repetitions."""

    def write(self) -> Path:
        """Keeps the plan beside the histories."""
        path = Path(self.folder) / "plan.json"
        path.write_text(json.dumps(asdict(self)))
        return path

    @classmethod
    def read(cls, path: str) -> "Plan":
        """What `write` kept."""
        return cls(**json.loads(Path(path).read_text()))

    def metadata(self, client: str) -> Metadata:
        """The credential of a client."""
        return (("authorization", f"Bearer {self.tokens[client]}"),)

    def stopped(self) -> bool:
        """Whether no more is to be written."""
        return (Path(self.folder) / "stop").exists()

    def heads(self) -> dict[str, int]:
        """Where watchers may end: the last head of each bank, empty while writers work."""
        path = Path(self.folder) / "heads.json"
        return json.loads(path.read_text()) if path.exists() else {}


@dataclass
class Mine:
    """What a client has stored in one bank and may work on: id → text, and id → version of those that stand."""

    visible: dict[str, str] = field(default_factory=dict)
    version: dict[str, int] = field(default_factory=dict)
    hidden: dict[str, str] = field(default_factory=dict)
    erased: dict[str, str] = field(default_factory=dict)


class Writer:
    """One client: pushes to any bank, and changes, hides and erases what it stored itself, so that each step is its own."""

    def __init__(self, plan: Plan, recorder: Recorder, name: str) -> None:
        self.plan, self.recorder, self.name = plan, recorder, name
        self.metadata = plan.metadata(name)
        self.random = random.Random(f"{plan.seed}-{name}")
        self.mine = {bank: Mine() for bank in plan.banks}

    async def work(self) -> None:
        """Until the plan says stop."""
        while not self.plan.stopped():
            # Now and then on a new connection, as clients come and go.
            async with own_connection(self.plan.addresses["sync"]) as channel:
                stub: Any = sync_pb2_grpc.SyncServiceStub(channel)
                for _ in range(50):
                    if self.plan.stopped():
                        return
                    await self.step(stub)
                    await asyncio.sleep(self.random.uniform(0, self.plan.pause))

    async def step(self, stub: Any) -> None:
        """One call, chosen at random."""
        bank = self.random.choice(self.plan.banks)
        mine, chance = self.mine[bank], self.random.random()
        if chance < 0.2 and mine.visible:
            await self.forget(stub, bank, mine)
        elif chance < 0.28 and mine.visible:
            await self.status(stub, bank, mine)
        elif chance < 0.36:
            await self.again(stub, bank, mine)
        else:
            await self.push(stub, bank, mine)

    async def call(
        self, what: str, bank: str, ids: list[str], call: Any, request: object, expected: str = ""
    ) -> Any:
        """Makes a call until it is answered, and writes both down; None where it was not."""
        number = self.recorder.begin(what, bank, ids, expected)
        wrong: list[str] = []
        answer = await until_done(call, request, self.metadata, wrong)
        for words in wrong:
            code, _, rest = words.partition(": ")
            self.recorder.write("refused", what=what, bank=bank, code=code, words=rest)
        if answer is not None:
            results = {each.id: each.status for each in getattr(answer, "results", ())}
            if expected:
                results = {
                    each.id: f"{each.status}: {each.reason}{each.duplicate_of}" for each in answer.results
                }
            self.recorder.end(number, answers=results)
        return answer

    async def push(self, stub: Any, bank: str, mine: Mine) -> None:
        texts = {
            uuid.UUID(int=self.random.getrandbits(128)).hex[:20]: f"{uuid.uuid4()} {uuid.uuid4()}"
            for _ in range(self.random.randint(1, LONGEST_BATCH))
        }
        answer = await self.call("push", bank, list(texts), stub.Push, _push(bank, texts))
        if answer is not None:
            for each in answer.results:
                if each.status in ("stored", "unchanged"):
                    mine.visible[each.id] = texts[each.id]
                    mine.version[each.id] = 1
        while len(mine.visible) > KEPT:
            mine.visible.pop(next(iter(mine.visible)))

    async def again(self, stub: Any, bank: str, mine: Mine) -> None:
        """What has one right answer: the same, another text, what is forgotten, and an id of a bank one may not read."""
        choices = [(mine.visible, False, "unchanged: "), (mine.visible, True, f"rejected: {TAKEN}")]
        choices += [(gone, False, f"rejected: {FORGOTTEN}") for gone in (mine.hidden, mine.erased)]
        choices += [(self.plan.foreign, other, f"rejected: {TAKEN}") for other in (False, True)]
        known, other, expected = self.random.choice([each for each in choices if each[0]])
        memory_id = self.random.choice(list(known))
        text = f"{uuid.uuid4()}" if other else known[memory_id]
        await self.call("push", bank, [memory_id], stub.Push, _push(bank, {memory_id: text}), expected)

    async def forget(self, stub: Any, bank: str, mine: Mine) -> None:
        # Each has its vectors' files written anew, about one a second.
        erase = self.random.random() < 0.15
        candidates = {**mine.visible, **mine.hidden} if erase else mine.visible
        ids = self.random.sample(
            list(candidates), min(len(candidates), self.random.randint(1, LONGEST_FORGET))
        )
        request = sync_pb2.ForgetRequest(bank=bank, memory_ids=ids, erase=erase)
        answer = await self.call("erase" if erase else "forget", bank, ids, stub.Forget, request)
        for memory_id in ids:
            text = mine.visible.pop(memory_id, "") or mine.hidden.pop(memory_id, "")
            if answer is not None:
                (mine.erased if erase else mine.hidden)[memory_id] = text

    async def status(self, stub: Any, bank: str, mine: Mine) -> None:
        memory_id = self.random.choice(list(mine.visible))
        version = mine.version[memory_id]
        request = sync_pb2.UpdateStatusRequest(
            bank=bank, id=memory_id, version=version, may_be_stale=version % 2 == 1
        )
        if (await self.call("status", bank, [memory_id], next_standing(stub, version), request)) is None:
            mine.visible.pop(memory_id)
        else:
            mine.version[memory_id] = version + 1


def _push(bank: str, texts: dict[str, str]) -> sync_pb2.PushRequest:
    return sync_pb2.PushRequest(
        bank=bank, records=[sync_pb2.Record(id=i, text=text) for i, text in texts.items()]
    )


class Watcher:
    """Follows every bank; cuts its connection now and then and goes on from the last cursor it wrote down."""

    def __init__(self, plan: Plan, recorder: Recorder, name: str, kept: dict[str, str]) -> None:
        self.plan, self.recorder = plan, recorder
        self.metadata = plan.metadata(name)
        self.random = random.Random(f"{plan.seed}-{name}-{time.monotonic()}")
        self.cursors = kept

    async def follow(self, bank: str) -> None:
        """Until a bookmark at the last head."""
        if bank in self.cursors:
            self.recorder.write("cut", bank=bank)
        while True:
            # In the end it stays, so that a slow machine only takes longer.
            stay = None if self.plan.heads() else self.random.uniform(0.5, 8)
            try:
                async with asyncio.timeout(stay), own_connection(self.plan.addresses["feed"]) as channel:
                    request = feed_pb2.WatchChangesRequest(bank=bank, cursor=self.cursors.get(bank, ""))
                    call = feed_pb2_grpc.FeedServiceStub(channel).WatchChanges(
                        request, metadata=self.metadata
                    )
                    if await self.listen(bank, call):
                        return
            except TimeoutError:
                pass
            except grpc.aio.AioRpcError as error:
                if error.code() not in RETRYABLE:
                    self.recorder.write(
                        "refused", what="watch", bank=bank, code=code_of(error), words=error.details() or ""
                    )
                    return
                await asyncio.sleep(0.1)
            self.recorder.write("cut", bank=bank)

    async def listen(self, bank: str, call: AsyncIterable[feed_pb2.WatchChangesResponse]) -> bool:
        """Writes down what comes; true at a bookmark at the last head."""
        async for message in call:
            if message.HasField("bookmark"):
                mark = message.bookmark
                self.recorder.write("bookmark", bank=bank, seq=mark.seq, cursor=mark.cursor)
                self.cursors[bank] = mark.cursor
                if mark.seq >= self.plan.heads().get(bank, sys.maxsize):
                    return True
            else:
                batch = message.batch
                steps = [(each.seq, each.id, each.deleted) for each in batch.changes]
                facts = {"after": batch.after_seq, "through": batch.through_seq, "steps": steps}
                self.recorder.write("batch", bank=bank, cursor=batch.next_cursor, **facts)
                self.cursors[bank] = batch.next_cursor
        return False


def kept_cursors(path: Path) -> dict[str, str]:
    """The last cursor of each bank that a watcher wrote down."""
    return {line["bank"]: line["cursor"] for line in lines_of(path) if "cursor" in line}


async def _main(role: str, plan: Plan, name: str) -> None:
    path = Path(plan.folder) / f"{name}.jsonl"
    recorder = Recorder(path, name)
    if role == "writer":
        await asyncio.gather(*(Writer(plan, recorder, f"{name}.{n}").work() for n in range(CLIENTS)))
    else:
        watcher = Watcher(plan, recorder, name, kept_cursors(path))
        await asyncio.gather(*(watcher.follow(bank) for bank in plan.watched))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main(sys.argv[1], Plan.read(sys.argv[2]), sys.argv[3]))
