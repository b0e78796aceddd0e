"""What a push names as the memory that a record repeats is recalled there, whatever others did while the index looked."""

import asyncio
import itertools
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from teamlore.sync.v1 import sync_pb2

from kit import audit
from kit.database import Database
from kit.sealing import KeyStore
from services.sync import standing
from services.sync.neighbours import question
from services.sync.pushing import FORGOTTEN, METADATA_DIFFERS, ROUNDS, TAKEN, TWICE, Answer, Pusher, Terms
from services.sync.records import Draft
from services.sync.store import QUERIES, StatusChange
from services.sync.tests.test_pushing import BANK, Bench, Index, record

STATUSES = ("current", "suspect", "contradicted", "superseded")
TRAIN = "The release train leaves on Tuesday."
Step = tuple[str, str, str]
"""What somebody does (take, write, forget or erase, or calls by a status), with which id, and in which words."""


class Words:
    """Stands in for the index: equal words are near. Others take their steps between its look and its answer."""

    def __init__(self, bench: Bench, bank: str, *steps: Sequence[Step]) -> None:
        self.bench, self.bank, self.steps, self.asked = bench, bank, list(steps), 0

    async def find(self, bank: str, drafts: Sequence[Draft], threshold: float) -> Mapping[str, str]:
        self.asked += 1
        candidates, repeated = question(drafts)
        stored = {text: memory_id for memory_id, text in (await recalled(self.bench, self.bank)).items()}
        found = {one.id: stored[one.text] for one in candidates if one.text in stored}
        if self.steps:
            await take(self.bench, self.bank, self.steps.pop(0))
        return found | {own: found.get(earlier, earlier) for own, earlier in repeated.items()}


async def take(bench: Bench, bank: str, steps: Sequence[Step]) -> None:
    """Takes steps as others would."""
    others = Pusher(bench.store, bench.keys, Index(), Terms())
    for what, memory_id, text in steps:
        with audit.calling(audit.CallContext("memory.forget", "user:bob", "t")):
            if what in ("take", "write"):
                where = bank if what == "write" else f"{bank}-other"
                await others.push(where, "user:bob", [record(memory_id, text)])
            elif what in STATUSES:
                for row in await bench.store.live(bank, [memory_id]):
                    await bench.store.status(bank, memory_id, row["version"], StatusChange(what))
            elif what == "forget":
                await bench.store.forget(bank, [memory_id])
            else:
                await bench.store.erase(bank, [memory_id], "user:bob", uuid.uuid4().hex)


async def live(bench: Bench, bank: str, *statuses: str) -> dict[str, str]:
    """Texts of a bank's live memories by id, of those that it calls so."""
    ids = await bench.superuser(
        "select coalesce(array_agg(id), '{}') from memory.live_memories where bank = $1", bank
    )
    found = await standing.opened(bench.store, bench.keys, bank, ids)
    return {each.id: each.text for each in found.memories if each.status in (statuses or STATUSES)}


async def recalled(bench: Bench, bank: str) -> dict[str, str]:
    """Texts of what a bank recalls by id."""
    return await live(bench, bank, "current", "suspect")


async def pushed(bench: Bench, words: Words, *records: sync_pb2.Record) -> list[Answer]:
    bench.pusher._index = words
    return await bench.push(*records, bank=words.bank)


@pytest.mark.parametrize(
    ("step", "why"),
    [(("take", "xxxxxxxx", "mine"), TAKEN), (("write", "xxxxxxxx", "mine"), TAKEN),
     (("forget", "xxxxxxxx", ""), FORGOTTEN)],
)  # fmt: skip
async def test_one_that_lost_its_id_takes_none_with_it_that_repeats_it(
    bench: Bench, step: Step, why: str
) -> None:
    words = Words(bench, BANK, [step])
    ids = ("xxxxxxxx", "yyyyyyyy", "zzzzzzzz")
    answers = await pushed(bench, words, *(record(memory_id, TRAIN) for memory_id in ids))
    assert answers == [
        Answer("xxxxxxxx", "rejected", why),
        Answer("yyyyyyyy", "stored"),
        Answer("zzzzzzzz", "duplicate", duplicate_of="yyyyyyyy"),
    ]


@pytest.mark.parametrize("how", ["forget", "erase"])
async def test_one_that_is_gone_when_the_push_answers_is_named_by_none(bench: Bench, how: str) -> None:
    await bench.push(record("xxxxxxxx", TRAIN))
    words = Words(bench, BANK, [(how, "xxxxxxxx", "")])
    answers = await pushed(bench, words, record("yyyyyyyy", TRAIN), record("zzzzzzzz", "else"))
    assert answers == [Answer("yyyyyyyy", "stored"), Answer("zzzzzzzz", "stored")]
    await bench.superuser("select memory.put_policy($1, null, 'warn', null, null, null, null, null)", BANK)
    words = Words(bench, BANK, [(how, "yyyyyyyy", "")])
    assert await pushed(bench, words, record("wwwwwwww", TRAIN)) == [Answer("wwwwwwww", "stored")]


