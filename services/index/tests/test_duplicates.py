"""What a push repeats, and what of it the model is asked: real Postgres, engine and model."""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import asyncpg
import pytest
from teamlore.sync.v1 import sync_pb2
from teamlore_embedder import Embedder, open_embedder

from kit.database import Database
from kit.sealing import Allocator, KeyStore, seal
from services.index.duplicates import Candidate, Duplicates
from services.index.embedding import Embedding, Urgency
from services.index.flight import InFlight
from services.index.following import Seen
from services.index.indexing import Follower, TermWork, VectorWork
from services.index.store import QUERIES, TERMS, VECTORS, Store
from services.index.term_points import FORMER, TermPoints
from services.index.terms import TermKeys
from services.index.tests.test_engine import Engine
from services.index.vectors import Vectors

BANK = "project:duplicates-1"
QUEUE = "We use SQS for the order queue because Kafka was too much to run."
NEARLY = "We use SQS for order queues because Kafka was too much to run."
AGAIN = "We use SQS for the order queues because Kafka was too much to run"
DENIED = "We do not use SQS for the order queue because Kafka was too much to run."
OTHER = "The design team meets on Tuesdays at ten."


async def nothing() -> None: ...


class Watched(Embedding):
    """The model, noting what it was asked."""

    def __init__(self, embedder: Embedder) -> None:
        super().__init__(embedder)
        self.asked: list[str] = []
        self.meanwhile: Callable[[], Awaitable[None]] = nothing

    async def embed(self, texts: Sequence[str], urgency: Urgency) -> list[Seen]:
        self.asked += texts
        await self.meanwhile()
        return await super().embed(texts, urgency)


class Bench:
    """One bank, and replicas of the index that check and follow it."""

    def __init__(
        self, url: str, engine: Engine, database: Database, keys: KeyStore, embedder: Embedder
    ) -> None:
        self._url, self._database, self._keys = url, database, keys
        self._address = f"http://127.0.0.1:{engine.port}"
        self.store = Store(database, keys)
        self.vectors, self.points = Vectors(self._address), TermPoints(self._address)
        self.former = TermPoints(self._address, FORMER)
        self.embedding = Watched(embedder)
        self.terms = TermKeys(keys.secret("index.terms"))
        self._allocator = Allocator(keys)
        self.flight = InFlight()
        self.finder = self.replica(self.flight)

    def replica(self, flight: InFlight) -> Duplicates:
        return Duplicates(self.store, self.vectors, self.points, self.embedding, flight, self.terms)

    def follower(self, kind: str) -> Follower:
        if kind == TERMS:
            work = TermWork(self.store, self.points, self.former, self.flight, self.terms)
            return Follower(self.store, work)
        return Follower(self.store, VectorWork(self.store, self.vectors, self.embedding, self.flight, 384))

    async def sql(self, statement: str, *args: object) -> None:
        connection = await asyncpg.connect(self._url)
        try:
            await connection.execute(statement, *args)
        finally:
            await connection.close()

    async def stored(self, **texts: str) -> None:
        slots = self._allocator.take(BANK, "user:alice", len(texts))
        for (memory_id, text), slot in zip(texts.items(), slots, strict=True):
            content = sync_pb2.MemoryContent(text=text).SerializeToString()
            sealed = seal(self._keys.fresh_key(slot), BANK, memory_id, content)
            await self.sql(
                "select memory.put($1, 'user:alice', array[$2], array[''], array[null::timestamptz], array[$3::bigint],"
                " array[$4::int], array[$5::bytea])",
                BANK, memory_id, slot.page, slot.index, sealed,
            )  # fmt: skip

    async def followed(self, *kinds: str) -> None:
        for kind in kinds:
            while await self.follower(kind).follow(BANK):
                pass

    async def repeats(self, *texts: str, by: Duplicates | None = None, threshold: float = 0.95) -> list[str]:
        asked = [Candidate(f"asked-{at:03}", text) for at, text in enumerate(texts)]
        answers = await (by or self.finder).find(BANK, asked, threshold)
        return [answer.id if answer else "" for answer in answers]


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return open_embedder("", 2)


