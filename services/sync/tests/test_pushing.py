"""What becomes of each record: stored, unchanged, duplicate or rejected; in words that reveal nothing."""

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest
from teamlore.index.v1 import index_pb2
from teamlore.sync.v1 import sync_pb2

from kit import audit
from kit.barrier import Barrier
from kit.database import Database
from kit.sealing import KeyStore
from kit.validation import violations_of
from services.sync.neighbours import LONGEST_ASKED, IndexClient, question
from services.sync.pushing import FORGOTTEN, METADATA_DIFFERS, TAKEN, UNREADABLE, Answer, Known, Pusher
from services.sync.records import Draft, Rejected, judge
from services.sync.store import QUERIES, Store

BARRIER = Barrier("redact")
BANK = "project:push-1a2b3c4d"


class Index:
    """Stands in for the index's answer alone: which id nearly repeats which, or that it cannot be asked."""

    def __init__(self) -> None:
        self.answer: Mapping[str, str] | None = {}

    async def find(self, bank: str, drafts: Sequence[Draft], threshold: float) -> Mapping[str, str] | None:
        return self.answer


def record(memory_id: str, text: str = "We use SQS.", **more: object) -> sync_pb2.Record:
    return sync_pb2.Record(id=memory_id, text=text, **more)


class Bench:
    def __init__(self, pusher: Pusher, store: Store, index: Index, heard: list[str]) -> None:
        self.pusher, self.store, self.index, self.heard = pusher, store, index, heard

    async def push(
        self, *records: sync_pb2.Record, bank: str = BANK, author: str = "user:alice"
    ) -> list[Answer]:
        with audit.calling(audit.CallContext("memory.push", author, "t")):
            answers, _ = await self.pusher.push(bank, author, [judge(r, BARRIER) for r in records])
        return answers


@pytest.fixture
async def bench(database_url: str, tmp_path: Path) -> AsyncIterator[Bench]:
    database = await Database.connect(database_url, "sync", QUERIES)
    heard: list[str] = []
    store, index = Store(database, heard.append), Index()
    yield Bench(Pusher(store, KeyStore(tmp_path / "k.db", make=True), index, True), store, index, heard)
    await database.close()


async def test_the_same_push_twice_stores_once(bench: Bench) -> None:
    first = await bench.push(record("aaaaaaaa", tags=["t"]))
    again = await bench.push(record("aaaaaaaa", tags=["t"]))
    other = await bench.push(record("aaaaaaaa", tags=["u"]))
    assert first == [Answer("aaaaaaaa", "stored")]
    assert again == [Answer("aaaaaaaa", "unchanged")]
    assert other == [Answer("aaaaaaaa", "unchanged", METADATA_DIFFERS)]
    assert bench.heard == [BANK]


async def test_another_text_and_another_bank_get_the_same_words(bench: Bench) -> None:
    await bench.push(record("aaaaaaaa"))
    here = await bench.push(record("aaaaaaaa", "We use Kafka."))
    there = await bench.push(record("aaaaaaaa"), bank="project:other-1a2b3c4d")
    assert here == there == [Answer("aaaaaaaa", "rejected", TAKEN)]


async def test_a_forgotten_and_an_erased_id_never_return(bench: Bench) -> None:
    await bench.push(record("aaaaaaaa"), record("bbbbbbbb", "other"))
    with audit.calling(audit.CallContext("memory.forget", "user:alice", "t")):
        assert await bench.store.forget(BANK, ["aaaaaaaa"]) == 1
        assert (await bench.store.erase(BANK, ["bbbbbbbb"], "user:alice", "op")).erased == 1
    answers = await bench.push(record("aaaaaaaa"), record("bbbbbbbb", "other"))
    assert [a.reason for a in answers] == [FORGOTTEN, FORGOTTEN]


async def test_an_id_twice_in_a_batch(bench: Bench) -> None:
    answers = await bench.push(record("aaaaaaaa"), record("aaaaaaaa"), record("aaaaaaaa", "else"))
    assert [a.status for a in answers] == ["stored", "unchanged", "rejected"]


async def test_near_duplicates_are_named_and_a_silent_index_stores(bench: Bench) -> None:
    await bench.push(record("aaaaaaaa"))
    bench.index.answer = {"bbbbbbbb": "aaaaaaaa"}
    assert await bench.push(record("bbbbbbbb")) == [Answer("bbbbbbbb", "duplicate", duplicate_of="aaaaaaaa")]
    bench.index.answer = None
    with audit.calling(audit.CallContext("memory.push", "user:alice", "t")):
        answers, skipped = await bench.pusher.push(BANK, "user:alice", [judge(record("bbbbbbbb"), BARRIER)])
    assert (answers[0].status, skipped) == ("stored", True)


