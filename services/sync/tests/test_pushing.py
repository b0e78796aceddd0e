"""What becomes of each record: stored, unchanged, duplicate or rejected; in words that reveal nothing."""

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import protovalidate
import pytest
from google.protobuf.struct_pb2 import Value
from teamlore.common.v1.citation_pb2 import Citation
from teamlore.index.v1 import index_pb2
from teamlore.sync.v1 import sync_pb2

from kit import audit
from kit.access import Caller, Grant
from kit.barrier import Barrier
from kit.database import Database
from kit.errors import Refusal
from kit.identity import set_caller
from kit.pii import PersonalData
from kit.sealing import KeyStore
from kit.validation import violations_of
from services.sync import standing, store
from services.sync.handlers import SyncHandlers
from services.sync.neighbours import LONGEST_ASKED, IndexClient, question
from services.sync.pushing import FORGOTTEN, METADATA_DIFFERS, TAKEN, UNREADABLE, Answer, Known, Pusher, Terms
from services.sync.records import Draft, Rejected, judge
from services.sync.store import QUERIES, Store

BARRIER = Barrier("redact")
NO_PII = PersonalData("off")
BANK = "project:push-1a2b3c4d"


class Index:
    """Stands in for the index's answer alone: which id nearly repeats which, or that it cannot be asked."""

    def __init__(self) -> None:
        self.answer: Mapping[str, str] | None = {}
        self.asked: list[float] = []

    async def find(self, bank: str, drafts: Sequence[Draft], threshold: float) -> Mapping[str, str] | None:
        if self.answer:
            self.asked.append(threshold)
        await self.meanwhile()
        if self.answer is None:
            return None
        return {draft.id: self.answer[draft.id] for draft in drafts if draft.id in self.answer}

    async def meanwhile(self) -> None:
        """What others do while the index looks; nothing, unless a test says so."""


def record(memory_id: str, text: str = "We use SQS.", **more: object) -> sync_pb2.Record:
    return sync_pb2.Record(id=memory_id, text=text, **more)


class Bench:
    def __init__(self, url: str, database: Database, keys: KeyStore) -> None:
        self.url, self.database, self.keys = url, database, keys
        self.index, self.heard = Index(), list[str]()
        self.under(Terms())

    def under(self, terms: Terms) -> None:
        """Goes on as a deployment with these terms."""
        self.store = Store(self.database, self.heard.append, quota=terms.records_per_day > 0)
        self.pusher = Pusher(self.store, self.keys, self.index, terms)

    async def superuser(self, sql: str, *args: object) -> Any:
        connection = await asyncpg.connect(self.url)
        try:
            return await connection.fetchval(sql, *args)
        finally:
            await connection.close()

    async def push(
        self, *records: sync_pb2.Record, bank: str = BANK, author: str = "user:alice"
    ) -> list[Answer]:
        with audit.calling(audit.CallContext("memory.push", author, "t")):
            answers, _ = await self.pusher.push(bank, author, records)
        return answers


@pytest.fixture
async def bench(database_url: str, tmp_path: Path) -> AsyncIterator[Bench]:
    database = await Database.connect(database_url, "sync", QUERIES)
    yield Bench(database_url, database, KeyStore(tmp_path / "k.db", make=True))
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
        answers, skipped = await bench.pusher.push(BANK, "user:alice", [record("bbbbbbbb")])
    assert (answers[0].status, skipped) == ("stored", True)


