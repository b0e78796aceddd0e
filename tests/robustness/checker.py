"""Judges a bank's history: what writers were told, what a watcher saw, and the server's digest at the end."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True)
class Step:
    """One change as a watcher saw it."""

    seq: int
    id: str
    deleted: bool = False


@dataclass(frozen=True)
class Batch:
    """What was sent of the range (after, through]."""

    after: int
    through: int
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Mark:
    """A bookmark."""

    seq: int


@dataclass(frozen=True)
class Cut:
    """The watcher cut its connection and went on from the last cursor it had applied; ranges join all the same."""


Event = Batch | Mark | Cut


@dataclass(frozen=True)
class Digest:
    """The server's digest once all writers had stopped."""

    seq: int
    count: int
    sum: int


@dataclass
class Acknowledged:
    """The steps that writers were told are committed: each took one number. An erased id may have been hidden first."""

    stored: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    """Whose standing was changed: one more step of a live memory."""
    hidden: list[str] = field(default_factory=list)
    erased: list[str] = field(default_factory=list)
    maybe: list[str] = field(default_factory=list)
    """Steps that were asked for and never answered, or need not have been taken: each may have taken a number."""
    maybe_dead: set[str] = field(default_factory=set)
    """Ids that such a step may have buried."""


class Fault(NamedTuple):
    """What is wrong: one of the words in KINDS, and where."""

    kind: str
    where: str


KINDS = (
    "out of order", "repeat", "outside its range", "ranges do not join", "bookmark early", "gap",
    "acknowledged write missing", "never written", "back from the dead", "not at the head", "digest unequal",
    "later before earlier",
)  # fmt: skip


def term(memory_id: str, seq: int) -> int:
    """What one live memory adds to the digest, as the contract has it; told apart from the server's own code."""
    return int.from_bytes(hashlib.sha256(f"{memory_id}\0{seq}".encode()).digest()[:8], "big")


@dataclass
class Mirror:
    """A watcher's copy, and how far its stream came."""

    live: dict[str, int] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    steps: dict[str, list[int]] = field(default_factory=dict)
    seqs: set[int] = field(default_factory=set)
    highest: int = 0
    reached: int = 0
    marked: int = 0


def check(acknowledged: Acknowledged, events: Sequence[Event], digest: Digest) -> list[Fault]:
    """Every fault of one bank's history; empty for a right one."""
    mirror, faults = replay(events)
    return faults + _against_writers(acknowledged, mirror) + _against_server(mirror, digest)


def replay(events: Sequence[Event]) -> tuple[Mirror, list[Fault]]:
    """Applies a stream as a laptop would; names what the stream itself does wrong."""
    mirror, faults = Mirror(), []
    for event in events:
        if isinstance(event, Batch):
            if event.after != mirror.reached or event.through < event.after:
                where = f"({event.after}, {event.through}] after {mirror.reached}"
                faults.append(Fault("ranges do not join", where))
            faults += [fault for step in event.steps for fault in _apply(mirror, event, step)]
            mirror.reached = max(mirror.reached, event.through)
        elif isinstance(event, Mark):
            if event.seq > mirror.reached:
                faults.append(Fault("bookmark early", f"at {event.seq}, but sent was up to {mirror.reached}"))
            mirror.marked = max(mirror.marked, event.seq)
    return mirror, faults


def _apply(mirror: Mirror, batch: Batch, step: Step) -> list[Fault]:
    where, faults = f"{step.seq} in ({batch.after}, {batch.through}]", []
    if step.seq in mirror.seqs:
        faults.append(Fault("repeat", where))
    elif step.seq < mirror.highest:
        faults.append(Fault("out of order", where))
    if step.seq <= mirror.marked:
        faults.append(Fault("bookmark early", f"{where} came after the bookmark at {mirror.marked}"))
    if not batch.after < step.seq <= batch.through:
        faults.append(Fault("outside its range", where))
    mirror.seqs.add(step.seq)
    mirror.highest = max(mirror.highest, step.seq)
    mirror.steps.setdefault(step.id, []).append(step.seq)
    if step.deleted:
        mirror.live.pop(step.id, None)
        mirror.gone.add(step.id)
    else:
        if step.id in mirror.gone:
            faults.append(Fault("back from the dead", f"{step.id} at {where}"))
        mirror.live[step.id] = step.seq
    return faults


