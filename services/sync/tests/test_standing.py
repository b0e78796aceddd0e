"""What is held of a memory: compare-and-set, who may vouch as a human, and what a reader by id gets."""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import asyncpg
import pytest
from teamlore.common.v1.citation_pb2 import Citation
from teamlore.sync.v1 import sync_pb2

from kit import audit
from kit.access import Caller
from kit.errors import Refusal
from kit.identity import set_caller
from services.sync import standing
from services.sync.handlers import SyncHandlers
from services.sync.store import StatusChange, Store
from services.sync.tests.test_guard import check_digest
from services.sync.tests.test_pushing import BANK, Bench, record


async def update(
    bench: Bench, memory_id: str, version: int, bank: str = BANK, person: bool = False, **to: Any
) -> Any:
    request = sync_pb2.UpdateStatusRequest(bank=bank, id=memory_id, version=version, **to)
    with audit.calling(audit.CallContext("memory.update_status", "user:bob", "t")):
        change = standing.change_of(request, person)
        return standing.answered(await bench.store.status(bank, memory_id, version, change))


async def digest_holds(bench: Bench) -> None:
    connection = await asyncpg.connect(bench.url)
    await check_digest(connection, BANK)
    await connection.close()


async def test_a_change_is_a_step_of_the_feed_and_the_digest_follows(bench: Bench) -> None:
    await bench.push(record("aaaaaaaa"), record("bbbbbbbb", "other"))
    done = await update(
        bench, "aaaaaaaa", 1, status="superseded", superseded_by="bbbbbbbb", may_be_stale=True
    )
    assert (done.version, done.seq) == (2, 3)
    await digest_holds(bench)
    assert await bench.superuser("select kind from memory.changes where seq = 3") == "status"
    row = await bench.superuser(
        "select row(status, superseded_by, may_be_stale, trust, version)::text from memory.memories where id = 'aaaaaaaa'"
    )
    assert row == "(superseded,bbbbbbbb,t,extracted,2)"
    # The same again changes nothing, and takes no number.
    assert (await update(bench, "aaaaaaaa", 2, status="superseded")).seq == 3
    cleared = await update(bench, "aaaaaaaa", 2, superseded_by="")
    assert (cleared.version, cleared.seq) == (3, 4)
    assert (
        await bench.superuser(
            "select row(status, superseded_by)::text from memory.memories where version = 3"
        )
        == '(superseded,"")'
    )


async def test_of_many_who_have_seen_one_version_one_wins(bench: Bench) -> None:
    await bench.push(record("aaaaaaaa"))
    words = ["suspect", "contradicted", "superseded"] * 3
    random.shuffle(words)
    answers = await asyncio.gather(
        *(update(bench, "aaaaaaaa", 1, status=word) for word in words), return_exceptions=True
    )
    lost = [answer for answer in answers if isinstance(answer, Refusal)]
    assert len(lost) == 8
    assert {(each.reason, each.metadata["version"]) for each in lost} == {("VERSION_CONFLICT", "2")}
    assert await bench.superuser("select head from memory.heads") == 2


async def test_only_a_present_person_vouches_as_human(bench: Bench) -> None:
    await bench.push(record("aaaaaaaa"))
    with pytest.raises(Refusal) as caught:
        await update(bench, "aaaaaaaa", 1, trust="human")
    assert caught.value.reason == "HUMAN_TRUST_REQUIRES_PERSON"
    assert (await update(bench, "aaaaaaaa", 1, trust="agent_verified")).version == 2
    assert (await update(bench, "aaaaaaaa", 2, person=True, trust="human")).version == 3


@pytest.mark.parametrize(
    "change",
    [{"status": "contradicted"}, {"may_be_stale": True}, {"last_verified": datetime.now(UTC)},
     {"superseded_by": "bbbbbbbb"}],
)  # fmt: skip
@pytest.mark.parametrize("person", [False, True])
async def test_what_a_person_vouched_for_is_human_until_another_than_a_person_changes_it(
    bench: Bench, change: dict[str, Any], person: bool
) -> None:
    await bench.push(record("aaaaaaaa"), record("bbbbbbbb", "other"))
    await update(bench, "aaaaaaaa", 1, person=True, trust="human")
    trust = "select trust from memory.memories where id = 'aaaaaaaa'"
    assert (await update(bench, "aaaaaaaa", 2, status="current", may_be_stale=False)).version == 2
    assert await bench.superuser(trust) == "human", "what changes nothing takes no word away"
    assert (await update(bench, "aaaaaaaa", 2, person=person, **change)).version == 3
    assert await bench.superuser(trust) == ("human" if person else "agent_verified")
    # The form that a replica of the release before calls knows of no person.
    old = f"select memory.status('{BANK}', 'aaaaaaaa', 3, 'suspect', null, null, null, null)"
    await bench.superuser(old)
    assert await bench.superuser(trust) == "agent_verified"