async def test_a_memory_whose_key_is_lost_stops_no_other_record(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.push(record("aaaaaaaa"))
    elsewhere = Pusher(bench.store, KeyStore(tmp_path / "other.db", make=True), bench.index, Terms())
    bench.pusher = elsewhere
    answers = await bench.push(record("aaaaaaaa"), record("bbbbbbbb", "other"))
    assert [(a.status, a.reason) for a in answers] == [("rejected", UNREADABLE), ("stored", "")]
    assert "ALARM" in caplog.text and "aaaaaaaa" in caplog.text


async def test_one_that_is_erased_while_it_is_compared_was_forgotten(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.push(record("aaaaaaaa"))
    real = bench.store.lookup

    async def lookup(bank: str, ids: Sequence[str]) -> Mapping[str, Known]:
        found = await real(bank, ids)
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
    draft = judge(sent, BARRIER, NO_PII)
    assert isinstance(draft, Draft)
    content = sync_pb2.MemoryContent.FromString(draft.content)
    assert sorted(content.metadata) == ["_retain_id", "source"] and b"AKIA" not in draft.content


def numbers_and_names() -> sync_pb2.Record:
    """Metadata whose secrets show only under their keys or in their decimal text."""
    return record(
        "aaaaaaaa", "plain words",
        metadata={
            "DB_PASSWORD": Value(string_value="hunter2hunter2"), "client_secret": Value(number_value=20251130),
            "password ": Value(string_value="abc"), "card": Value(number_value=4111111111111111),
            "total_tokens": Value(number_value=152340), "seconds": Value(number_value=0.25), "count": Value(number_value=-3),
            "done": Value(bool_value=True),
        },
    )  # fmt: skip


def test_a_value_is_read_under_its_key_and_a_number_as_its_decimal_text() -> None:
    draft = judge(numbers_and_names(), BARRIER, PersonalData("redact"))
    assert isinstance(draft, Draft)
    kept = sync_pb2.MemoryContent.FromString(draft.content).metadata
    assert dict(kept) == {
        "DB_PASSWORD": Value(string_value="[redacted: Secret Keyword]"),
        "client_secret": Value(string_value="[redacted: Secret Keyword]"),
        "card": Value(string_value="[redacted: CREDIT CARD]"), "total_tokens": Value(number_value=152340),
        "seconds": Value(number_value=0.25), "count": Value(number_value=-3), "done": Value(bool_value=True),
    }  # fmt: skip
    untouched = judge(numbers_and_names(), Barrier("off"), NO_PII)
    assert isinstance(untouched, Draft) and b"hunter2hunter2" in untouched.content


def test_what_a_key_or_a_number_gives_away_is_refused_where_secrets_and_persons_are() -> None:
    for field, barrier, personal, kind in (
        ("DB_PASSWORD", "reject", "off", "Secret Keyword"), ("client_secret", "reject", "off", "Secret Keyword"),
        ("card", "off", "reject", "CREDIT CARD"),
    ):  # fmt: skip
        sent = record("aaaaaaaa", metadata={field: numbers_and_names().metadata[field]})
        judged = judge(sent, Barrier(barrier), PersonalData(personal))
        assert isinstance(judged, Rejected), field
        assert judged.reason.startswith("metadata: holds") and judged.reason.endswith(f": {kind}"), field
        assert isinstance(judge(sent, Barrier("off"), NO_PII), Draft)


def test_a_refusal_names_the_fields_and_the_kinds() -> None:
    token, key = "ghp_" + "a" * 36, "AKIAIOSFODNN7EXAMPL2"
    for sent, reason in (
        (record("aaaaaaaa", key), "text: holds what looks like a secret: AWS Access Key"),
        (record("aaaaaaaa", tags=[key]), "tags: holds what looks like a secret: AWS Access Key"),
        (
            record("aaaaaaaa", citations=[Citation(excerpt=key)]),
            "citations: holds what looks like a secret: AWS Access Key",
        ),
        (
            record("aaaaaaaa", key, tags=[token]),
            "tags, text: holds what looks like a secret: AWS Access Key, GitHub Token",
        ),
    ):
        assert judge(sent, Barrier("reject"), NO_PII) == Rejected("aaaaaaaa", reason)
    person = record("aaaaaaaa", "plain words", tags=["ola@example.com"])
    judged = judge(person, BARRIER, PersonalData("reject"))
    assert judged == Rejected("aaaaaaaa", "tags: holds what looks like personal data: EMAIL")


@pytest.mark.parametrize("secret", ["ghp_" + "a" * 36, "AKIAIOSFODNN7EXAMPL2", "AKIAIOSFODNN7EXAMPLE"])
def test_an_id_that_looks_like_a_secret_is_refused_and_never_repeated(secret: str) -> None:
    for action in ("redact", "reject"):
        assert judge(record(secret), Barrier(action), NO_PII) == Rejected(secret, "id: looks like a secret")
    assert isinstance(judge(record(secret), Barrier("off"), NO_PII), Draft)


SPOILED = "sk_live_" + "a1b2" * 6


def test_a_kind_of_fact_that_looks_like_a_secret_is_refused_like_an_id() -> None:
    sent = record("aaaaaaaa", fact_type=SPOILED)
    for action in ("redact", "reject"):
        assert judge(sent, Barrier(action), NO_PII) == Rejected("aaaaaaaa", "fact_type: looks like a secret")
    assert isinstance(judge(sent, Barrier("off"), NO_PII), Draft)
    assert isinstance(judge(record("aaaaaaaa", fact_type="token_secret"), BARRIER, NO_PII), Draft)


@pytest.mark.parametrize("action", ["redact", "reject", "off"])
async def test_no_bank_is_made_under_a_secret_and_one_that_is_there_goes_on(bench: Bench, action: str) -> None:
    bench.under(Terms(barrier=action))
    handlers, spoiled = SyncHandlers(bench.store, bench.keys, bench.pusher), f"project:{SPOILED}"

    async def forget(bank: str) -> None:
        with audit.calling(audit.CallContext("memory.forget", "user:bob", "t")):
            await handlers.Forget(sync_pb2.ForgetRequest(bank=bank, memory_ids=["bbbbbbbb"]), None)

    set_caller(Caller("user:bob", "person", "t", (Grant("project:*", frozenset({"write", "forget"})),)))
    try:
        if action == "off":
            await forget(f"{spoiled}-2")
        else:
            for refused in (bench.push(record("aaaaaaaa"), bank=spoiled), forget(spoiled)):
                with pytest.raises(Refusal) as caught:
                    await refused
                assert (caught.value.reason, caught.value.violations[0].field) == ("FIELD_INVALID", "bank")
                assert SPOILED not in str(caught.value)
            assert await bench.superuser("select count(*) from memory.banks") == 0
            await bench.superuser("select memory.open_bank($1)", spoiled)
        assert await bench.push(record("aaaaaaaa"), bank=spoiled) == [Answer("aaaaaaaa", "stored")]
        await forget(spoiled)
    finally:
        set_caller(None)


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
        (record("aaaaaaaa", citations=[Citation(uri="file:///home/alice/notes.md")]), "citations[0].uri"),
        (record("aaaaaaaa", citations=[Citation(uri="/home/alice/notes.md")]), "citations[0].uri"),
        (record("aaaaaaaa", citations=[Citation(uri="repo:/etc/passwd")]), "citations[0].uri"),
        (record("aaaaaaaa", citations=[Citation(excerpt="x" * 2001)]), "citations[0].excerpt"),
        (record("aaaaaaaa", citations=[Citation(excerpt="x")] * 21), "citations"),
        (record("aaaaaaaa", citations=[Citation(excerpt="x"), Citation(excerpt=" ")]), "citations: each"),
        (record("aaaaaaaa", fact_type="claim"), "citations: a claim"),
    ],
)
def test_a_bad_record_is_rejected_by_the_name_of_its_field(spoiled: sync_pb2.Record, named: str) -> None:
    found = judge(spoiled, BARRIER, NO_PII)
    assert isinstance(found, Rejected) and found.reason.startswith(named)