def _against_writers(acknowledged: Acknowledged, mirror: Mirror) -> list[Fault]:
    """Each acknowledged step has a number of its own; a number not seen is a step that a later one superseded."""
    faults = []
    told = acknowledged
    written = Counter(told.stored + told.changed + told.hidden + told.erased)
    maybe = Counter(told.maybe)
    dead = set(told.hidden) | set(told.erased)
    superseded: list[int] = []
    perhaps: list[int] = []
    for memory_id, count in written.items():
        seen = mirror.steps.get(memory_id, [])
        lives = memory_id in mirror.live
        if not seen or (lives if memory_id in dead else not lives and memory_id not in told.maybe_dead):
            what = "its deletion" if lives else "it"
            faults.append(Fault("acknowledged write missing", f"{memory_id}: {what} never came"))
        else:
            superseded += [max(seen)] * max(0, count - len(set(seen)))
    for memory_id, seqs in mirror.steps.items():
        most = written[memory_id] + maybe[memory_id]
        if len(set(seqs)) > most:
            where = f"{memory_id}: {most} writes, {len(set(seqs))} steps"
            faults.append(Fault("never written", where))
        perhaps += [max(seqs)] * max(0, most - max(len(set(seqs)), written[memory_id]))
    # A number left out stands below the step that superseded it: from the top down, each needs one still to be had.
    superseded.sort()
    perhaps.sort()
    for hole in sorted(set(range(1, mirror.reached + 1)) - mirror.seqs, reverse=True):
        if superseded and superseded[-1] > hole:
            superseded.pop()
        elif perhaps and perhaps[-1] > hole:
            perhaps.pop()
        else:
            faults.append(Fault("gap", f"{hole} was passed over and nothing superseded it"))
    if superseded:
        faults.append(
            Fault("acknowledged write missing", f"{len(superseded)} superseded steps have no number")
        )
    return faults


def _against_server(mirror: Mirror, digest: Digest) -> list[Fault]:
    if mirror.reached != digest.seq or mirror.marked != digest.seq:
        where = f"sent up to {mirror.reached}, bookmark at {mirror.marked}, head {digest.seq}"
        return [Fault("not at the head", where)]
    total = sum(term(memory_id, seq) for memory_id, seq in mirror.live.items()) % 2**64
    if (len(mirror.live), total) != (digest.count, digest.sum):
        where = (
            f"{len(mirror.live)} live, the server says {digest.count}; sums differ by {total - digest.sum}"
        )
        return [Fault("digest unequal", where)]
    return []


@dataclass(frozen=True)
class Stored:
    """An acknowledged store: when it was asked for and when it was told, on one clock."""

    id: str
    start: float
    end: float


def in_order_of_commit(stored: Sequence[Stored], mirror: Mirror) -> list[Fault]:
    """What was told before another was even asked for has the lower number, as far as both were seen."""
    numbered = [
        (each, mirror.live[each.id])
        for each in stored
        if mirror.steps.get(each.id) == [mirror.live.get(each.id)]
    ]
    told = sorted(numbered, key=lambda pair: pair[0].end)
    faults, highest, at = [], 0, 0
    for each, seq in sorted(numbered, key=lambda pair: pair[0].start):
        while at < len(told) and told[at][0].end < each.start:
            highest = max(highest, told[at][1])
            at += 1
        if seq < highest:
            where = f"{each.id} has {seq}, but {highest} was told before it was asked for"
            faults.append(Fault("later before earlier", where))
    return faults