@pytest.mark.parametrize("status", STATUSES)
async def test_a_decision_taken_again_is_stored_and_the_same_record_is_unchanged(bench: Bench, status: str) -> None:
    await bench.push(record("xxxxxxxx", TRAIN))
    words = Words(bench, BANK, [(status, "xxxxxxxx", "")])
    fresh, same = await pushed(bench, words, record("yyyyyyyy", TRAIN), record("xxxxxxxx", TRAIN))
    shown = status in ("current", "suspect")
    assert fresh == (
        Answer("yyyyyyyy", "duplicate", duplicate_of="xxxxxxxx") if shown else Answer("yyyyyyyy", "stored")
    )
    assert same == Answer("xxxxxxxx", "unchanged")


async def test_whose_targets_go_again_and_again_is_stored_unasked(bench: Bench) -> None:
    others = [f"other-{n:03}" for n in range(ROUNDS)]
    await take(bench, BANK, [("write", others[0], TRAIN)])
    words = Words(
        bench, BANK, *([("erase", gone, ""), ("write", comes, TRAIN)] for gone, comes in itertools.pairwise(others)),
        [("erase", others[-1], "")],
    )  # fmt: skip
    assert await pushed(bench, words, record("yyyyyyyy", TRAIN)) == [Answer("yyyyyyyy", "stored")]
    assert words.asked == ROUNDS


IDS, TEXTS = st.sampled_from([f"memory-{n}" for n in range(4)]), st.sampled_from(["one", "two"])
STEPS = st.lists(st.tuples(st.sampled_from(["take", "write", "forget", "erase", *STATUSES]), IDS, TEXTS), max_size=3)


def test_no_order_of_things_names_what_is_not_there(database_url: str, tmp_path: Path) -> None:
    with asyncio.Runner() as runner:

        async def opened() -> Bench:
            database = await Database.connect(database_url, "sync", QUERIES)
            return Bench(database_url, database, KeyStore(tmp_path / "k.db", make=True))

        bench = runner.run(opened())

        @settings(max_examples=30)
        @given(
            STEPS, st.lists(st.tuples(IDS, TEXTS), min_size=1, max_size=6), st.lists(STEPS, max_size=ROUNDS)
        )
        @example([], [("memory-0", "one"), ("memory-1", "one")], [[("take", "memory-0", "two")]])
        @example(
            [("write", "memory-0", "one")],
            [("memory-1", "one"), ("memory-0", "one")],
            [[("forget", "memory-0", "")]],
        )
        @example([("write", "memory-0", "one")], [("memory-1", "one")] * 2, [[]])
        @example([("write", "memory-0", "one")], [("memory-1", "one")], [[("superseded", "memory-0", "")]])
        def holds(before: list[Step], batch: list[tuple[str, str]], meanwhile: list[list[Step]]) -> None:
            runner.run(play(bench, before, batch, meanwhile))

        holds()
        runner.run(bench.database.close())


async def play(
    bench: Bench, before: list[Step], batch: list[tuple[str, str]], meanwhile: list[list[Step]]
) -> None:
    mark = uuid.uuid4().hex[:8]
    bank = f"project:named-{mark}"

    def marked(steps: list[Step]) -> list[Step]:
        return [(what, f"{memory_id}-{mark}", text) for what, memory_id, text in steps]

    await take(bench, bank, marked(before))
    records = [record(f"{memory_id}-{mark}", text) for memory_id, text in batch]
    answers = await pushed(bench, Words(bench, bank, *map(marked, meanwhile)), *records)
    there, shown = await live(bench, bank), await recalled(bench, bank)
    gone = await bench.superuser(
        "select coalesce(array_agg(id), '{}') from (select id from memory.tombstones where bank = $1"
        " union all select id from memory.memories where bank = $1 and forgotten) hidden",
        bank,
    )
    first: dict[str, Answer] = {}
    for sent, answer in zip(records, answers, strict=True):
        assert answer.id == sent.id
        if answer.status == "duplicate":
            assert shown[answer.duplicate_of] == sent.text
        elif answer.status in ("stored", "unchanged"):
            assert there.get(sent.id) == sent.text or sent.id in gone
        elif answer.reason == TWICE:
            assert first[sent.id].status == "duplicate"
        else:
            assert answer.reason in (TAKEN, FORGOTTEN) and there.get(sent.id) != sent.text
        first.setdefault(sent.id, answer)


@pytest.mark.parametrize("before", ["duplicate", "taken", "forgotten", "stored before"])
async def test_the_same_id_twice_gets_the_same_answer(bench: Bench, before: str) -> None:
    there = {"duplicate": ("write", "xxxxxxxx", TRAIN), "taken": ("take", "yyyyyyyy", TRAIN),
             "forgotten": ("erase", "yyyyyyyy", ""), "stored before": ("write", "yyyyyyyy", TRAIN)}  # fmt: skip
    await take(bench, BANK, [there[before]])
    sent, tagged = record("yyyyyyyy", TRAIN), record("yyyyyyyy", TRAIN, tags=["t"])
    one, two, other = await pushed(bench, Words(bench, BANK), sent, sent, record("yyyyyyyy", "else"))
    assert one == two and other.status == "rejected"
    expected = {"duplicate": TWICE, "forgotten": FORGOTTEN}
    assert other.reason == expected.get(before, TAKEN)
    one, two = await pushed(bench, Words(bench, BANK), tagged, sent)
    if before == "stored before":
        assert (one.reason, two.reason) == (METADATA_DIFFERS, "")
    else:
        assert one == two