def test_what_a_record_cites_is_kept_without_its_secrets() -> None:
    excerpt = "the key is AKIAIOSFODNN7EXAMPL2, and we keep SQS"
    cited = [
        Citation(uri="https://wiki.example.com/queues"),
        Citation(uri="repo:docs/adr/0003.md@4f2a#L1", excerpt=excerpt),
    ]
    draft = judge(record("aaaaaaaa", fact_type="claim", citations=cited), BARRIER, NO_PII)
    assert isinstance(draft, Draft)
    content = sync_pb2.MemoryContent.FromString(draft.content)
    assert [each.uri for each in content.citations] == [each.uri for each in cited]
    assert content.citations[1].excerpt == "the key is [redacted: AWS Access Key], and we keep SQS"
    whole = [
        Citation(excerpt="AKIAIOSFODNN7EXAMPL2 " + "x" * 1979)
    ]  # a redaction is longer than what it takes the place of
    judged = judge(record("aaaaaaaa", citations=whole), BARRIER, NO_PII)
    assert isinstance(judged, Rejected) and judged.reason.startswith("citations: must be at most 2000")


@pytest.mark.parametrize("text", [" \n\t", "\u200b\u00ad", "\u2800\u3164", "\u0301"])
def test_a_text_without_a_visible_character_is_rejected(text: str) -> None:
    assert judge(record("aaaaaaaa", text), BARRIER, NO_PII) == Rejected(
        "aaaaaaaa", "text: must hold a visible character"
    )
    assert isinstance(judge(record("aaaaaaaa", text + "\u20ac"), BARRIER, NO_PII), Draft)


