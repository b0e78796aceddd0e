"""Rules of a push: what becomes of each record, given what the store and the index know."""

import asyncio
import hmac
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from teamlore.sync.v1 import sync_pb2

from kit.barrier import Barrier
from kit.errors import Refusal, field_invalid
from kit.pii import PersonalData
from kit.sealing import Allocator, KeyMissing, KeyStore, Slot, key_alarm, seal_many, unseal
from services.sync.records import Draft, Rejected, judge, stored_so

_ID = re.compile(r"[A-Za-z0-9_-]{8,64}")
TAKEN = "the id is taken"
# Laptops know this answer by its words, and erase their copy: never change them.
FORGOTTEN = "the id was forgotten in this bank; save it under a new id"
UNREADABLE = "the stored memory of this id cannot be opened; tell the people who run the server"
METADATA_DIFFERS = "text unchanged; metadata updates are not accepted by push"
UNFIT_NAME = "looks like a secret; no bank is made under such a name"
UNFIT_ID = "one looks like a secret, and is no memory's of this bank; what is forgotten is kept for ever"
TWICE = "the id stands twice in this push, with another text"
ROUNDS = 3
"""So often a push looks at drafts whose near-duplicate was gone when it came to answer; then it stores them unasked."""


@dataclass(frozen=True)
class Known:
    """An id that exists: its bank, and its row where it is live there."""

    id: str
    bank: str
    row: "StoredRow | None"


@dataclass(frozen=True)
class StoredRow:
    """What push compares of a live memory; `content` is opened."""

    slot: Slot
    sealed: bytes
    fact_type: str
    occurred_at: datetime | None


class SealedDraft(NamedTuple):
    """A draft as it is written."""

    draft: Draft
    slot: Slot
    sealed: bytes
    retain_tag: bytes | None = None
    """The same for all chunks of one retain of one author in one bank; tells nothing else."""


class Answer(NamedTuple):
    """What became of one record."""

    id: str
    status: str
    reason: str = ""
    duplicate_of: str = ""


@dataclass(frozen=True)
class Policy:
    """How a bank treats what is pushed; near-duplicates are `skip`, `warn` or `off`, from a cosine on."""

    near_duplicates: str = "skip"
    threshold: float = 0.95
    barrier: str = ""
    """`redact`, `reject` or `off`; empty for what the deployment says."""
    archived: bool = False
    pii: str = "off"
    """What becomes of personal data: `redact`, `reject` or `off`."""


@dataclass(frozen=True)
class Terms:
    """What the deployment says: who makes banks, the barrier, and records a principal may store a day (0: any)."""

    banks_by_writers: bool = True
    barrier: str = "redact"
    records_per_day: int = 0


class PushStore(Protocol):
    """What a push needs of the store."""

    async def ground(self, bank: str, ids: Sequence[str]) -> tuple[Policy | None, set[str]]:
        """The bank's policy, None for a bank that is not there, and those of the ids that are known anywhere."""
        ...

    async def stored_today(self, principal: str) -> tuple[int, float]:
        """Records that a principal stored on this day (UTC), and the seconds that are left of it."""
        ...

    async def lookup(self, bank: str, ids: Sequence[str]) -> Mapping[str, Known]:
        """What each known id is now, to a push into `bank`."""
        ...

    async def put(self, bank: str, author: str, drafts: Sequence[SealedDraft], make_bank: bool) -> set[str]:
        """Stores drafts in one commit; gives the ids that were won."""
        ...

    async def recalled_ids(self, bank: str, ids: Collection[str]) -> set[str]:
        """Those of the ids that are recalled in the bank now: live, and `current` or `suspect`."""
        ...


class NearDuplicates(Protocol):
    """Asks the index; None when it cannot be asked."""

    async def find(self, bank: str, drafts: Sequence[Draft], threshold: float) -> Mapping[str, str] | None:
        """Which draft repeats which memory."""
        ...


