"""One sync of one bank: push what is queued, pull what changed, prove that both sides hold the same."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain, islice

from teamlore_client import _pull, _tie
from teamlore_client._errors import (
    AnswerWrong,
    Busy,
    DigestMismatch,
    Refused,
    ServerUnreachable,
    TeamloreError,
    speaks_of_one_call,
)
from teamlore_client._laptop import Laptop
from teamlore_client._membership import Membership
from teamlore_client._memory import Memory
from teamlore_client._pull import Place, Pulled
from teamlore_client._sharing import PUSH_BATCH, PUSH_BYTES, kept_here, queue, size
from teamlore_client._state import Page, Pushed
from teamlore_client._wire import Answer, Change, Team

PULL_PAGE = 500
STREAM_FROM = 1_000
"""Records; more than these go through one stream, without all of them being read into memory."""
ANSWERS = ("stored", "unchanged", "duplicate", "rejected")
_LOST_PLACE = ("CURSOR_DIVERGED", "CURSOR_BEFORE_HORIZON", "CURSOR_INVALID")
# The wire tells why a record was rejected in words alone, so these are part of it: the server has the same constant.
FORGOTTEN = "the id was forgotten in this bank; save it under a new id"
_SAMPLE = 3
_FORGET_BATCH = 100


@dataclass
class Synced:
    """What one sync did."""

    pushed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ANSWERS, 0))
    """How many records got each answer."""
    pulled: Pulled = field(default_factory=Pulled)
    seq: int = 0
    """Everything in the bank up to here is known on this laptop."""
    gone_again: int = 0
    """Erased here once more: erased for the team or hidden before, and back with an older copy of the memories."""
    reconciled: str = ""
    """Why the whole list of live memories was compared, if it was."""
    requeued: int = 0
    """Own memories that the server had lost and was sent again."""
    kept_here: int = 0
    """Own memories found to repeat what was forgotten for the team: they stay on this laptop, and are sent no more."""
    erased_again: int = 0
    """Memories that this laptop had erased for the team, that the server had again, and has erased again."""
    erasing_refused: str = ""
    """Why the server did not erase those again, if it did not: they stay live there, and stay off this laptop."""
    push_refused: str = ""
    """Why the server did not take what waits here, if that alone failed; all else that a sync does was done."""
    verified: bool = False
    """True when the digest was compared with the server's at the same seq."""
    erasures_confirmed: bool = False
    """True when the server was told that erased memories are off this laptop's disk."""


@dataclass(frozen=True)
class Preview:
    """What a sync would move."""

    push: int
    push_sample: tuple[Memory, ...]
    pull: int
    pull_sample: tuple[Memory, ...]
    erase: int
    reconcile: str = ""
    """Why the whole list of live memories would be compared; `pull` and `erase` are unknown then."""


def sync(laptop: Laptop, team: Team, membership: Membership, *, from_start: bool = False) -> Synced:
    """Sync one bank under its lock. Raises Busy, or the TeamloreError that is also kept in the state.

    Whatever was acknowledged or applied before an error stays so; the next sync goes on from there. A refused push stops
    nothing else: it is raised once all is pulled. The error's `synced` tells what was done.
    """
    lock = laptop.try_lock(membership.bank)
    if lock is None:
        raise Busy("another sync of this project is running; nothing was done")
    with lock:
        under_way = _Sync(laptop, team, membership)
        try:
            done = under_way.run(from_start)
        except Exception as error:
            if isinstance(error, TeamloreError):
                error.synced = under_way.done
            laptop.state.failed(membership.bank, f"{type(error).__name__}: {error}")
            raise
        laptop.state.succeeded(membership.bank, datetime.now(UTC))
        return done