def test_keys_that_redact_to_one_are_rejected_not_dropped() -> None:
    secrets = [f"tlk_{number:043d}" for number in range(60)]
    spoiled = record("aaaaaaaa", metadata={key: Value(bool_value=True) for key in secrets[:2]})
    judged = judge(spoiled, BARRIER, NO_PII)
    assert isinstance(judged, Rejected) and judged.reason.startswith("metadata: ")
    assert isinstance(
        judge(record("aaaaaaaa", metadata={secrets[0]: Value(bool_value=True)}), BARRIER, NO_PII), Draft
    )


def test_a_record_is_measured_before_anything_reads_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[object]()
    check, collect = Barrier.check, protovalidate.collect_violations
    monkeypatch.setattr(Barrier, "check", lambda self, text: (read.append(text), check(self, text))[1])
    monkeypatch.setattr(
        protovalidate,
        "collect_violations",
        lambda message, **more: (read.append(message), collect(message, **more))[1],
    )
    nested = record("aaaaaaaa")
    nested.metadata["a"].list_value.values.extend([Value(bool_value=True)] * 1000)
    spoiled = {
        "tags": record("aaaaaaaa", tags=[""] * 51),
        "tags[1]": record("aaaaaaaa", tags=["t", "t" * 101]),
        "text": record("aaaaaaaa", "x" * 50_001),
        "id": record("a" * 1001),
        "metadata": record("aaaaaaaa", metadata={str(n): Value(bool_value=True) for n in range(69)}),
        "metadata: a value": nested,
    }
    for named, each in spoiled.items():
        judged = judge(each, BARRIER, NO_PII)
        assert isinstance(judged, Rejected) and judged.reason.startswith(named) and read == []
    large = record("aaaaaaaa", metadata={"a": Value(string_value="x" * 5000)})
    judged = judge(large, BARRIER, NO_PII)
    assert isinstance(judged, Rejected) and judged.reason.startswith("metadata: ")
    assert not any(isinstance(each, str) for each in read)


async def test_a_quota_counts_what_is_stored_and_overshoots_by_one_batch_at_most(bench: Bench) -> None:
    bench.under(Terms(records_per_day=5))

    def some(letter: str, count: int) -> list[sync_pb2.Record]:
        return [record(f"{letter}{number:07}", f"{letter} {number}") for number in range(count)]

    used = "select coalesce(sum(records), 0)::int from memory.quota_use where principal = 'user:alice'"
    first = some("a", 4)
    assert {a.status for a in await bench.push(*first)} == {"stored"}
    assert {a.status for a in await bench.push(*first)} == {"unchanged"}  # costs nothing
    assert await bench.superuser(used) == 4
    assert {a.status for a in await bench.push(*some("b", 4))} == {"stored"}  # 4 of 5: the whole batch passes
    assert await bench.superuser(used) == 8
    with pytest.raises(Refusal) as caught:
        await bench.push(*some("c", 1))
    left = await bench.superuser(
        "select extract(epoch from date_trunc('day', now() at time zone 'utc') + interval '1 day'"
        " - (now() at time zone 'utc'))::float8"
    )
    assert caught.value.reason == "QUOTA_EXCEEDED"
    assert caught.value.retry_after == pytest.approx(left, abs=60)
    assert await bench.superuser("select count(*) from memory.memories") == 8
    assert [a.status for a in await bench.push(record("dddddddd"), author="user:bob")] == ["stored"]
    await bench.superuser("update memory.quota_use set day = day - 1")
    assert [a.status for a in await bench.push(*some("c", 1))] == ["stored"]
    assert (
        await bench.superuser(
            "select records from memory.quota_use where day = (now() at time zone 'utc')::date"
        )
        == 1
    )


