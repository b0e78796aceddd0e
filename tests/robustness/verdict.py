"""Holds what was written down of a whole run against promises 1 to 5. Reads the history alone, no server."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.robustness.checker import (
    Acknowledged,
    Batch,
    Cut,
    Digest,
    Event,
    Fault,
    Mark,
    Mirror,
    Step,
    Stored,
    check,
    in_order_of_commit,
    replay,
)
from tests.robustness.history import History, Line, Operation, Stream
from tests.robustness.keeping import Copy, apart, kept

WRITES = {"push": "stored", "status": "changed", "forget": "hidden", "erase": "erased"}


@dataclass
class End:
    """How a run ended: the server's digest and list of each bank, and the laptops' copies of theirs."""

    digests: dict[str, Digest]
    lists: dict[str, Copy]
    laptops: dict[tuple[str, str], Copy] = field(default_factory=dict)
    """(Name, bank) → its copy."""
    checked: frozenset[str] = frozenset()
    """Banks where a push is told what it repeats."""


def judge(history: History, end: End, extra: Mapping[str, Acknowledged] | None = None) -> list[Fault]:
    """Every fault of a run, its kind and where; `extra` are steps told outside of operations, by bank."""
    faults = [Fault("refused", _words(line)) for line in history.refused]
    told = {bank: (extra or {}).get(bank, Acknowledged()) for bank in end.digests}
    faults += _answers(history.operations, told)
    watched: dict[str, list[tuple[str, Mirror]]] = defaultdict(list)
    for stream in history.streams:
        events = events_of(stream)
        found = check(told[stream.bank], events, end.digests[stream.bank])
        mirror, _ = replay(events)
        found += in_order_of_commit(_stores(history.operations, stream.bank), mirror)
        faults += [Fault(each.kind, f"{stream.bank} by {stream.process}: {each.where}") for each in found]
        watched[stream.bank].append((stream.process, mirror))
    for bank, digest in end.digests.items():
        faults += _copies(bank, digest, watched[bank], end)
    return faults + kept(history.operations, end.lists, end.laptops, end.checked)


def events_of(stream: Stream) -> list[Event]:
    """A watcher's lines as the checker knows them."""
    events: list[Event] = []
    for line in stream.lines:
        match line["line"]:
            case "batch":
                steps = tuple(Step(seq, memory_id, deleted) for seq, memory_id, deleted in line["steps"])
                events.append(Batch(line["after"], line["through"], steps))
            case "bookmark":
                events.append(Mark(line["seq"]))
            case "cut":
                events.append(Cut())
    return events


def _words(line: Line) -> str:
    return f"{line['process']}: {line['what']} {line.get('bank', '')}: {line['code']} {line['words']}"


def _answers(operations: Iterable[Operation], told: Mapping[str, Acknowledged]) -> list[Fault]:
    """Sorts what was acknowledged by bank, and names answers that are not the one right one."""
    faults = []
    for each in operations:
        given: Mapping[str, str] = each.answer.get("answers", {})
        if each.expected:
            wrong = {memory_id: word for memory_id, word in given.items() if word != each.expected}
            # Words that were right for an id of the own bank must not differ for one of another.
            faults += [
                Fault(
                    "wrong answer",
                    f"{each.process} {each.bank}: {memory_id} is {word!r}, not {each.expected!r}",
                )
                for memory_id, word in wrong.items()
            ]
            continue
        if each.what not in WRITES or each.bank not in told:
            continue
        bank = told[each.bank]
        if each.end is None:
            bank.maybe += each.ids
            if each.what in ("forget", "erase"):
                bank.maybe_dead |= set(each.ids)
        elif each.what == "push":
            # After a lost answer the same push is `unchanged`: it was stored all the same.
            bank.stored += [memory_id for memory_id, word in given.items() if word in ("stored", "unchanged")]
            faults += [
                Fault("wrong answer", f"{each.process} {each.bank}: {memory_id}, pushed anew, is {word!r}")
                for memory_id, word in given.items()
                if word not in ("stored", "unchanged")  # each text is the only one of its kind
            ]
        else:
            getattr(bank, WRITES[each.what]).extend(each.ids)
    return faults


def _stores(operations: Sequence[Operation], bank: str) -> list[Stored]:
    """Acknowledged stores of memories that nothing else was asked of: the one step of each is its own."""
    touched = {memory_id for each in operations if each.what != "push" for memory_id in each.ids}
    return [
        Stored(memory_id, each.start, each.end)
        for each in operations
        if each.what == "push" and each.bank == bank and each.end is not None and not each.expected
        for memory_id, word in each.answer["answers"].items()
        if word in ("stored", "unchanged") and memory_id not in touched
    ]


def _copies(bank: str, digest: Digest, watched: Sequence[tuple[str, Mirror]], end: End) -> list[Fault]:
    """All that hold a copy of a bank hold the same: watchers, the server's own list, laptops."""
    faults = []
    listed = end.lists[bank]
    for process, mirror in watched:
        if mirror.live.keys() != listed.texts.keys():
            faults.append(
                Fault(
                    "copies differ",
                    f"{bank}: {process} against the list:"
                    f" {apart(mirror.live.keys() - listed.texts.keys(), listed.texts.keys() - mirror.live.keys())}",
                )
            )
    for (name, its_bank), copy in end.laptops.items():
        if its_bank != bank:
            continue
        if (copy.count, copy.sum) != (digest.count, digest.sum):
            faults.append(
                Fault(
                    "digest unequal",
                    f"{bank}: laptop {name} received {copy.count}, the server has {digest.count}",
                )
            )
        other = [each for each, text in copy.texts.items() if listed.texts.get(each, text) != text]
        if other:
            faults.append(Fault("text differs", f"{bank}: laptop {name}: {other[:5]}"))
    return faults
