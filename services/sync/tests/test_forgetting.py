"""Forget against a small model: what goes together, what binds an id that was never seen, and what tells nothing."""

import asyncio
import itertools
import uuid
from dataclasses import dataclass, field

import asyncpg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from teamlore.sync.v1 import sync_pb2

from kit import audit
from services.sync import standing
from services.sync.handlers import SyncHandlers
from services.sync.pushing import FORGOTTEN, TAKEN
from services.sync.tests.test_guard import check_digest, unique_slot
from services.sync.tests.test_pushing import BANK, Bench, record

OTHER = "project:forget-2"
PUT = "select stored_id from memory.put($1, $2, $3, $4, $5, $6, $7, $8, $9) where stored_seq is not null"
IDS = [f"memory-{n}" for n in range(4)]
RETAINS = (None, b"retain-1")
_fresh = itertools.count()

Ops = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"), st.integers(0, 1), st.sampled_from(["user:alice", "user:bob"]),
            st.lists(st.sampled_from(IDS), min_size=1, max_size=3, unique=True), st.sampled_from(RETAINS),
        ),
        st.tuples(
            st.sampled_from(["forget", "erase"]), st.integers(0, 1), st.none(),
            st.lists(st.sampled_from(IDS), min_size=1, max_size=3, unique=True), st.none(),
        ),
        st.tuples(st.sampled_from(["hold", "lift"]), st.integers(0, 1), st.none(), st.just([]), st.none()),
    ),
    min_size=6,
    max_size=20,
)  # fmt: skip

# Two authors whose retains have one tag, as only a defect would give them; and a chunk that comes late.
SAME_WORD = [
    ("put", 0, "user:alice", ["memory-0"], b"retain-1"), ("put", 0, "user:bob", ["memory-1"], b"retain-1"),
    ("forget", 0, None, ["memory-0"], None),
]  # fmt: skip
LATE = [
    ("put", 0, "user:alice", ["memory-0"], b"retain-1"), ("erase", 0, None, ["memory-0"], None),
    ("put", 0, "user:alice", ["memory-1", "memory-2"], b"retain-1"), ("put", 0, "user:alice", ["memory-3"], None),
]  # fmt: skip


@dataclass
class Model:
    """What should be."""

    claims: dict[str, int] = field(default_factory=dict)
    rows: dict[tuple[int, str], tuple[str, bytes | None, bool]] = field(default_factory=dict)
    """(bank, id) → author, retain, forgotten."""
    graves: set[tuple[int, str]] = field(default_factory=set)
    heads: dict[int, int] = field(default_factory=dict)
    """Of banks that are there."""
    held: set[int] = field(default_factory=set)
    spent: set[tuple[int, bytes | None]] = field(default_factory=set)
    """(bank, retain) of what went."""

    def put(self, bank: int, author: str, ids: list[str], retain: bytes | None) -> set[str]:
        self.heads.setdefault(bank, 0)
        won = {i for i in ids if i not in self.claims}
        self.claims |= dict.fromkeys(won, bank)
        if (bank, retain) in self.spent:
            self.graves |= {(bank, i) for i in won}
            return set()
        self.rows |= {(bank, i): (author, retain, False) for i in won}
        self.heads[bank] += len(won)
        return won

    def forget(self, bank: int, ids: list[str], erase: bool) -> tuple[int, int, int] | None:
        """Left recall, erased, buried; None under a hold."""
        asked = [self.rows[bank, i] for i in ids if (bank, i) in self.rows]
        groups = {(author, retain) for author, retain, _ in asked if retain is not None}
        hit = {
            key
            for key, (author, retain, hidden) in self.rows.items()
            if key[0] == bank and (key[1] in ids or (author, retain) in groups) and (erase or not hidden)
        }
        unseen = {i for i in ids if (bank, i) not in self.rows and (bank, i) not in self.graves}
        if not hit and not unseen:
            return 0, 0, 0
        if bank in self.held:
            return None
        live = sum(not self.rows[key][2] for key in hit)
        for key in hit:
            if (retain := self.rows[key][1]) is not None:
                self.spent.add((bank, retain))
            if erase:
                del self.rows[key]
                self.graves.add(key)
            else:
                self.rows[key] = (*self.rows[key][:2], True)
        for i in unseen:
            self.claims.setdefault(i, bank)
            self.graves.add((bank, i))
        if bank in self.heads:  # where nobody has made it no mirror needs to be told
            self.heads[bank] += len(hit) + len(unseen)
        return live, len(hit) if erase else 0, len(unseen)