async def test_without_a_quota_nothing_is_counted_and_with_one_only_what_committed(bench: Bench) -> None:
    await bench.push(record("aaaaaaaa"))
    assert await bench.superuser("select count(*) from memory.quota_use") == 0
    bench.under(Terms(records_per_day=5))
    await bench.superuser(
        "create function public.fail() returns trigger language plpgsql as $$ begin raise 'no'; end $$"
    )
    await bench.superuser(
        "create trigger fail before insert on compliance.audit_calls execute function public.fail()"
    )
    with pytest.raises(asyncpg.RaiseError):
        await bench.push(record("bbbbbbbb", "other"))
    assert await bench.superuser("select count(*) from memory.quota_use") == 0


async def test_an_archived_bank_takes_nothing_new_but_forgets_and_erases(bench: Bench) -> None:
    await bench.push(record("aaaaaaaa"), record("bbbbbbbb", "other"))
    await bench.superuser("select memory.archive_bank($1, true)", BANK)
    for sent in (record("cccccccc", "third"), record("aaaaaaaa")):
        with pytest.raises(Refusal) as caught:
            await bench.push(sent)
        assert caught.value.reason == "BANK_ARCHIVED"
    with audit.calling(audit.CallContext("memory.forget", "user:alice", "t")):
        assert await bench.store.forget(BANK, ["aaaaaaaa"]) == 1
        assert (await bench.store.erase(BANK, ["bbbbbbbb"], "user:alice", "op")).erased == 1
    await bench.superuser("select memory.archive_bank($1, false)", BANK)
    assert [a.status for a in await bench.push(record("cccccccc", "third"))] == ["stored"]


@pytest.mark.parametrize("deployment", ["redact", "reject", "off"])
@pytest.mark.parametrize("policy", [None, "redact", "reject", "off"])
async def test_the_banks_barrier_goes_before_the_deployments(
    bench: Bench, deployment: str, policy: str | None
) -> None:
    bench.under(Terms(barrier=deployment))
    await bench.superuser("select memory.put_bank($1, null, null, 'user:alice')", BANK)
    await bench.superuser(
        "select memory.put_policy($1, $2, 'off', null, null, null, null, null)", BANK, policy
    )
    secret = "key AKIAIOSFODNN7EXAMPL2"
    (answer,) = await bench.push(record("aaaaaaaa", secret))
    action = policy or deployment
    assert (answer.status == "rejected") == (action == "reject")
    if action != "reject":
        again = await bench.push(
            record("aaaaaaaa", secret if action == "off" else "key [redacted: AWS Access Key]")
        )
        assert [a.status for a in again] == ["unchanged"]


async def test_the_banks_policy_says_what_becomes_of_personal_data(bench: Bench) -> None:
    await bench.superuser("select memory.put_bank($1, null, null, 'user:alice')", BANK)
    put = "select memory.put_policy($1, null, 'off', null, null, null, null, null, $2)"
    first = record("aaaaaaaa", "write to ola@example.com")
    assert [a.status for a in await bench.push(first)] == ["stored"]
    await bench.superuser(put, BANK, "reject")
    refused = await bench.push(record("bbbbbbbb", "write to ola@example.com"), record("cccccccc", "hello"))
    assert [a.status for a in refused] == ["rejected", "stored"]
    assert "EMAIL" in refused[0].reason and "ola" not in refused[0].reason
    await bench.superuser(put, BANK, "redact")
    again = await bench.push(record("dddddddd", "or to kari@example.com, too"))
    assert [a.status for a in again] == ["stored"]
    again = await bench.push(record("dddddddd", "or to [redacted: EMAIL], too"))
    assert [a.status for a in again] == ["unchanged"]