async def test_a_memory_whose_key_is_lost_stops_no_other_record(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.push(record("aaaaaaaa"))
    elsewhere = Pusher(bench.store, KeyStore(tmp_path / "other.db", make=True), bench.index, True)
    bench.pusher = elsewhere
    answers = await bench.push(record("aaaaaaaa"), record("bbbbbbbb", "other"))
    assert [(a.status, a.reason) for a in answers] == [("rejected", UNREADABLE), ("stored", "")]
    assert "ALARM" in caplog.text and "aaaaaaaa" in caplog.text


async def test_one_that_is_erased_while_it_is_compared_was_forgotten(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.push(record("aaaaaaaa"))
    real = bench.store.lookup

    async def lookup(ids: Sequence[str]) -> Mapping[str, Known]:
        found = await real(ids)
        row = found["aaaaaaaa"].row
        if row is not None:
            with audit.calling(audit.CallContext("memory.forget", "user:alice", "t")):
                await bench.store.erase(BANK, ["aaaaaaaa"], "user:alice", "op")
            bench.pusher._keys.destroy([row.slot])
        return found

    monkeypatch.setattr(bench.store, "lookup", lookup)
    assert [a.reason for a in await bench.push(record("aaaaaaaa"))] == [FORGOTTEN]


def test_system_keys_and_secrets_are_dropped_and_the_hash_is_of_the_text_as_sent() -> None:
    sent = record("aaaaaaaa", "key AKIAIOSFODNN7EXAMPL2")
    for key in ("_actor", "_authority_tier", "_retain_id", "password", "source"):
        sent.metadata[key].string_value = "x"
    sent.content_hash = "sha256:" + hashlib.sha256(sent.text.encode()).hexdigest()
    sent.metadata["source"].string_value = "AKIAIOSFODNN7EXAMPL2"
    sent.tags.append("AKIAIOSFODNN7EXAMPL2")
    draft = judge(sent, BARRIER)
    assert isinstance(draft, Draft)
    content = sync_pb2.MemoryContent.FromString(draft.content)
    assert sorted(content.metadata) == ["_retain_id", "source"] and b"AKIA" not in draft.content


@pytest.mark.parametrize(
    ("spoiled", "named"),
    [
        (record("short"), "id"),
        (record("aaaaaaaa", ""), "text"),
        (record("aaaaaaaa", "x" * 50_001), "text"),
        (record("aaaaaaaa", "a\0b"), "text"),
        (record("aaaaaaaa", content_hash="sha256:" + "0" * 64), "content_hash"),
        (record("aaaaaaaa", fact_type="Not A Word"), "fact_type"),
        (record("aaaaaaaa", tags=[""]), "tags"),
    ],
)
def test_a_bad_record_is_rejected_by_the_name_of_its_field(spoiled: sync_pb2.Record, named: str) -> None:
    found = judge(spoiled, BARRIER)
    assert isinstance(found, Rejected) and found.reason.startswith(named)


SECRET = "api_key=abcdef "


@pytest.mark.parametrize(
    ("grown", "reason"),
    [
        (record("aaaaaaaa", SECRET * 3333), "text: must be at most 50000 characters, and has 116655 with"),
        (record("aaaaaaaa", tags=["x" * 85 + " " + SECRET[:-1]]), "tags: must be at most 100 characters"),
    ],
)
def test_what_a_redaction_makes_too_long_is_rejected_by_its_size(
    grown: sync_pb2.Record, reason: str
) -> None:
    assert violations_of(grown) == []
    found = judge(grown, BARRIER)
    assert isinstance(found, Rejected) and found.reason.startswith(reason) and "abcdef" not in found.reason
    assert isinstance(judge(grown, Barrier("off")), Draft)


def drafts(*texts: str) -> list[Draft]:
    return [Draft(f"draft-{number:03}", text, b"", "", None) for number, text in enumerate(texts)]


def test_no_record_costs_its_push_the_near_duplicate_check() -> None:
    odd = [" ", "x" * 60_000, "y" * 50_000, "\u3000\u00a0", "z " * LONGEST_ASKED, "plain  words\n"]
    candidates, _ = question(drafts(*odd, " " * 60_000 + "padded", *["\U0001f642" * LONGEST_ASKED] * 90))
    request = index_pb2.FindNearDuplicatesRequest(bank=BANK, candidates=candidates, threshold=0.95)
    assert violations_of(request) == []
    assert [candidate.text[:20] for candidate in candidates][:2] == ["plain words", "padded"]
    widest, _ = question(drafts(*(chr(0x1F600 + n) * LONGEST_ASKED for n in range(100))))
    request = index_pb2.FindNearDuplicatesRequest(bank=BANK, candidates=widest, threshold=0.95)
    assert len(widest) == 100 and request.ByteSize() < 4 * 1024 * 1024


async def test_equal_texts_of_one_push_are_one_whatever_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    client = IndexClient("127.0.0.1:1", "")
    long = "w" * 60_000
    found = await client.find(BANK, drafts(long, long + " ", "v" * 60_000), 0.95)
    assert found == {"draft-001": "draft-000"}

    class Stub:
        def __init__(self, channel: object) -> None: ...

        async def FindNearDuplicates(self, request: index_pb2.FindNearDuplicatesRequest, **_: object) -> object:
            assert [candidate.id for candidate in request.candidates] == ["draft-000", "draft-002"]
            return index_pb2.FindNearDuplicatesResponse(
                results=[index_pb2.NearDuplicate(id="draft-000", duplicate_of="stored00")]
            )

    monkeypatch.setattr("services.sync.neighbours.index_pb2_grpc.IndexServiceStub", Stub)
    found = await client.find(BANK, drafts("one", " one", "two", "two"), 0.95)
    assert found == {"draft-000": "stored00", "draft-001": "stored00", "draft-003": "draft-002"}
    await client.close()