@pytest.fixture
async def bench(database_url: str, tmp_path: Path, embedder: Embedder) -> AsyncIterator[Bench]:
    engine = Engine(tmp_path / "vectors")
    database = await Database.connect(database_url, "index", QUERIES)
    bench = Bench(database_url, engine, database, KeyStore(tmp_path / "k.db", make=True), embedder)
    await bench.sql("select memory.open_bank($1)", BANK)
    for kind in (TERMS, VECTORS):
        await bench.follower(kind)._work.prepare()
    yield bench
    for close in (bench.vectors.close, bench.points.close, bench.former.close, database.close):
        await close()
    bench.embedding.close()
    engine.end(signal.SIGKILL)


async def test_without_shared_words_no_model_is_asked_and_with_them_only_about_the_record(
    bench: Bench,
) -> None:
    await bench.stored(queue=QUEUE)
    await bench.followed(TERMS, VECTORS)
    bench.embedding.asked.clear()
    assert await bench.repeats(OTHER, "Invoices are sent on the first of a month.") == ["", ""]
    assert bench.embedding.asked == []
    assert await bench.repeats(OTHER, NEARLY) == ["", "queue"]
    assert bench.embedding.asked == [NEARLY]


async def test_what_words_decide_asks_no_model(bench: Bench) -> None:
    await bench.stored(queue=QUEUE, long="x" * 7000, cut="ฉันชอบกาแฟ")
    await bench.followed(TERMS, VECTORS)
    bench.embedding.asked.clear()
    assert await bench.repeats(f" {QUEUE}\n", DENIED, "x" * 7000, "ฉันชอบกาแฟ ") == [
        "queue",
        "",
        "long",
        "cut",
    ]
    assert bench.embedding.asked == []


@pytest.mark.parametrize("threshold", [0.95, 0.5])
async def test_what_belongs_to_another_line_is_another_text(bench: Bench, threshold: float) -> None:
    beside, within = "if retry:\n    log()\nsend()", "if retry:\n    log()\n    send()"
    await bench.stored(beside=beside)
    await bench.followed(TERMS, VECTORS)
    assert await bench.repeats(within, f"{beside}\n", within, threshold=threshold) == ["", "beside", "asked-000"]


async def test_what_has_no_vector_yet_is_met_by_its_terms_in_flight_and_on_another_replica(
    bench: Bench,
) -> None:
    assert await bench.repeats(QUEUE, OTHER) == ["", ""]
    assert bench.embedding.asked == []
    assert await bench.repeats(NEARLY) == [""], "what was checked is not stored yet"
    await bench.stored(**{"asked-000": QUEUE, "other": OTHER})
    other = bench.replica(InFlight())
    flying = [Candidate("nearly", NEARLY)]
    assert [hit and hit.id for hit in await bench.finder.find(BANK, flying, 0.95)] == ["asked-000"]
    assert [hit and hit.id for hit in await other.find(BANK, flying, 0.95)] == [None]
    await bench.followed(TERMS)
    assert [hit and hit.id for hit in await bench.replica(InFlight()).find(BANK, flying, 0.95)] == [
        "asked-000"
    ]
    # Nothing that a check has embedded is embedded once more by the follower.
    await bench.finder.find(BANK, flying, 0.95)
    bench.embedding.asked.clear()
    await bench.followed(VECTORS)
    assert bench.embedding.asked == [OTHER]


async def test_a_record_repeats_an_earlier_one_of_its_push_but_not_one_that_is_a_duplicate(
    bench: Bench,
) -> None:
    assert await bench.repeats(QUEUE, NEARLY, OTHER, QUEUE, DENIED) == ["", "asked-000", "", "asked-000", ""]
    await bench.stored(queue=QUEUE)
    await bench.followed(TERMS)
    assert await bench.repeats(NEARLY, NEARLY) == ["queue", "queue"]


async def test_later_ones_of_a_push_do_not_crowd_out_the_first(bench: Bench) -> None:
    assert await bench.repeats(*[QUEUE] * 60) == ["", *["asked-000"] * 59]
    assert bench.embedding.asked == []