async def test_the_banks_policy_says_what_a_near_duplicate_is_and_becomes(bench: Bench) -> None:
    await bench.push(record("aaaaaaaa"))
    bench.index.answer = {"bbbbbbbb": "aaaaaaaa"}
    put = "select memory.put_policy($1, null, $2, $3, null, null, null, null)"
    await bench.superuser(put, BANK, "warn", 0.75)
    (answer,) = await bench.push(record("bbbbbbbb"))
    assert (answer.status, answer.reason) == ("stored", "near-duplicate of aaaaaaaa")
    assert bench.index.asked == [0.75]
    await bench.superuser(put, BANK, "off", None)
    bench.index.answer = {"cccccccc": "aaaaaaaa"}
    assert await bench.push(record("cccccccc")) == [Answer("cccccccc", "stored")]
    assert len(bench.index.asked) == 1


async def test_the_first_to_push_owns_the_bank(bench: Bench) -> None:
    owner = "select owner from memory.banks where bank = $1"
    await bench.push(record("aaaaaaaa"), author="user:carol")
    await bench.push(record("bbbbbbbb", "other"), author="user:bob")
    assert await bench.superuser(owner, BANK) == "user:carol"
    await bench.push(record("cccccccc", "third"), bank="private:user:carol", author="user:carol")
    assert await bench.superuser(owner, "private:user:carol") is None


SECRET = "api_key=abcdef "


@pytest.mark.parametrize(
    ("grown", "reason"),
    [
        (record("aaaaaaaa", SECRET * 3333), "text: must be at most 50000 characters, and has 116655 after"),
        (record("aaaaaaaa", tags=["x" * 85 + " " + SECRET[:-1]]), "tags: must be at most 100 characters"),
    ],
)
def test_what_a_redaction_makes_too_long_is_rejected_by_its_size(grown: sync_pb2.Record, reason: str) -> None:
    assert violations_of(grown) == []
    found = judge(grown, BARRIER, NO_PII)
    assert isinstance(found, Rejected) and found.reason.startswith(reason) and "abcdef" not in found.reason
    assert isinstance(judge(grown, Barrier("off"), NO_PII), Draft)


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


def test_what_belongs_to_another_line_is_asked_about_as_it_is_written() -> None:
    beside, within = "a:\n  b: 1\nc: 2", "a:\n  b: 1\n  c: 2"
    candidates, repeated = question(drafts(beside, within, f"{beside} \n"))
    assert [each.text for each in candidates] == [beside, within]
    assert repeated == {"draft-002": "draft-000"}


async def test_equal_texts_of_one_push_are_one_whatever_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    client = IndexClient("127.0.0.1:1", "")
    long = "w" * 60_000
    found = await client.find(BANK, drafts(long, long + " ", "v" * 60_000), 0.95)
    assert found == {"draft-001": "draft-000"}

    class Stub:
        def __init__(self, channel: object) -> None: ...

        async def FindNearDuplicates(
            self, request: index_pb2.FindNearDuplicatesRequest, **_: object
        ) -> object:
            assert [candidate.id for candidate in request.candidates] == ["draft-000", "draft-002"]
            return index_pb2.FindNearDuplicatesResponse(
                results=[index_pb2.NearDuplicate(id="draft-000", duplicate_of="stored00")]
            )

    monkeypatch.setattr("services.sync.neighbours.index_pb2_grpc.IndexServiceStub", Stub)
    found = await client.find(BANK, drafts("one", " one", "two", "two"), 0.95)
    assert found == {"draft-000": "stored00", "draft-001": "stored00", "draft-003": "draft-002"}
    await client.close()