class Pusher:
    """Carries out pushes."""

    def __init__(self, store: PushStore, keys: KeyStore, index: NearDuplicates, terms: Terms) -> None:
        self._store = store
        self._keys = keys
        self._allocator = Allocator(keys)
        self._index = index
        self._terms = terms
        self._retain_key = keys.secret("sync.retain")
        self._barriers = {action: Barrier(action) for action in ("redact", "reject", "off")}
        self._personal = {action: PersonalData(action) for action in ("redact", "reject", "off")}

    async def push(
        self, bank: str, author: str, records: Sequence[sync_pb2.Record]
    ) -> tuple[list[Answer], bool]:
        """One answer per record in order, and whether the near-duplicate check was skipped. Raises Refusal."""
        await self._require_quota(author)
        policy, known = await self._ground(bank, records)
        barrier = self._barrier_of(policy)
        personal = self._personal[policy.pii if policy else "off"]
        judged = await asyncio.to_thread(lambda: [judge(record, barrier, personal) for record in records])
        answers: list[Answer | None] = [
            Answer(item.id, "rejected", item.reason) if isinstance(item, Rejected) else None
            for item in judged
        ]
        first: dict[str, Draft] = {}
        again: dict[int, Draft] = {}
        for position, item in enumerate(judged):
            if isinstance(item, Draft) and first.setdefault(item.id, item) is not item:
                again[position] = item
        seen = [draft for draft in first.values() if draft.id in known]
        fresh = [draft for draft in first.values() if draft.id not in known]
        outcome = await self._classify_all(bank, seen)
        stored, skipped = await self._store_new(bank, author, policy, fresh)
        outcome.update(stored)
        repeats = await self._repeated(bank, first, outcome, again)
        for position, item in enumerate(judged):
            if answers[position] is None:
                answers[position] = repeats.get(position) or outcome[item.id]
        return [answer for answer in answers if answer is not None], skipped

    async def _repeated(
        self, bank: str, first: Mapping[str, Draft], outcome: Mapping[str, Answer], again: Mapping[int, Draft]
    ) -> dict[int, Answer]:
        """Answers by position for drafts whose id an earlier one of the push has: what a later push would be told."""
        if not again:
            return {}
        known = await self._store.lookup(bank, list({draft.id for draft in again.values()}))
        answers = {}
        for position, draft in again.items():
            if draft.id in known:
                answers[position] = await self._classify(bank, draft, known[draft.id])
            elif draft.text == first[draft.id].text:
                answers[position] = outcome[draft.id]
            else:
                answers[position] = Answer(draft.id, "rejected", TWICE)
        return answers

    async def _ground(self, bank: str, records: Sequence[sync_pb2.Record]) -> tuple[Policy | None, set[str]]:
        """What the store knows beforehand, in one question. An id that breaks its rule is in no table."""
        ids = [memory_id for memory_id in (record.id for record in records) if _ID.fullmatch(memory_id)]
        policy, known = await self._store.ground(bank, ids)
        if policy is None and not self._terms.banks_by_writers:
            raise Refusal("NOT_FOUND", "there is no such bank; an admin makes it")
        if policy is None and self.is_secret(bank):
            raise field_invalid("bank", UNFIT_NAME)
        if policy is not None and policy.archived:
            raise Refusal("BANK_ARCHIVED", "the bank is archived; it takes no more memories")
        return policy, known

    def _barrier_of(self, policy: Policy | None) -> Barrier:
        return self._barriers[(policy.barrier if policy else "") or self._terms.barrier]

    def is_secret(self, bank: str) -> bool:
        """Whether the id of a bank that is to be made looks like a secret: it is kept for ever, and many see it."""
        return bool(self._barriers[self._terms.barrier].spans(bank))

    async def require_fit_ids(self, bank: str, ids: Sequence[str]) -> None:
        """Raises Refusal for an id to be buried that push would refuse and the bank does not know.

        What is known may have been pushed while the barrier was off. Which bank else knows it is not told.
        """
        suspect = [memory_id for memory_id in ids if self._barriers["redact"].spans(memory_id)]
        if not suspect:
            return
        policy, _ = await self._store.ground(bank, ())
        if self._barrier_of(policy).action == "off":
            return
        known = await self._store.lookup(bank, suspect)
        if any(memory_id not in known or known[memory_id].bank != bank for memory_id in suspect):
            raise field_invalid("memory_ids", UNFIT_ID)

    async def _require_quota(self, author: str) -> None:
        if not self._terms.records_per_day:
            return
        stored, rest_of_day = await self._store.stored_today(author)
        if stored >= self._terms.records_per_day:
            raise Refusal(
                "QUOTA_EXCEEDED",
                f"you stored the {self._terms.records_per_day} records that you may store a day",
                retry_after=rest_of_day,
            )

    async def _store_new(
        self, bank: str, author: str, existing: Policy | None, fresh: Sequence[Draft]
    ) -> tuple[dict[str, Answer], bool]:
        """Answers by id for drafts that the store did not know a moment ago."""
        policy = existing or Policy()
        rounds = 0 if policy.near_duplicates == "off" else ROUNDS
        outcome: dict[str, Answer] = {}
        named: dict[str, str] = {}
        drafts, skipped = fresh, False
        while fresh:
            near: Mapping[str, str] = {}
            if rounds:
                rounds -= 1
                found = await self._index.find(bank, fresh, policy.threshold)
                near, skipped = found or {}, skipped or found is None
            held = near if policy.near_duplicates == "skip" else {}
            new = [draft for draft in fresh if draft.id not in held]
            outcome |= await self._put(bank, author, new, existing is None)
            named = await self._sound(bank, named | dict(near), outcome)
            fresh = [draft for draft in drafts if draft.id not in outcome and draft.id not in named]
        for draft_id, target in named.items():
            if draft_id not in outcome:
                outcome[draft_id] = Answer(draft_id, "duplicate", duplicate_of=target)
            elif outcome[draft_id].status == "stored":
                outcome[draft_id] = Answer(draft_id, "stored", f"near-duplicate of {target}")
        return outcome, skipped

    async def _put(
        self, bank: str, author: str, drafts: Sequence[Draft], make_bank: bool
    ) -> dict[str, Answer]:
        """Answers by id for drafts that are stored, or lost their ids to somebody since."""
        if not drafts:
            return {}
        won = await self._store.put(bank, author, self._sealed(bank, author, drafts), make_bank)
        lost = await self._classify_all(bank, [draft for draft in drafts if draft.id not in won])
        return {draft.id: Answer(draft.id, "stored") for draft in drafts if draft.id in won} | lost

    async def _sound(
        self, bank: str, named: Mapping[str, str], outcome: Mapping[str, Answer]
    ) -> dict[str, str]:
        """Those of the near-duplicates that repeat what is recalled now, after all that this push did, and not refused by it.

        The index told what was recalled when it was asked. A target may have been erased or replaced since, or have lost
        its id to another text. What nobody recalls must not keep a decision out that is taken again.
        """
        if not named:
            return {}
        recalled = await self._store.recalled_ids(bank, set(named.values()))
        refused = {memory_id for memory_id, answer in outcome.items() if answer.status == "rejected"}
        return {own: target for own, target in named.items() if target in recalled - refused}

    def _sealed(self, bank: str, author: str, drafts: Sequence[Draft]) -> list[SealedDraft]:
        slots = self._allocator.take(bank, author, len(drafts))
        items = [(draft.id, slot, draft.content) for draft, slot in zip(drafts, slots, strict=True)]
        return [
            SealedDraft(
                draft,
                slot,
                sealed,
                self._retain_tag(bank, author, draft.retain_id) if draft.retain_id else None,
            )
            for draft, slot, sealed in zip(drafts, slots, seal_many(self._keys, bank, items), strict=True)
        ]

    async def _classify_all(self, bank: str, drafts: Sequence[Draft]) -> dict[str, Answer]:
        """Answers by id for drafts whose ids are taken."""
        if not drafts:
            return {}
        known = await self._store.lookup(bank, [draft.id for draft in drafts])
        return {draft.id: await self._classify(bank, draft, known[draft.id]) for draft in drafts}

    def _retain_tag(self, bank: str, author: str, retain_id: str) -> bytes:
        key = hmac.digest(self._retain_key, bank.encode(), "sha256")
        return hmac.digest(key, f"{author}\0{retain_id}".encode(), "sha256")[:16]

    async def _classify(self, bank: str, draft: Draft, known: Known) -> Answer:
        """An id of another bank and one with other text here get the same words, so that push reveals neither.

        One whose key is lost is refused by itself: it must not stop the queue behind it.
        """
        if known.bank != bank:
            return Answer(draft.id, "rejected", TAKEN)
        if known.row is None:
            return Answer(draft.id, "rejected", FORGOTTEN)
        row = known.row
        try:
            content = unseal(self._keys.key(row.slot), bank, draft.id, row.sealed)
        except KeyMissing:
            now = (await self._store.lookup(bank, [draft.id]))[draft.id]
            if now.row is None:
                return Answer(draft.id, "rejected", FORGOTTEN)
            key_alarm("a live memory has no key", bank, [(draft.id, row.slot)])
            return Answer(draft.id, "rejected", UNREADABLE)
        stored = sync_pb2.MemoryContent.FromString(content)
        if draft.text != stored.text:
            # The bank's policy may have been another one when the text was stored.
            redacting = self._barriers["redact"], self._personal["redact"]
            if not await asyncio.to_thread(stored_so, draft.sent, stored.text, *redacting):
                return Answer(draft.id, "rejected", TAKEN)
        same = (draft.fact_type, draft.occurred_at) == (row.fact_type, row.occurred_at) and (
            draft.content == content or _beside_text(draft.content) == _beside_text(content)
        )
        return Answer(draft.id, "unchanged", "" if same else METADATA_DIFFERS)


def _beside_text(content: bytes) -> sync_pb2.MemoryContent:
    message = sync_pb2.MemoryContent.FromString(content)
    message.ClearField("text")
    return message