async def compare(url: str, ops: list[tuple[str, int, str, list[str], bytes | None]]) -> None:
    db, model, mark = await asyncpg.connect(url), Model(), f"{next(_fresh)}-{uuid.uuid4().hex[:6]}"
    banks = [f"project:model-{n}-{mark}" for n in (0, 1)]
    try:
        for what, at, author, ids, retain in ops:
            bank, real = banks[at], [f"{i}-{mark}" for i in ids]
            if what == "put":
                n = len(ids)
                slots = [unique_slot() for _ in ids]
                await db.execute("select memory.open_bank($1)", bank)
                rows = await db.fetch(
                    PUT, bank, author, real, [""] * n, [None] * n, slots, [0] * n, [b"x"] * n, [retain] * n
                )
                assert {row[0].removesuffix(f"-{mark}") for row in rows} == model.put(at, author, ids, retain)
            elif what == "hold":
                await db.execute(
                    "select memory.place_hold($1, $2, 'M', 'user:o', null)", bank, uuid.uuid4().hex
                )
                model.held.add(at)
                model.heads.setdefault(at, 0)
            elif what == "lift":
                await db.execute("update memory.holds set lifted_at = now() where bank = $1", bank)
                model.held.discard(at)
            else:
                expected = model.forget(at, ids, what == "erase")
                try:
                    if what == "erase":
                        sql = "select deleted, erased, buried from memory.erase($1, $2, 'user:o', $3)"
                        seen = await db.fetchrow(sql, bank, real, uuid.uuid4().hex)
                    else:
                        seen = await db.fetchrow(
                            "select deleted, 0, buried from memory.hide($1, $2)", bank, real
                        )
                    assert tuple(seen) == expected
                except asyncpg.PostgresError as error:
                    assert (error.sqlstate, expected) == ("TL001", None)
        for at, bank in enumerate(banks):
            assert await db.fetchval(
                "select head from memory.heads where bank = $1", bank
            ) == model.heads.get(at)
            if at in model.heads:
                await check_digest(db, bank)
            seqs = await db.fetch("select seq from memory.changes where bank = $1 order by seq", bank)
            assert [row[0] for row in seqs] == list(range(1, model.heads.get(at, 0) + 1))
            rows = await db.fetch("select id, forgotten from memory.memories where bank = $1", bank)
            assert {(row[0].removesuffix(f"-{mark}"), row[1]) for row in rows} == {
                (i, hidden) for (b, i), (_, _, hidden) in model.rows.items() if b == at
            }
            buried = await db.fetch("select id from memory.tombstones where bank = $1", bank)
            assert {row[0].removesuffix(f"-{mark}") for row in buried} == {
                i for b, i in model.graves if b == at
            }
        claims = await db.fetch("select id, bank from memory.memory_ids where id like '%' || $1", f"-{mark}")
        assert {row[0].removesuffix(f"-{mark}"): banks.index(row[1]) for row in claims} == model.claims
    finally:
        await db.close()


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ops=Ops)
@example(ops=SAME_WORD)
@example(ops=LATE)
def test_forget_does_what_the_model_does(
    database_url: str, ops: list[tuple[str, int, str, list[str], bytes | None]]
) -> None:
    asyncio.run(compare(database_url, ops))