def preview(laptop: Laptop, team: Team, membership: Membership) -> Preview:
    """Tell what a sync would move, and move neither the cursor nor the ledger."""
    bank = membership.bank
    waiting = tuple(queue(laptop.store, laptop.state, bank, share_captured=membership.share_captured))
    place = Place.read(laptop.state.status(bank).cursor)
    if why := _tie.why_compare(laptop, bank, str(place)):
        return Preview(len(waiting), waiting[:_SAMPLE], 0, (), 0, why)
    left_out = laptop.state.ledger(bank).keys() | laptop.state.suppressed(bank)
    new: dict[str, Memory] = {}
    gone: set[str] = set()
    try:
        more = True
        while more:
            batch = team.list_changes(bank, place.cursor, PULL_PAGE)
            _pull.check_joins(batch, place)
            for change in batch.changes:
                new.pop(change.id, None)
                if change.memory is None:
                    gone.add(change.id)
                elif change.id not in left_out and change.memory.derivation == "fact":
                    new[change.id] = change.memory
            place, more = Place(batch.through_seq, batch.cursor), batch.more
    except Refused as error:
        if error.reason not in _LOST_PLACE:
            raise
        return Preview(len(waiting), waiting[:_SAMPLE], 0, (), 0, error.reason)
    here = laptop.store.known([*new, *gone])
    arriving = [memory for id_, memory in new.items() if id_ not in here]
    leaving = (gone & here) - laptop.state.withheld(bank)
    return Preview(len(waiting), waiting[:_SAMPLE], len(arriving), tuple(arriving[:_SAMPLE]), len(leaving))