async def vouched(bench: Bench, memory_id: str, version: int, trust: str) -> int:
    """The version after a person's word, through the handler."""
    handlers = SyncHandlers(bench.store, bench.keys, bench.pusher)
    request = sync_pb2.UpdateStatusRequest(bank=BANK, id=memory_id, version=version, trust=trust)
    set_caller(Caller("user:bob", "person", "t", person_present=True))
    try:
        with audit.calling(audit.CallContext("memory.update_status", "user:bob", "t")):
            return (await handlers.UpdateStatus(request, None)).version
    finally:
        set_caller(None)


class Raced(Store):
    """Whoever looks at a memory has others act before he does."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def live(self, bank: str, ids: Sequence[str]) -> list[Any]:
        rows = await super().live(bank, ids)
        if self.meanwhile:
            await self.meanwhile()
        return rows


DONE = ("nothing", "pushed", "changed")


@pytest.mark.parametrize("sourced", [False, True])
async def test_who_vouches_changes_the_very_version_that_was_looked_at(bench: Bench, sourced: bool) -> None:
    cited = Citation(uri="https://wiki.example.com/q") if sourced else Citation(excerpt="from a call")
    raced = bench.store = Raced(bench.database, bench.heard.append)

    async def act(memory_id: str, what: str) -> None:
        if what != "nothing":
            await bench.push(record(memory_id, memory_id, fact_type="claim", citations=[cited]))
        if what == "changed":
            version = await bench.superuser("select version from memory.memories where id = $1", memory_id)
            await update(bench, memory_id, version, may_be_stale=version % 2 == 1)

    for at, (before, meanwhile, version) in enumerate(itertools.product(DONE, DONE, (1, 2))):
        memory_id, looked, raced.meanwhile = f"claimed-{at}", DONE.index(before), None
        await act(memory_id, before)
        raced.meanwhile = partial(act, memory_id, meanwhile)
        reason, stood = "", "extracted" if "nothing" != before or "nothing" != meanwhile else None
        try:
            await vouched(bench, memory_id, version, "agent_verified")
            stood = "agent_verified"
        except Refusal as refusal:
            reason = refusal.reason
        if not looked:
            assert reason == "NOT_FOUND"
        elif looked != version or (meanwhile == "changed" and sourced):
            assert reason == "VERSION_CONFLICT"
        else:
            assert reason == ("" if sourced else "FIELD_INVALID")
        assert await bench.superuser("select trust from memory.memories where id = $1", memory_id) == stood


@pytest.mark.parametrize(
    "uri",
    ["http://localhost:3000/notes", "https://example.com/?token=ghp_aB3dE5fG7hI9jK1lM3nO5pQ7rS9tU1vW3xY5", "http://wiki/x",
     "https://192.168.1.4/", "repo:~/notes.md", "repo:docs/tlk_" + "Ab" * 21 + "c"],
)  # fmt: skip
async def test_a_source_that_teammates_cannot_open_vouches_for_nothing(bench: Bench, uri: str) -> None:
    pushed = await bench.push(record("claimed1", "a", fact_type="claim", citations=[Citation(uri=uri)]))
    assert pushed[0].status == "stored"
    with pytest.raises(Refusal) as caught:
        await vouched(bench, "claimed1", 1, "agent_verified")
    assert (caught.value.reason, caught.value.violations[0].field) == ("FIELD_INVALID", "trust")


@pytest.mark.parametrize("trust", standing.VOUCHED)
async def test_a_claim_without_a_source_to_open_is_at_most_inferred(bench: Bench, trust: str) -> None:
    words, source = Citation(excerpt="from a call"), Citation(uri="https://wiki.example.com/queues")
    await bench.push(
        record("excerpt1", "a", fact_type="claim", citations=[words]),
        record("sourced1", "b", fact_type="claim", citations=[words, source]),
        record("plain001", "c", fact_type="decision"),
    )
    with pytest.raises(Refusal) as caught:
        await vouched(bench, "excerpt1", 1, trust)
    assert (caught.value.reason, caught.value.violations[0].field) == ("FIELD_INVALID", "trust")
    assert await vouched(bench, "excerpt1", 1, "agent_inferred") == 2
    assert await vouched(bench, "sourced1", 1, trust) == 2
    assert await vouched(bench, "plain001", 1, trust) == 2
    with pytest.raises(Refusal) as caught:
        await vouched(bench, "nowhere1", 1, trust)
    assert caught.value.reason == "NOT_FOUND"


@pytest.mark.parametrize("successor", ["aaaaaaaa", "nowhere1", "elsewhere", "hidden01"])
async def test_a_successor_is_another_live_memory_of_the_bank(bench: Bench, successor: str) -> None:
    await bench.push(record("aaaaaaaa"), record("hidden01", "hidden"))
    await bench.push(record("elsewhere", "there"), bank="project:other-1")
    with audit.calling(audit.CallContext("memory.forget", "user:bob", "t")):
        await bench.store.forget(BANK, ["hidden01"])
    with pytest.raises(Refusal) as caught:
        await update(bench, "aaaaaaaa", 1, superseded_by=successor)
    assert (caught.value.reason, caught.value.violations[0].field) == ("FIELD_INVALID", "superseded_by")


@pytest.mark.parametrize("length", [2, 3, 5])
async def test_nothing_takes_the_place_of_what_took_its_own(bench: Bench, length: int) -> None:
    ids = [f"circle-{number}" for number in range(length)]
    await bench.push(*(record(memory_id, f"text of {memory_id}") for memory_id in [*ids, "outside1"]))
    for old, new in itertools.pairwise(ids):
        await update(bench, old, 1, status="superseded", superseded_by=new)
    with pytest.raises(Refusal) as caught:
        await update(bench, ids[-1], 1, status="superseded", superseded_by=ids[0])
    assert (caught.value.reason, caught.value.violations[0].field) == ("FIELD_INVALID", "superseded_by")
    assert (await update(bench, ids[-1], 1, superseded_by="outside1")).version == 2
    # Where the way back leads over one that is gone, there is none.
    with audit.calling(audit.CallContext("memory.forget", "user:bob", "t")):
        await bench.store.erase(BANK, [ids[1]], "user:bob", "op")
    if length > 2:
        assert (await update(bench, ids[-1], 2, superseded_by=ids[0])).version == 3


async def test_a_circle_that_is_there_is_no_successor(bench: Bench) -> None:
    await bench.push(*(record(f"circle-{number}", f"text {number}") for number in range(3)))
    await bench.superuser("alter table memory.memories disable trigger memory_grows")
    await bench.superuser(
        "update memory.memories set superseded_by = 'circle-' || (3 - right(id, 1)::int) where id > 'circle-0'"
    )
    with pytest.raises(Refusal):
        await update(bench, "circle-0", 1, superseded_by="circle-1")


@pytest.mark.parametrize("other", ["names the first", "is forgotten"])
async def test_of_two_at_once_the_later_sees_the_earlier(bench: Bench, other: str) -> None:
    await bench.push(record("aaaaaaaa"), record("bbbbbbbb", "other"))
    head = await asyncpg.connect(bench.url)
    held = head.transaction()
    await held.start()
    await head.execute("select from memory.heads where bank = $1 for update", BANK)

    async def forgotten() -> None:
        with audit.calling(audit.CallContext("memory.forget", "user:bob", "t")):
            await bench.store.forget(BANK, ["bbbbbbbb"])

    async def waiting(count: int) -> None:
        stuck = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        async with asyncio.timeout(20):
            while await bench.superuser(stuck) < count:
                await asyncio.sleep(0.01)

    first = asyncio.create_task(
        forgotten() if other == "is forgotten" else update(bench, "bbbbbbbb", 1, superseded_by="aaaaaaaa")
    )
    await waiting(1)
    second = asyncio.create_task(update(bench, "aaaaaaaa", 1, superseded_by="bbbbbbbb"))
    await waiting(2)
    await held.rollback()
    await head.close()
    await first
    with pytest.raises(Refusal) as caught:
        await second
    assert caught.value.violations[0].field == "superseded_by"


async def test_a_time_outside_the_calendar_is_refused_by_name(bench: Bench) -> None:
    request = sync_pb2.UpdateStatusRequest(bank=BANK, id="aaaaaaaa", version=1)
    request.last_verified.seconds = 2**60
    with pytest.raises(Refusal) as caught:
        standing.change_of(request, False)
    assert caught.value.violations[0].field == "last_verified"
    request.last_verified.FromDatetime(datetime.now(UTC) + timedelta(minutes=6))
    with pytest.raises(Refusal) as caught:
        standing.change_of(request, True)
    assert caught.value.violations[0].field == "last_verified"
    request.last_verified.FromDatetime(datetime.now(UTC) + timedelta(minutes=4))
    standing.change_of(request, False)
    request.last_verified.FromSeconds(1_790_000_000)
    assert standing.change_of(request, False) == StatusChange(
        last_verified=request.last_verified.ToDatetime().astimezone()
    )


async def test_the_first_moment_of_the_calendar_is_one(bench: Bench) -> None:
    await bench.push(record("aaaaaaaa"))
    request = sync_pb2.UpdateStatusRequest()
    request.last_verified.FromSeconds(-62_135_596_800)
    for version in (1, 2):
        done = await update(bench, "aaaaaaaa", version, last_verified=request.last_verified)
        assert done.version == 2, "the same again changes nothing"
    (memory,) = (await standing.opened(bench.store, bench.keys, BANK, ["aaaaaaaa"])).memories
    assert memory.last_verified == request.last_verified
    assert await bench.superuser("select isfinite(last_verified) from memory.memories")


async def test_what_is_hidden_elsewhere_or_nowhere_is_one_not_found(bench: Bench) -> None:
    await bench.push(record("aaaaaaaa"))
    await bench.push(record("elsewhere", "there"), bank="project:other-1")
    with audit.calling(audit.CallContext("memory.forget", "user:bob", "t")):
        await bench.store.forget(BANK, ["aaaaaaaa"])
    for memory_id in ("aaaaaaaa", "elsewhere", "nowhere1"):
        with pytest.raises(Refusal) as caught:
            await update(bench, memory_id, 1, status="suspect")
        assert (caught.value.reason, caught.value.message) == (
            "NOT_FOUND",
            "there is no such memory in this bank",
        )
    answer = await standing.opened(bench.store, bench.keys, BANK, ["aaaaaaaa", "elsewhere", "nowhere1"])
    assert answer == sync_pb2.GetMemoriesResponse()


async def test_memories_by_id_come_whole_and_as_many_as_fit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = record("aaaaaaaa", "We use SQS.", tags=["queue"], fact_type="decision")
    sent.occurred_at.FromSeconds(1_790_000_000)
    await bench.push(sent, record("bbbbbbbb", "other"), record("cccccccc", "third"))
    await update(bench, "aaaaaaaa", 1, status="suspect")
    ids = ["cccccccc", "bbbbbbbb", "aaaaaaaa"]
    whole = await standing.opened(bench.store, bench.keys, BANK, ids)
    assert [m.id for m in whole.memories] == sorted(ids) and not whole.remaining_ids
    first = whole.memories[0]
    assert (first.text, list(first.tags), first.fact_type, first.author) == (
        "We use SQS.",
        ["queue"],
        "decision",
        "user:alice",
    )
    assert (first.status, first.version, first.seq, first.occurred_at.seconds) == (
        "suspect",
        2,
        4,
        1_790_000_000,
    )
    monkeypatch.setattr(standing, "LARGEST_ANSWER", 60)
    part = await standing.opened(bench.store, bench.keys, BANK, ids)
    assert ([m.id for m in part.memories], list(part.remaining_ids)) == (
        ["aaaaaaaa"],
        ["bbbbbbbb", "cccccccc"],
    )


async def test_a_live_memory_without_a_key_is_an_alarm(bench: Bench) -> None:
    await bench.push(record("aaaaaaaa"))
    row = (await bench.store.lookup(BANK, ["aaaaaaaa"]))["aaaaaaaa"].row
    assert row is not None
    bench.keys.destroy([row.slot])
    with pytest.raises(Refusal) as caught:
        await standing.opened(bench.store, bench.keys, BANK, ["aaaaaaaa"])
    assert caught.value.reason == "KEY_MISSING"
