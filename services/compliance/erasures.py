"""Rules of an erasure: its stages in order, and the runner that moves open ones on."""

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kit.audit import CallContext, calling
from kit.errors import from_driver
from services.compliance.receipts import Facts, Receipt, Terms, sign, statement

log = logging.getLogger("teamlore.compliance")
SELF = "service:compliance"
DONE = "server_done"
PASS_SECONDS = 0.2
LONGEST_WAIT = 5.0
CHUNK = 100
AT_ONCE = 32
"""Erasures whose vectors are purged beside each other."""


@dataclass(frozen=True)
class Stage:
    """The step out of one state: where it leads, and the participant whose part must be done before (or none)."""

    to_state: str
    participant: str = ""


STAGES: Mapping[str, Stage] = {
    "hidden": Stage("keys_destroyed", "sync"),
    "keys_destroyed": Stage("index_purged", "index"),
    "index_purged": Stage(DONE),
}


@dataclass(frozen=True)
class Open:
    """An erasure that is not done yet."""

    erasure_id: str
    bank: str
    state: str


@dataclass(frozen=True)
class Mirror:
    """A device's copy of the bank, and the seq through which it has purged what was erased."""

    device_id: str
    acked_seq: int
    retired_at: datetime | None = None


@dataclass(frozen=True)
class Erasure:
    """An erasure in one snapshot, taken at `read_at` by the database's clock; times of stages to come are None."""

    erasure_id: str
    bank: str
    state: str
    memory_ids: tuple[str, ...]
    requested_at: datetime
    hidden_at: datetime
    keys_destroyed_at: datetime | None
    index_purged_at: datetime | None
    server_done_at: datetime | None
    through_seq: int
    mirrors: tuple[Mirror, ...]
    receipt: Receipt | None
    read_at: datetime
    stopped: bool = False
    """Whether a hold keeps its keys from being destroyed."""
    keys_not_found: tuple[str, ...] = ()
    """Ids whose keys were given up by an operator."""

    @property
    def confirmed(self) -> tuple[str, ...]:
        """Devices that have purged all of it, sorted."""
        return tuple(sorted(m.device_id for m in self.mirrors if m.acked_seq >= self.through_seq))

    @property
    def unconfirmed(self) -> tuple[str, ...]:
        """Devices that have not said so yet, sorted; not those that were retired."""
        return tuple(sorted(m.device_id for m in self.mirrors if self._open(m) and m.retired_at is None))

    @property
    def retired(self) -> tuple[tuple[str, datetime], ...]:
        """Devices that were retired before they said so, sorted, each with when."""
        return tuple(sorted((m.device_id, m.retired_at) for m in self.mirrors if self._open(m) and m.retired_at))

    def _open(self, mirror: Mirror) -> bool:
        return mirror.acked_seq < self.through_seq


def facts_of(erasure: Erasure) -> Facts:
    """What a receipt says of an erasure whose participants are done; the servers are done as of the snapshot.

    Raises ValueError while a stage is still to come: nothing is signed that did not happen.
    """
    if (
        erasure.state != "index_purged"
        or erasure.keys_destroyed_at is None
        or erasure.index_purged_at is None
    ):
        raise ValueError("a receipt is signed only over an erasure whose participants are done")
    return Facts(
        erasure.erasure_id, erasure.bank, erasure.memory_ids, erasure.requested_at, erasure.hidden_at,
        erasure.keys_destroyed_at, erasure.index_purged_at, erasure.read_at, erasure.through_seq,
        erasure.confirmed, erasure.unconfirmed, erasure.keys_not_found, erasure.retired,
    )  # fmt: skip


def chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Ids in the portions that one call to a participant carries."""
    for start in range(0, len(ids), CHUNK):
        yield ids[start : start + CHUNK]


def wait_after(failures: int) -> float:
    """Seconds to wait after that many failures in a row (1 or more): doubles from one pass up to 5 s."""
    return min(LONGEST_WAIT, PASS_SECONDS * 2.0 ** min(failures - 1, 16))


class EraseObjects(Protocol):
    """One participant's part: destroys what it keeps of these memories; harmless when repeated."""

    async def __call__(self, erasure_id: str, bank: str, memory_ids: Sequence[str]) -> None:
        """Returns when nothing is left. Raises Refusal when that cannot be had now."""
        ...


class ErasureStore(Protocol):
    """What the runner needs of the store."""

    async def open_erasures(self) -> Sequence[Open]:
        """Erasures that are not done."""
        ...

    async def erasure(self, erasure_id: str) -> Erasure | None:
        """One erasure."""
        ...

    async def memory_ids(self, erasure_id: str) -> Sequence[str]:
        """The ids it erases."""
        ...

    async def begin(self, pending: Open) -> bool:
        """Passes the point of no return; false where that was passed. Raises BANK_HELD while a hold stops it."""
        ...

    async def advance(self, pending: Open, to_state: str) -> bool:
        """Moves it on from the state in `pending`; false where it has left that or is not ready to."""
        ...

    async def finish(self, pending: Open, done_at: datetime, receipt: Receipt) -> bool:
        """Keeps its receipt and ends it; false where that was done already."""
        ...


