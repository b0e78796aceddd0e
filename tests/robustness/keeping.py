"""Whether laptops kept what was saved on them, were told no wrong `duplicate`, and show how memories stand in the end.

Reads what was written down and what lay there once all had stopped; asks no server.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.robustness.checker import Fault
from tests.robustness.history import Operation

KINDS = (
    "own memory lost", "wrong duplicate", "back from the dead", "status differs", "status lost", "copies differ",
)  # fmt: skip


@dataclass(frozen=True)
class Copy:
    """What a laptop, or the server when asked for all, holds of a bank in the end."""

    seq: int
    """Up to where it was read; 0 where that is not known."""
    count: int
    sum: int
    texts: Mapping[str, str]
    """Live id → text."""
    standing: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """Id → version and status."""
    own: frozenset[str] = frozenset()
    """Of a laptop: what was saved on it."""
    ledger: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Of a laptop: id → the server's last answer, with what it duplicates or why it was refused."""


class Bank:
    """What the laptops of one bank did to it, and what they and the server hold of it."""

    def __init__(
        self,
        name: str,
        operations: Iterable[Operation],
        listed: Copy,
        copies: Mapping[str, Copy],
        checked: bool,
    ):
        self.name, self.listed, self.copies, self.checked = name, listed, copies, checked
        self.operations = [each for each in operations if each.bank == name]
        self.told = [
            each for each in self.operations if each.what in ("sync", "join") and each.end is not None
        ]
        """What laptops were told in the middle."""
        self.saved = {str(each.answer["id"]): each for each in self._done("add")}
        self.asked = {i for each in self.operations if each.what == "laptop erase" for i in each.ids}
        """Whose erasure was asked for, whether or not that was answered."""
        self.gone = {i for each in self.operations if each.what == "store lost" for i in each.ids}
        """What lay on a lost disk alone."""
        self.words = {i: words(each.text) for i, each in self.saved.items()}
        for copy in (listed, *copies.values()):
            self.words |= {i: words(text) for i, text in copy.texts.items()}

    def _done(self, what: str) -> Iterator[Operation]:
        return (each for each in self.operations if each.what == what and each.end is not None)

    def faults(self) -> list[Fault]:
        """All that is wrong, each with the bank's name."""
        found = [*self._lost(), *self._wrong_duplicates(), *self._back(), *self._differs(), *self._standing()]
        return [Fault(kind, f"{self.name}: {where}") for kind, where in found]

    def _lost(self) -> Iterator[tuple[str, str]]:
        """What a command said was saved, and nobody forgot, is in its laptop's store, and with the team by its words."""
        for memory_id, add in self.saved.items():
            copy = self.copies[add.process]
            answer, detail = copy.ledger.get(memory_id, ("never pushed", ""))
            if memory_id in self.asked | self.gone or self._told_gone(add.process, memory_id, detail):
                continue
            if copy.texts.get(memory_id) != add.text:
                yield (
                    "own memory lost",
                    f"{memory_id} is not in the store of {add.process}, where it was saved",
                )
            if self.listed.texts.get(memory_id) == add.text:
                continue
            if answer == "duplicate" and words(self.listed.texts.get(detail, "")) == words(add.text):
                continue
            yield (
                "own memory lost",
                f"{memory_id} of {add.process} is not on the server: {answer} {detail}".rstrip(),
            )

    def _told_gone(self, laptop: str, memory_id: str, detail: str) -> bool:
        """Whether the team held another memory in its place, and that one was to be erased."""
        return detail in self.asked or any(
            each.answer.get("duplicates", {}).get(memory_id) in self.asked
            for each in self.told
            if each.process == laptop
        )

    def _wrong_duplicates(self) -> Iterator[tuple[str, str]]:
        told = {
            (laptop, memory_id, detail)
            for laptop, copy in self.copies.items()
            for memory_id, (answer, detail) in copy.ledger.items()
            if answer == "duplicate"
        }
        told |= {
            (each.process, memory_id, detail)
            for each in self.told
            for memory_id, detail in each.answer.get("duplicates", {}).items()
        }
        for laptop, memory_id, detail in sorted(told):
            why = ""
            if not self.checked:
                why = "where nothing is checked"
            elif detail == memory_id:
                why = "itself"
            elif detail not in self.words:
                why = "which was never a memory of the bank"
            elif self.words[detail] != self.words.get(memory_id):
                why = "which says something else"
            if why:
                yield "wrong duplicate", f"{memory_id} of {laptop} is a duplicate of {detail}, {why}"

    def _back(self) -> Iterator[tuple[str, str]]:
        """What was erased for the team is nowhere, nor is what the team held it in the place of."""
        for erase in self._done("laptop erase"):
            if not erase.answer.get("erasure_id"):
                continue
            held = {laptop: copy.texts.keys() & set(erase.ids) for laptop, copy in self.copies.items()}
            held["the server"] = self.listed.texts.keys() & self._in_place_of(erase)
            for where, ids in held.items():
                if ids:
                    yield (
                        "back from the dead",
                        f"{sorted(ids)} erased by {erase.process}, in the end on {where}",
                    )

    def _in_place_of(self, erase: Operation) -> set[str]:
        return set(erase.ids) | {
            memory_id
            for each in self.told
            if (each.end or 0) < erase.start
            for memory_id, detail in each.answer.get("duplicates", {}).items()
            if detail in erase.ids
        }

    def _differs(self) -> Iterator[tuple[str, str]]:
        """A laptop has what the server lists, but for words that it has of its own, where repetitions are told."""
        for laptop, copy in self.copies.items():
            missing, more = (
                self.listed.texts.keys() - copy.texts.keys(),
                copy.texts.keys() - self.listed.texts.keys(),
            )
            if self.checked:
                own = {words(copy.texts[i]) for i in copy.own if i in copy.texts}
                missing = {i for i in missing if words(self.listed.texts[i]) not in own}
                more = {i for i in more if copy.ledger.get(i, ("",))[0] != "duplicate"}
            if missing or more:
                yield "copies differ", f"laptop {laptop} against the list: {apart(more, missing)}"

    def _standing(self) -> Iterator[tuple[str, str]]:
        """The newest standing that was told of stands, every mirror shows it, and no words stand that do not."""
        for change in self._done("status"):
            for memory_id in change.ids if "version" in change.answer else ():
                told = (int(change.answer["version"]), str(change.answer["status"]))
                now = self.listed.standing.get(memory_id, told)
                if now[0] < told[0] or (now[0] == told[0] and now != told):
                    yield "status lost", f"{memory_id} was told {told} and is {now}"
        stand = defaultdict(set)
        for memory_id, text in self.listed.texts.items():
            stand[words(text)].add(self.listed.standing.get(memory_id, (0, "current"))[1])
        for laptop, copy in self.copies.items():
            for memory_id, shown in copy.standing.items():
                if self.listed.standing.get(memory_id, shown) != shown:
                    now = self.listed.standing[memory_id]
                    yield "status differs", f"{memory_id} is {now}, laptop {laptop} shows {shown}"
                among = stand.get(self.words[memory_id], {"current"})
                if shown[1] == "current" and "current" not in among:
                    yield (
                        "status differs",
                        f"what {memory_id} says is {sorted(among)}, laptop {laptop} recalls it",
                    )


def words(text: str) -> str:
    """A text as it counts for a repetition: whatever white space stands between its words."""
    return " ".join(text.split())


def apart(more: Iterable[str], missing: Iterable[str]) -> str:
    """How two copies differ, in words."""
    one, other = sorted(more), sorted(missing)
    return f"{len(one)} more {one[:5]}, {len(other)} missing {other[:5]}"


def kept(
    operations: Sequence[Operation],
    lists: Mapping[str, Copy],
    laptops: Mapping[tuple[str, str], Copy],
    checked: frozenset[str],
) -> list[Fault]:
    """Every fault of the laptops' banks; `laptops` are copies by (name, bank), `checked` banks that tell repetitions."""
    faults = []
    for bank, listed in lists.items():
        copies = {name: copy for (name, its), copy in laptops.items() if its == bank}
        faults += Bank(bank, operations, listed, copies, bank in checked).faults()
    return faults