async def one(bench: Bench, bank: str, memory_id: str, author: str = "user:alice", retain: str = "") -> str:
    sent = record(memory_id, f"text of {memory_id}")
    if retain:
        sent.metadata["_retain_id"].string_value = retain
    (answer,) = await bench.push(sent, bank=bank, author=author)
    return f"{answer.status} {answer.reason}".strip()


async def forget(bench: Bench, bank: str, *ids: str, erase: bool = True) -> tuple[int, int]:
    with audit.calling(audit.CallContext("memory.forget", "user:alice", "t")):
        if not erase:
            return await bench.store.forget(bank, ids), 0
        done = await bench.store.erase(bank, ids, "user:alice", uuid.uuid4().hex)
    return done.deleted, done.erased


async def test_a_late_push_of_an_id_that_was_forgotten_unseen_is_refused(bench: Bench) -> None:
    await one(bench, BANK, "memory-0")
    await one(bench, OTHER, "memory-1")
    for erase, late in ((True, "late-one"), (False, "late-two")):
        assert await forget(bench, BANK, late, erase=erase) == (0, 0)
        assert await one(bench, BANK, late) == f"rejected {FORGOTTEN}"
        # Elsewhere it is taken, as any id of another bank is.
        assert await one(bench, OTHER, late) == f"rejected {TAKEN}"


async def test_what_another_bank_has_makes_no_difference_that_shows(bench: Bench) -> None:
    await one(bench, BANK, "memory-0")
    await one(bench, OTHER, "memory-1")
    assert await forget(bench, BANK, "memory-1") == await forget(bench, BANK, "nowhere-1") == (0, 0)
    heads = "select head from memory.heads where bank = $1"
    assert await bench.superuser(heads, BANK) == 3
    assert (
        await one(bench, BANK, "memory-1") == await one(bench, BANK, "nowhere-1") == f"rejected {FORGOTTEN}"
    )
    # It binds its own bank only: there the memory stands.
    assert await one(bench, OTHER, "memory-1") == "unchanged"


async def test_chunks_of_one_retain_go_together_and_only_their_authors(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bank, author, memory_id in (
        (BANK, "user:alice", "alice-c1"), (BANK, "user:alice", "alice-c2"), (BANK, "user:bob", "bobs-own"),
        (OTHER, "user:alice", "elsewhere"),
    ):  # fmt: skip
        assert await one(bench, bank, memory_id, author, "retain-1") == "stored"
    assert await one(bench, BANK, "apart-01", retain="retain-2") == "stored"
    # Asked before, it is told what would go, the asked one first of those that do not fit.
    handlers = SyncHandlers(bench.store, bench.keys, bench.pusher)
    for most, told, left in ((100, ["alice-c1", "alice-c2"], []), (1, ["alice-c2"], ["alice-c1"])):
        monkeypatch.setattr(standing, "MOST", most)
        ask = sync_pb2.GetMemoriesRequest(bank=BANK, memory_ids=["alice-c2"], together=True)
        answer = await handlers.GetMemories(ask, None)
        assert ([each.id for each in answer.memories], list(answer.remaining_ids)) == (told, left)
    assert await forget(bench, BANK, "bobs-own", erase=False) == (1, 0)
    assert await forget(bench, BANK, "alice-c2", erase=False) == (2, 0)
    # Erase takes what was hidden before, and what goes with it.
    assert await forget(bench, BANK, "alice-c1") == (0, 2)
    assert await bench.superuser("select count(*) from memory.memories where forgotten") == 1
    assert (
        await bench.superuser("select string_agg(id, ' ' order by id) from memory.live_memories")
        == "apart-01 elsewhere"
    )
    tags = "select bool_or(retain_tag = convert_to('retain-1', 'UTF8')) or count(distinct retain_tag) <> 3 from memory.memories"
    assert not await bench.superuser(tags)