@dataclass(frozen=True)
class _Wait:
    failures: int
    due: float


class Runner:
    """Moves open erasures on, in the background, until each has its receipt.

    Replicas need no lock between them. Each step may be repeated: a participant finds nothing left to destroy, and
    leaving a state is one update that names the state it leaves, so that of two runners one moves the row and writes
    the audit row, and the other changes nothing. The same holds for a process that dies between any two steps.
    """

    def __init__(
        self,
        store: ErasureStore,
        participants: Mapping[str, EraseObjects],
        key: Ed25519PrivateKey,
        terms: Terms,
    ) -> None:
        self._store = store
        self._participants = participants
        self._key = key
        self._terms = terms
        self._waits: dict[str, _Wait] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to pass over the open erasures, five times a second."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Ends at once; what was under way is taken up again by the next runner."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self.pass_once()
            except Exception as error:
                _complain("open erasures cannot be read", error)
            await asyncio.sleep(PASS_SECONDS)

    async def pass_once(self) -> None:
        """Moves each open erasure that is due as far as it goes, for some seconds; those that came meanwhile have their keys
        destroyed by the next pass. Raises what the store raises when it cannot list."""
        pending = await self._store.open_erasures()
        ids = {item.erasure_id for item in pending}
        self._waits = {key: wait for key, wait in self._waits.items() if key in ids}
        # Who could not be reached is not asked again in this pass, so that it holds up others for one wait at most.
        down: set[str] = set()
        # Keys first: what is purged elsewhere may take a second each, and no text waits for that.
        moved = [
            await self._move(item, down, "keys_destroyed") if item.state == "hidden" else item for item in pending
        ]
        behind, gate = time.monotonic() + LONGEST_WAIT, asyncio.Semaphore(AT_ONCE)

        async def on(item: Open) -> None:
            async with gate:
                if time.monotonic() < behind:
                    await self._move(item, down, DONE)

        # At once, since the vector engine writes its files anew once for all who wait for it.
        await asyncio.gather(*map(on, moved))

    async def _move(self, item: Open, down: set[str], last: str) -> Open:
        """Moves an erasure that is due on, up to the state `last`; gives it as it is then."""
        while item.state != last:
            wait = self._waits.get(item.erasure_id)
            stage = STAGES[item.state]
            if stage.participant in down or (wait is not None and wait.due > time.monotonic()):
                return item
            try:
                moved = await self._step(item, stage)
            except Exception as error:
                if _complain(f"erasure {item.erasure_id} stays {item.state}", error) and stage.participant:
                    down.add(stage.participant)
                moved = False
            if not moved:
                self._put_off(item.erasure_id)
                return item
            self._waits.pop(item.erasure_id, None)
            item = Open(item.erasure_id, item.bank, stage.to_state)
        return item

    async def _step(self, item: Open, stage: Stage) -> bool:
        if item.state == "hidden":
            # Sync destroys no key before this is committed, and no hold can come between.
            with calling(CallContext("erasure.keys_begun", SELF, SELF)):
                await self._store.begin(item)
        participant = self._participants.get(stage.participant)
        if participant is not None:
            for ids in chunks(await self._store.memory_ids(item.erasure_id)):
                await participant(item.erasure_id, item.bank, ids)
        with calling(CallContext(f"erasure.{stage.to_state}", SELF, SELF)):
            if stage.to_state != DONE:
                return await self._store.advance(item, stage.to_state)
            erasure = await self._store.erasure(item.erasure_id)
            if erasure is None or erasure.state != item.state:
                return False
            receipt = sign(self._key, statement(facts_of(erasure), self._terms))
            return await self._store.finish(item, erasure.read_at, receipt)

    def _put_off(self, erasure_id: str) -> None:
        held = self._waits.get(erasure_id)
        failures = held.failures + 1 if held else 1
        self._waits[erasure_id] = _Wait(failures, time.monotonic() + wait_after(failures))


def _complain(what: str, error: Exception) -> bool:
    """Logs without the words of the error, which may quote what was sent; true where it will pass by itself."""
    refusal = from_driver(error)
    if refusal is None:
        log.error("%s: a defect", what, exc_info=error)
        return False
    # A hold is somebody's will and may last for years.
    log.log(
        logging.DEBUG if refusal.reason == "BANK_HELD" else logging.WARNING, "%s: %s", what, refusal.reason
    )
    return refusal.rule.http >= 503