class _Sync:
    def __init__(self, laptop: Laptop, team: Team, membership: Membership) -> None:
        self.laptop = laptop
        self.state = laptop.state
        self.team = team
        self.membership = membership
        self.bank = membership.bank
        self.done = Synced()

    def run(self, from_start: bool) -> Synced:
        began = self._place()
        kept_before = kept_here(self.laptop.store, self.state, self.bank)
        self.done.gone_again = _tie.keep_gone(self.laptop, self.bank)
        held_back = self._push_if_taken()
        if from_start:
            self._reconcile("asked for")
        elif why := _tie.why_compare(self.laptop, self.bank, str(began)):
            self._reconcile(why)
        try:
            place = self._pull()
        except Refused as error:
            if error.reason not in _LOST_PLACE:
                raise
            self._reconcile(error.reason)
            place = self._pull()
        self._push_unheld(began)
        if self.done.requeued and held_back is None:
            held_back = self._push_if_taken()
            place = self._pull()
        _pull.bring_back(
            self.laptop, self.bank, place, lambda ids: self.team.get_memories(self.bank, ids), self.done.pulled
        )
        self.done.kept_here = len(kept_here(self.laptop.store, self.state, self.bank) - kept_before)
        self.done.seq = place.seq
        self._compare(place)
        self._confirm_erasures(place)
        if held_back is not None:
            self.done.push_refused = reason_of(held_back)
            raise held_back
        return self.done

    def _push_if_taken(self) -> TeamloreError | None:
        """Push, and return the error of a push that the server does not take, to be raised at the end.

        A refusal may last for ever (an archived bank, a right to read only), and what was erased for everyone has to
        leave this laptop all the same.
        """
        try:
            self._push()
        except TeamloreError as error:
            if not speaks_of_one_call(error):
                raise
            return error
        return None

    def _push(self) -> None:
        share_captured = self.membership.share_captured
        waiting = queue(self.laptop.store, self.state, self.bank, share_captured=share_captured)
        few = list(islice(waiting, STREAM_FROM + 1))
        batches = self._sendable(_batches(chain(few, waiting)))
        if len(few) > STREAM_FROM:
            answered = self.team.push_stream(self.bank, map(self._noted, batches))
        else:
            answered = ((batch, self._pushed(batch)) for batch in batches)
        for batch, answers in answered:
            if [each.id for each in answers] != [memory.id for memory in batch]:
                raise AnswerWrong("the server did not answer each pushed record in order")
            self._record(answers)

    def _noted(self, batch: list[Memory]) -> list[Memory]:
        # Its answer may be lost: a kill, a deadline or a cut line must not make it look as if it never left.
        self.state.sending(self.bank, [memory.id for memory in batch])
        return batch

    def _pushed(self, batch: list[Memory]) -> tuple[Answer, ...]:
        noted = self.state.sending(self.bank, [memory.id for memory in batch])
        try:
            return self.team.push(self.bank, batch)
        except Refused as error:
            if error.undone:  # who may only read is not asked about each of their own
                self.state.not_sent(self.bank, noted)
            raise

    def _sendable(self, batches: Iterator[list[Memory]]) -> Iterator[list[Memory]]:
        for batch in batches:
            if size(batch[0]) > PUSH_BYTES:  # alone in its batch
                self._record((Answer(batch[0].id, "rejected", "too large to be sent"),))
            else:
                yield batch

    def _record(self, answers: Iterable[Answer]) -> None:
        recorded: dict[str, Pushed] = {}
        forgotten: list[str] = []
        for each in answers:
            if each.status not in ANSWERS:
                raise AnswerWrong(f"the server answered {each.status!r}, which this release does not know")
            self.done.pushed[each.status] += 1
            detail = each.duplicate_of if each.status == "duplicate" else each.reason
            recorded[each.id] = Pushed(each.status, "" if each.status in ("stored", "unchanged") else detail)
            if each.status == "rejected" and each.reason == FORGOTTEN:
                forgotten.append(each.id)
        # Erased for the team while this laptop could not hear of it: its tombstone has been compacted away.
        _pull.erase(self.laptop, self.bank, dict.fromkeys(forgotten, 0), self.done.pulled)
        self._stand_in(recorded)
        self.state.record_push(self.bank, recorded)
        self.state.forget(self.bank, forgotten)

    def _stand_in(self, recorded: Mapping[str, Pushed]) -> None:
        # What the team holds of a memory that came before it was saved here again; later words come by the feed.
        held = {id_: each.detail for id_, each in recorded.items() if each.answer == "duplicate"}
        known = self.laptop.store.known(held.values())
        same = [replace(self.laptop.store.get(there), id=id_) for id_, there in held.items() if there in known]
        self.laptop.store.put_standing(same)

    def _pull(self) -> Place:
        place, more = self._place(), True
        while more:
            batch = self.team.list_changes(self.bank, place.cursor, PULL_PAGE)
            _pull.check_joins(batch, place)
            before, place, more = place, Place(batch.through_seq, batch.cursor), batch.more
            _pull.apply(self.laptop, self.bank, batch.changes, before, place, self.done.pulled)
        self.state.settled(self.bank)
        return place

    def _place(self) -> Place:
        return Place.read(self.state.status(self.bank).cursor)

    def _reconcile(self, why: str) -> None:
        """Make the mirror that of the server's live memories, whatever history they have.

        The head comes first: what changes while the pages are read follows from its cursor. The old place is
        kept until the end, and the memories carry no mark until the pull that follows, so that a crash in between begins all
        this again.
        """
        head = self.team.get_head(self.bank)
        _tie.cut(self.laptop, self.bank)
        live: dict[str, int] = {}
        unwanted = self.state.erased_by_user(self.bank)
        before = str(self._place())
        for changes in self._live_pages():
            memories = [each.memory for each in changes if each.memory is not None and each.id not in unwanted]
            live |= {each.id: each.seq for each in changes if each.memory is not None}
            pulled = _pull.mirror(self.laptop, self.bank, memories, self.done.pulled)
            self.state.apply_page(self.bank, Page(before, {}, pulled.here, skipped=pulled.skipped))
        requeue = self._lost_there(live) | self._unheld(live.keys())
        # The store is asked too: what stayed when this laptop left is in no state.
        mirrored = self.state.pulled(self.bank) | self.laptop.store.mirrored(self.bank)
        missing = (self.state.missing(self.bank, live) | mirrored) - live.keys() - requeue
        dropped = Pulled()
        _pull.erase(self.laptop, self.bank, dict.fromkeys(missing, 0), dropped)
        self.done.pulled.dropped += dropped.erased
        self.state.apply_page(self.bank, Page(before, {}, gone=dict.fromkeys(missing, 0)))
        self._erase_again(sorted(unwanted & live.keys()))
        self.state.reconcile(self.bank, live, str(Place(head.seq, head.cursor)), requeue)
        self.done.reconciled, self.done.requeued = why, len(requeue)

    def _erase_again(self, ids: list[str]) -> None:
        """Ask once more for what this laptop had erased for the team: the server has lost that with its history.

        Whose wish other tombstones were is not known here, so only the user's own are brought back.
        """
        try:
            for start in range(0, len(ids), _FORGET_BATCH):
                some = ids[start : start + _FORGET_BATCH]
                self.team.forget(self.bank, some)
                self.done.erased_again += len(some)
        except (Refused, ServerUnreachable) as error:  # a hold, or a permission taken away; all else must still arrive
            if not speaks_of_one_call(error):
                raise
            self.done.erasing_refused = error.reason

    def _live_pages(self) -> Iterator[tuple[Change, ...]]:
        token = ""
        while True:
            page = self.team.list_live(self.bank, token)
            yield page.changes
            token = page.next
            if not token:
                return

    def _lost_there(self, live: dict[str, int]) -> frozenset[str]:
        """Return own memories that the server answered for and has no longer.

        Only the server knows whether it lost them or forgot them: it is asked by pushing them once more.
        """
        lost = {
            id_
            for id_, pushed in self.state.ledger(self.bank).items()
            if pushed.answer in ("stored", "unchanged") and id_ not in live
        }
        return frozenset(lost & self.laptop.store.known(lost))

    def _unheld(self, live: Collection[str]) -> frozenset[str]:
        """Return own memories that were duplicates of what this server's history knows nothing of.

        What it knows and does not have was forgotten for the team, and is noted as that: its words stay on this laptop,
        but this laptop does not bring them back. What is one's own, its own push decides.
        """
        held = self.state.held_instead(self.bank)
        here = self.laptop.store.known(held)
        gone = {there for id_, there in held.items() if id_ in here and there not in live}
        gone -= {id_ for id_ in self.laptop.store.known(gone) if self.laptop.store.get(id_).author is None}
        if not gone:
            return frozenset()
        buried = self._buried(gone)
        self.state.forget(self.bank, buried)
        return frozenset(id_ for id_ in here if held[id_] in gone - buried)

    def _push_unheld(self, began: Place) -> None:
        """Queue what was answered before this history began: by another server, or before it was restored.

        A comparison has found that already; without a place there was nothing to tell that the history is another.
        """
        again = self._unheld(self.state.received(self.bank, self.state.held_instead(self.bank).values()))
        if not began.cursor:
            again |= self._lost_there(self.state.received(self.bank))
        self.state.push_again(self.bank, again)
        self.done.requeued += len(again)

    def _buried(self, ids: set[str]) -> set[str]:
        """Return those that the team forgot, by its whole history; all of them where the beginning of that was trimmed.

        A restored server may be told of an erasure that this laptop has not heard of: only what it knows nothing of
        at all was lost with its history, or is another server's.
        """
        found: set[str] = set()
        place, more = Place(), True
        try:
            while more:
                batch = self.team.list_changes(self.bank, place.cursor, PULL_PAGE)
                _pull.check_joins(batch, place)
                place, more = Place(batch.through_seq, batch.cursor), batch.more
                found |= {change.id for change in batch.changes if change.memory is None}
        except Refused as error:
            if error.reason not in _LOST_PLACE:
                raise
            return ids
        return ids & found

    def _compare(self, place: Place) -> None:
        theirs = self.team.get_digest(self.bank)
        if theirs.seq != place.seq:  # someone wrote meanwhile; the next sync compares
            return
        ours = self.state.digest(self.bank)
        if (ours.count, ours.sum) != (theirs.count, theirs.sum):
            raise DigestMismatch(
                f"at change {place.seq} the server has {theirs.count} memories and this laptop received"
                f" {ours.count} that are not the same; run `teamlore team sync --from-start`"
            )
        self.done.verified = True

    def _confirm_erasures(self, place: Place) -> None:
        self.laptop.store.settle()
        owed = self.state.owed_acks(self.bank)
        if not owed or self.laptop.store.unacknowledged(self.bank):
            return
        self.team.ack_erasures(self.bank, self.membership.device_id, place.seq)
        self.state.acknowledged(self.bank, owed)
        self.done.erasures_confirmed = True


def reason_of(error: TeamloreError) -> str:
    """Return what a program is told of an error: its reason, where it has one."""
    return error.reason if isinstance(error, (Refused, ServerUnreachable)) else str(error)


def _batches(waiting: Iterable[Memory]) -> Iterator[list[Memory]]:
    batch: list[Memory] = []
    taken = 0
    for memory in waiting:
        more = size(memory)
        if batch and (len(batch) == PUSH_BATCH or taken + more > PUSH_BYTES):
            yield batch
            batch, taken = [], 0
        batch.append(memory)
        taken += more
    if batch:
        yield batch