async def test_each_push_leaves_its_audit_row_and_one_that_stored_nothing_leaves_none(bench: Bench) -> None:
    await bench.push(record("aaaaaaaa"))  # makes the bank
    await bench.push(record("bbbbbbbb", "second"), record("cccccccc", "third"))
    await bench.push(record("bbbbbbbb", "second"))
    rows = "select string_agg(name || ' ' || objects, ', ' order by audit_id) from compliance.audit_calls"
    assert await bench.superuser(rows) == "memory.push 1, memory.push 2"


async def test_what_is_known_is_never_asked_about_as_a_near_duplicate(bench: Bench) -> None:
    await bench.push(record("aaaaaaaa"), record("bbbbbbbb", "We use Kafka."))
    bench.index.answer = {"aaaaaaaa": "bbbbbbbb", "cccccccc": "bbbbbbbb"}
    answers = await bench.push(record("aaaaaaaa"), record("cccccccc", "We use Kafka!"), record("no id"))
    assert [each.status for each in answers] == ["unchanged", "duplicate", "rejected"]
    assert answers[1].duplicate_of == "bbbbbbbb"


async def test_an_id_that_postgres_would_not_take_is_that_records_fault(bench: Bench) -> None:
    answers = await bench.push(
        record("aaaaaaaa"), record("nul\0nul\0"), record("x" * 5000), record("\u00e4" * 9)
    )
    assert [each.status for each in answers] == ["stored", "rejected", "rejected", "rejected"]


BORDERS = [
    (-62_135_596_800, 0),
    (-62_135_596_800, 999),
    (253_402_300_799, 999_999_000),
    (253_402_300_799, 999_999_999),
]


@pytest.mark.parametrize("seconds, nanos", BORDERS)
async def test_the_first_and_the_last_moment_are_kept_as_any(bench: Bench, seconds: int, nanos: int) -> None:
    sent = record("aaaaaaaa")
    sent.occurred_at.seconds, sent.occurred_at.nanos = seconds, nanos
    assert await bench.push(sent) == [Answer("aaaaaaaa", "stored")]
    assert await bench.push(sent) == [Answer("aaaaaaaa", "unchanged")]
    (memory,) = (await standing.opened(bench.store, bench.keys, BANK, ["aaaaaaaa"])).memories
    assert (memory.occurred_at.seconds, memory.occurred_at.nanos) == (seconds, nanos // 1000 * 1000)
    assert await bench.superuser("select isfinite(occurred_at) from memory.memories")


async def test_what_an_older_release_stored_as_infinite_is_set_right(bench: Bench) -> None:
    sent = record("aaaaaaaa")
    sent.occurred_at.FromSeconds(-62_135_596_800)
    await bench.push(sent, record("bbbbbbbb", "other"))
    connection = await asyncpg.connect(bench.url)
    await connection.execute(
        "alter table memory.memories drop constraint finite_times, disable trigger memory_grows;"
        "update memory.memories set occurred_at = '-infinity', last_verified = 'infinity' where id = 'aaaaaaaa';"
        "alter table memory.memories enable trigger memory_grows"
    )
    assert await bench.push(sent) == [Answer("aaaaaaaa", "unchanged")], "it is read as it was meant"
    migration = Path(store.__file__).with_name("migrations") / "0060_post_finite_times.sql"
    async with connection.transaction():
        await connection.execute(migration.read_text())
    rows = await connection.fetch("select occurred_at, last_verified from memory.memories order by id")
    first, last = (moment.replace(tzinfo=UTC) for moment in (datetime.min, datetime.max))
    assert [tuple(row) for row in rows] == [(first, last), (None, None)]
    with pytest.raises(asyncpg.CheckViolationError, match="finite_times"):
        await connection.execute(
            "select * from memory.status($1, 'aaaaaaaa', 1, null, null, null, null, 'infinity', false)", BANK
        )
    with pytest.raises(asyncpg.CheckViolationError, match="without a change"):
        await connection.execute("update memory.memories set version = 2")
    await connection.close()