@pytest.mark.parametrize("threshold", [0.95, 0.5])
async def test_what_is_forgotten_while_the_model_is_asked_is_not_named(
    bench: Bench, threshold: float
) -> None:
    await bench.stored(queue=QUEUE)
    await bench.followed(TERMS, VECTORS)

    async def forget() -> None:
        await bench.sql("select memory.forget($1, array['queue'])", BANK)

    assert await bench.repeats(NEARLY, threshold=threshold) == ["queue"]
    bench.embedding.meanwhile = forget
    assert await bench.repeats(AGAIN, threshold=threshold) == [""]


@pytest.mark.parametrize("threshold", [0.95, 0.5])
@pytest.mark.parametrize("status", ["current", "suspect", "contradicted", "superseded"])
async def test_what_nobody_recalls_is_repeated_by_nothing(bench: Bench, status: str, threshold: float) -> None:
    async def called(status: str) -> None:
        await bench.sql(
            "select memory.status(bank, id, version, $1, null, null, null, null) from memory.live_memories", status
        )

    await bench.stored(queue=QUEUE, cut="ฉันชอบกาแฟ")
    await called(status)
    await bench.followed(TERMS, VECTORS)
    asked = (QUEUE, NEARLY, "ฉันชอบกาแฟ ")
    named = ["queue", "queue", "cut"] if status in ("current", "suspect") else ["", "asked-000", ""]
    assert await bench.repeats(*asked, threshold=threshold) == named
    assert await bench.store.live(BANK, ["queue"]) == {"queue"}, "what follows the bank sees every status"

    # While the model is asked, the team changes its mind.
    await called("current")
    bench.embedding.meanwhile = lambda: called(status)
    assert await bench.repeats(AGAIN, threshold=threshold) == named[:1]

    # What is not recalled hides nothing that is, though it has the very words.
    bench.embedding.meanwhile = nothing
    await bench.stored(nearly=NEARLY)
    await bench.followed(TERMS, VECTORS)
    assert await bench.repeats(QUEUE, threshold=threshold) == ["queue" if named[0] else "nearly"]


async def test_a_bank_whose_terms_are_not_all_there_is_searched_by_meaning_until_they_are(
    bench: Bench,
) -> None:
    await bench.stored(queue=QUEUE)
    await bench.followed(TERMS, VECTORS)
    # As an upgrade, or the loss of the collection, leaves it.
    await bench.points.delete(BANK, ["queue"], wait=True)
    await bench.sql("update index.leading_term_cursors set seq = 0")
    bench.embedding.asked.clear()
    assert await bench.repeats(OTHER, NEARLY) == ["", "queue"]
    assert bench.embedding.asked == [OTHER, NEARLY]
    await bench.followed(TERMS)
    bench.embedding.asked.clear()
    assert await bench.repeats("Invoices are sent monthly.", NEARLY) == ["", "queue"]
    assert bench.embedding.asked == [NEARLY]


async def test_terms_of_an_earlier_version_are_removed_with_their_collection(bench: Bench) -> None:
    await bench.stored(queue=QUEUE)
    await bench.former.create()
    await bench.former.put(BANK, [("queue", bench.terms.of(BANK, QUEUE))])
    for _ in range(2):
        await bench.follower(TERMS)._work.prepare()
        assert not await bench.former.exists() and await bench.points.exists()
    await bench.followed(TERMS)
    assert await bench.repeats(NEARLY) == ["queue"]


async def test_below_the_least_threshold_all_are_compared_by_meaning(bench: Bench) -> None:
    await bench.stored(queue=QUEUE)
    await bench.followed(TERMS, VECTORS)
    said_otherwise = "Orders travel through Amazon's message queue, since we did not want Kafka to operate."
    bench.embedding.asked.clear()
    assert await bench.repeats(said_otherwise, threshold=0.95) == [""]
    assert bench.embedding.asked == []
    assert await bench.repeats(said_otherwise, NEARLY, threshold=0.5) == ["", "queue"]
    assert bench.embedding.asked == [said_otherwise, NEARLY]
