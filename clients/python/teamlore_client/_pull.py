"""Applying what the team changed: teammates' memories in, erased ones out, and nothing skipped unnoticed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from teamlore_client import _tie
from teamlore_client._errors import FeedGap
from teamlore_client._laptop import Laptop
from teamlore_client._memory import HIDDEN, FieldInvalid, Memory, check
from teamlore_client._state import Page
from teamlore_client._store import Rows
from teamlore_client._wire import Batch, Change

NEAR_DUPLICATE = 0.95
FETCHED = 100
"""Ids that one call asks for."""
_KEPT = ("stored", "unchanged")
_HELD = (*_KEPT, "duplicate")


@dataclass(frozen=True)
class Place:
    """Where in a bank's history this laptop stands: what the state keeps as the cursor."""

    seq: int = 0
    cursor: str = ""

    @classmethod
    def read(cls, kept: str | None) -> "Place":
        """Read what `str` wrote; nothing kept is the beginning."""
        seq, _, cursor = (kept or "").partition(" ")
        return cls(int(seq), cursor) if cursor else cls()

    def __str__(self) -> str:
        return f"{self.seq} {self.cursor}" if self.cursor else ""


@dataclass
class Pulled:
    """What a pull did, counted while it goes on."""

    stored: int = 0
    """Teammates' memories that are new here."""
    restored: int = 0
    """Own ones that the team has and this laptop had lost: they are back as the user's own."""
    near_duplicates: int = 0
    """Not stored, because this laptop has nearly the same of its own."""
    suppressed: int = 0
    """Not stored, because they were hidden on this machine."""
    unreadable: int = 0
    """Not stored, because a field breaks its rule or the id names something else here."""
    erased: int = 0
    """Erased here, because they were erased for the team."""
    dropped: int = 0
    """Erased here in a comparison, because the server has them no longer: erased for the team, or lost with its history."""


@dataclass(frozen=True)
class Mirrored:
    """What became of some of the team's memories."""

    here: frozenset[str] = frozenset()
    """Ids that are now here as a teammate's."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """id → the own id that it nearly repeats, of each that was left out for that."""


def check_joins(batch: Batch, place: Place) -> None:
    """Raise FeedGap unless the page begins where the last one ended and says so all the way through."""
    seqs = [place.seq, *(change.seq for change in batch.changes)]
    in_order = all(earlier < later for earlier, later in pairwise(seqs)) and seqs[-1] <= batch.through_seq
    if batch.after_seq != place.seq:
        raise FeedGap(
            f"the feed goes on after {batch.after_seq}, but {place.seq} was the last change received"
        )
    if not in_order or not batch.cursor or (batch.more and batch.through_seq == batch.after_seq):
        raise FeedGap(f"the page after {batch.after_seq} is not one run of changes up to {batch.through_seq}")


def apply(
    laptop: Laptop, bank: str, changes: Sequence[Change], before: Place, place: Place, counts: Pulled
) -> None:
    """Apply one page, then record it with everything received and the place it ends at; it begins after `before`.

    In this order a crash in between repeats the page, which changes nothing.
    """
    last = {change.id: change for change in changes}
    gone = {change.id: change.seq for change in last.values() if change.memory is None}
    live = {change.id: change.seq for change in last.values() if change.memory is not None}
    erase(laptop, bank, gone, counts)
    pulled = mirror(laptop, bank, [each.memory for each in last.values() if each.memory], counts)
    _tie.note(laptop, bank, str(before), str(place))
    laptop.state.apply_page(bank, Page(str(place), live, pulled.here, gone, pulled.skipped))


def erase(laptop: Laptop, bank: str, gone: Mapping[str, int], counts: Pulled) -> None:
    """Erase from disk what was erased for the team; a copy that its author withheld stays the author's.

    A tombstone binds its own bank: who may forget there reaches no other bank's memory by knowing its id.
    """
    wanted = gone.keys() - laptop.state.withheld(bank)
    if wanted:
        counts.erased += len(laptop.store.erase(sorted(wanted), seqs=gone, bank=bank).erased)


def mirror(laptop: Laptop, bank: str, memories: Sequence[Memory], counts: Pulled) -> Mirrored:
    """Store the team's memories that belong here.

    Own ones are here already, unless this laptop's memories were lost: then they come back as the user's own.
    """
    ids = [memory.id for memory in memories]
    here = laptop.store.known(ids)
    mine = _own(laptop, bank, ids)
    suppressed = laptop.state.suppressed(bank, ids)
    # Also of one's own: what the team holds of a memory is not its author's alone to say.
    laptop.store.put_standing([memory for memory in memories if memory.id in here and _sound(memory)])
    stood_for = _stand_in(laptop, bank, memories, laptop.state.skipped(bank, ids))
    wanted: list[Memory] = []
    lost: list[Memory] = []
    unchanged: set[str] = set()
    for memory in memories:
        if memory.id in suppressed:
            counts.suppressed += 1
        elif memory.id in mine:
            if memory.id not in here:
                lost.append(replace(memory, author=None))
        elif memory.derivation == "fact":
            kept = laptop.store.get(memory.id) if memory.id in here else None
            if kept is None:
                # What no longer holds is not shown twice; what holds again is compared anew, with an own one that holds again.
                if memory.id not in stood_for or memory.standing.status not in HIDDEN:
                    wanted.append(memory)
            elif kept.author is not None:
                if _same(kept, memory):
                    unchanged.add(memory.id)  # a comparison makes no vector anew
                else:
                    wanted.append(memory)
    _restore(laptop, lost, counts)
    stored = _stored(laptop, wanted, here, counts)
    _stand_in(laptop, bank, wanted, stored.skipped)
    return Mirrored(stored.here | unchanged, stored.skipped)


def _stand_in(laptop: Laptop, bank: str, memories: Sequence[Memory], skipped: Mapping[str, str]) -> frozenset[str]:
    """Give what the team holds of each to the own memory by which its words are here; return the ids of those.

    That is one that the server called a duplicate, or one for which a teammate's was left out here, unless the server
    holds that too and so says itself what is held of it.
    """
    sound = {memory.id: memory for memory in memories if _sound(memory)}
    answered = laptop.state.ledger(bank, skipped.values())
    own = laptop.state.duplicates_of(bank, sound)
    own |= {
        own_id: id_
        for id_, own_id in skipped.items()
        if id_ in sound and (own_id not in answered or answered[own_id].answer not in _HELD)
    }
    here = laptop.store.known(own)  # a lost memory.db took them along, and then nothing stands for the team's
    laptop.store.put_standing([replace(sound[id_], id=own_id) for own_id, id_ in own.items() if own_id in here])
    return frozenset(id_ for own_id, id_ in own.items() if own_id in here)


def bring_back(
    laptop: Laptop, bank: str, place: Place, get: Callable[[Sequence[str]], Sequence[Memory]], counts: Pulled
) -> None:
    """Fetch what was left out for an own memory that is here no longer, or is not recalled, or became private."""
    skipped = laptop.state.skipped(bank)
    reasons = laptop.store.recalled(bank, skipped.values(), laptop.state.withheld(bank))
    ids = [id_ for id_, own in skipped.items() if own not in reasons]
    for start in range(0, len(ids), FETCHED):
        memories = get(ids[start : start + FETCHED])
        there = mirror(laptop, bank, memories, counts)
        laptop.state.apply_page(bank, Page(str(place), {}, there.here, skipped=there.skipped))


def _own(laptop: Laptop, bank: str, ids: Sequence[str]) -> frozenset[str]:
    ledger = laptop.state.ledger(bank, ids)
    kept = frozenset(id_ for id_, pushed in ledger.items() if pushed.answer in _KEPT)
    return kept | laptop.state.sent(bank, ids)


def _same(one: Memory, other: Memory) -> bool:
    return (one.bank, one.text) == (other.bank, other.text)


def _restore(laptop: Laptop, lost: Sequence[Memory], counts: Pulled) -> None:
    sound = [memory for memory in lost if _sound(memory)]
    counts.unreadable += len(lost) - len(sound)
    if sound:
        vectors = laptop.embed([memory.text for memory in sound])
        done = laptop.vectors.put_mirrored(list(zip(sound, vectors, strict=True)))
        counts.restored += len(done.stored)
        counts.unreadable += len(done.refused)


def _stored(laptop: Laptop, wanted: Sequence[Memory], here: frozenset[str], counts: Pulled) -> Mirrored:
    sound = [memory for memory in wanted if _sound(memory)]
    counts.unreadable += len(wanted) - len(sound)  # one bad row must not stop all that follow it
    if not sound:
        return Mirrored()
    vectors = laptop.embed([memory.text for memory in sound])
    own = laptop.vectors.own(sound[0].bank, laptop.state.withheld(sound[0].bank))
    new: list[tuple[Memory, Sequence[float]]] = []
    skipped: dict[str, str] = {}
    for memory, vector in zip(sound, vectors, strict=True):
        if memory.id not in here and (reason := _repeated(laptop, own, memory, vector)):
            skipped[memory.id] = reason
        else:
            new.append((memory, vector))
    counts.near_duplicates += len(skipped)
    mirrored = laptop.vectors.put_mirrored(new)
    counts.stored += len(mirrored.stored)
    counts.unreadable += len(mirrored.refused)
    return Mirrored(frozenset(mirrored.stored + mirrored.unchanged), skipped)


def _sound(memory: Memory) -> bool:
    try:
        check(memory)
    except FieldInvalid:
        return False
    return True


def _repeated(laptop: Laptop, own: Rows, memory: Memory, vector: Sequence[float]) -> str:
    """Return the id of one's own memory that this one nearly repeats; empty where there is none."""
    near = laptop.vectors.own_near(memory.bank, own, vector, NEAR_DUPLICATE)
    if not near:
        return ""
    # The server's guard. Its package brings the model's runtime, which what needs no vector does not wait for.
    from teamlore_embedder.polarity import Reading, differs, normalised

    for id_, text in near:
        if normalised(text) == normalised(memory.text):
            return id_
    theirs = Reading(memory.text)
    alike = [(id_, text) for id_, text in near if not differs(Reading(text), theirs)]
    # Texts that the model did not see whole have one vector though they differ: no cosine speaks for them.
    if not alike or not laptop.seen_whole(memory.text):
        return ""
    return next((id_ for id_, text in alike if laptop.seen_whole(text)), "")
