"""Holds, erasures and the runner on a real Postgres, with participants that live in the test."""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, cast

import asyncpg
import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from teamlore.compliance.v1 import compliance_pb2, compliance_pb2_grpc

from kit.access import Caller, Grant
from kit.access_state import AccessState
from kit.audit import CallContext, calling
from kit.database import Database
from kit.decisions import Decisions
from kit.errors import Refusal, from_driver
from kit.foundation import Drain
from kit.identity import Authenticator
from kit.interceptor import Built, Interceptor
from kit.limits import Limits
from services.compliance.erasures import AT_ONCE, EraseObjects, Erasure, Open, Runner
from services.compliance.handlers import ComplianceHandlers
from services.compliance.receipts import NO_INDEX, OUT_OF_SCOPE, Receipt, Terms, signing_key, verify
from services.compliance.store import QUERIES, Placed, Store

KEY = signing_key(bytes(range(32)))
TRUSTED = KEY.public_key().public_bytes_raw()
BANK = "project:atlas-1"
STEPS = ["erasure.keys_begun", "erasure.keys_destroyed", "erasure.index_purged", "erasure.server_done"]
DOWN = Refusal("DEPENDENCY_UNAVAILABLE", "neighbour is down: Dana said no")
PUT = """
select memory.put($1, 'user:alice', $2, array_fill(''::text, n), array_fill(null::timestamptz, n),
  array(select (random() * 9e18)::bigint from generate_series(1, n[1])), array_fill(0, n), array_fill('\\x00'::bytea, n))
from (select array[cardinality($2::text[])]) t(n)
"""


class World:
    """One database: the store in the service's role, a superuser who looks and prepares, and two participants."""

    def __init__(self, dsn: str, database: Database) -> None:
        self.dsn = dsn
        self.database = database
        self.heard: list[str] = []
        self.store = Store(database, self.heard.append)
        self.asked: list[tuple[str, str, int]] = []
        """What participants were asked: name, the erasure's state at that time, ids."""

    async def sql(self, statement: str, *args: Any) -> list[Any]:
        connection = await asyncpg.connect(self.dsn)
        try:
            return list(await connection.fetch(statement, *args))
        finally:
            await connection.close()

    async def put(self, count: int) -> list[str]:
        ids = sorted(f"memory-{uuid.uuid4().hex}" for _ in range(count))
        await self.sql("select memory.open_bank($1)", BANK)
        await self.sql(PUT, BANK, ids)
        return ids

    async def erase(self, count: int = 2) -> str:
        ids, erasure_id = await self.put(count), uuid.uuid4().hex
        with officer("erasure.requested"):
            assert await self.store.erase(BANK, ids, "user:olga", erasure_id) == count
        return erasure_id

    async def erasure(self, erasure_id: str) -> Erasure:
        found = await self.store.erasure(erasure_id)
        assert found is not None
        return found

    async def receipt(self, erasure_id: str) -> tuple[Receipt, dict[str, Any]]:
        """A verified receipt and what it says."""
        receipt = (await self.erasure(erasure_id)).receipt
        assert receipt is not None and verify(receipt, TRUSTED)
        return receipt, json.loads(receipt.statement)

    async def state(self, erasure_id: str) -> str:
        return (await self.erasure(erasure_id)).state

    async def done(self, erasure_id: str) -> None:
        async with asyncio.timeout(20):
            while await self.state(erasure_id) != "server_done":
                await asyncio.sleep(0.02)

    async def audited(self, prefix: str = "erasure.") -> list[str]:
        rows = await self.sql("select name from compliance.audit_calls order by audit_id")
        names = [row["name"] for row in rows if row["name"] != "erasure.requested"]
        return [name for name in names if name.startswith(prefix)]

    async def sync(self, erasure_id: str, bank: str, memory_ids: Sequence[str]) -> None:
        """Destroys keys, as sync does."""
        self.asked.append(("sync", await self.state(erasure_id), len(memory_ids)))
        await self.sql("select memory.finish_key_destruction($1, $2)", erasure_id, list(memory_ids))

    async def index(self, erasure_id: str, bank: str, memory_ids: Sequence[str]) -> None:
        """Purges vectors, of which there are none."""
        self.asked.append(("index", await self.state(erasure_id), len(memory_ids)))

    def runner(self, store: Store | None = None, **participants: EraseObjects) -> Runner:
        everyone: Mapping[str, EraseObjects] = {"sync": self.sync, "index": self.index} | participants
        return Runner(store or self.store, everyone, KEY, Terms(35))


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    database = await Database.connect(database_url, "compliance", QUERIES)
    yield World(database_url, database)
    await database.close()


def officer(name: str) -> Any:
    return calling(CallContext(name, "user:olga", "token"))


async def test_no_key_waits_for_what_another_erasure_has_to_purge(world: World) -> None:
    for _ in range(3):
        with officer("erasure.requested"):
            await world.store.erase(BANK, await world.put(1), "user:olga", uuid.uuid4().hex)
    await world.runner().pass_once()
    assert [name for name, _, _ in world.asked] == ["sync"] * 3 + ["index"] * 3
    assert await world.store.open_erasures() == []


async def test_what_is_slow_to_purge_is_purged_side_by_side_and_no_more_than_so_many(world: World) -> None:
    many = AT_ONCE + 8
    for _ in range(many):
        await world.erase(1)
    under_way, most, full = 0, 0, asyncio.Event()

    async def index(erasure_id: str, bank: str, memory_ids: Sequence[str]) -> None:
        nonlocal under_way, most
        under_way, most = under_way + 1, max(most, under_way + 1)
        if under_way == AT_ONCE:
            full.set()
        await full.wait()  # one after the other, nobody would ever come this far
        under_way -= 1

    async with asyncio.timeout(30):
        await world.runner(index=index).pass_once()
    assert most == AT_ONCE and await world.store.open_erasures() == []


async def test_a_hold_blocks_an_erasure_until_the_last_is_lifted(world: World) -> None:
    ids, store = await world.put(2), world.store
    with officer("hold.placed"):
        one = await store.place_hold(BANK, uuid.uuid4().hex, "M-1", "user:olga", None)
        other = await store.place_hold(BANK, uuid.uuid4().hex, "M-2", "user:olga", None)
        assert one and other
        first, second = one.hold, other.hold
        await store.place_hold("project:other-2", uuid.uuid4().hex, "M-3", "user:olga", None, make_bank=True)

    async def blocked() -> None:
        with pytest.raises(asyncpg.PostgresError) as caught, officer("erasure.requested"):
            await store.erase(BANK, ids, "user:olga", uuid.uuid4().hex)
        refusal = from_driver(caught.value)
        assert refusal is not None and refusal.reason == "BANK_HELD"
        assert await store.open_erasures() == [] and world.heard == []

    await blocked()
    with officer("hold.lifted"):
        assert not await store.lift_hold("project:other-2", first.hold_id, "user:olga")
        assert await store.lift_hold(BANK, first.hold_id, "user:olga")
    await blocked()
    with officer("hold.lifted"):
        assert await store.lift_hold(BANK, second.hold_id, "user:olga")
        assert not await store.lift_hold(BANK, second.hold_id, "user:olga")
    with officer("erasure.requested"):
        assert await store.erase(BANK, ids, "user:olga", uuid.uuid4().hex) == 2
        assert await store.erase(BANK, ids, "user:olga", uuid.uuid4().hex) == 0
    assert world.heard == [BANK]
    held = await store.holds(BANK)
    assert [hold.matter for hold in held] == ["M-2", "M-1"] and all(hold.lifted_at for hold in held)
    assert await world.audited("hold.") == ["hold.placed"] * 3 + ["hold.lifted"] * 2
    rows = await world.sql(
        "select objects, bank from compliance.audit_calls where name = 'erasure.requested'"
    )
    assert [tuple(row) for row in rows] == [(2, BANK)]


async def test_the_stages_come_in_order_each_with_one_audit_row(world: World) -> None:
    erasure_id, runner = await world.erase(250), world.runner()
    await runner.pass_once()
    await runner.pass_once()
    stages = (("sync", "hidden"), ("index", "keys_destroyed"))
    assert world.asked == [(*stage, n) for stage in stages for n in (100, 100, 50)]
    assert await world.audited() == STEPS
    rows = await world.sql(
        "select c.bank, c.token_id, p.principal from compliance.audit_calls c join compliance.principals p"
        " using (principal_ref) where c.name <> 'erasure.requested'"
    )
    assert {tuple(row) for row in rows} == {(BANK, "service:compliance", "service:compliance")}
    erasure, (receipt, said) = await world.erasure(erasure_id), await world.receipt(erasure_id)
    assert (said["erasure_id"], said["bank"], said["through_seq"]) == (erasure_id, BANK, 500)
    assert (said["memory_count"], said["memory_ids"]) == (250, sorted(erasure.memory_ids))
    order = ("requested_at", "hidden_at", "keys_destroyed_at", "index_purged_at", "server_done_at")
    assert [said[name] for name in order] == sorted(said[name] for name in order)
    assert erasure.server_done_at is not None
    assert said["server_done_at"][:26] == erasure.server_done_at.isoformat()[:26]
    assert b"user:" not in receipt.statement and said["out_of_scope"] == list(OUT_OF_SCOPE)


async def test_a_participant_that_fails_twice_is_asked_again_later(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    erasure_id = await world.erase()
    at: list[float] = []

    async def shaky(erasure_id: str, bank: str, memory_ids: Sequence[str]) -> None:
        at.append(time.monotonic())
        if len(at) <= 2:
            raise DOWN
        await world.index(erasure_id, bank, memory_ids)

    runner = world.runner(index=shaky)
    await runner.pass_once()
    await runner.pass_once()
    assert len(at) == 1, "it is not asked again before its time"
    runner.start()
    await world.done(erasure_id)
    await runner.stop()
    assert len(at) == 3 and at[1] - at[0] >= 0.2 and at[2] - at[1] >= 0.4
    assert [entry[0] for entry in world.asked] == ["sync", "index"]
    assert await world.audited() == STEPS
    assert len(caplog.records) == 2 and erasure_id in caplog.text and DOWN.message not in caplog.text


async def test_one_that_is_down_holds_up_nobody_elses_keys(world: World) -> None:
    asked: list[str] = []

    async def down(erasure_id: str, bank: str, memory_ids: Sequence[str]) -> None:
        asked.append(erasure_id)
        raise DOWN

    erasures = [await world.erase() for _ in range(AT_ONCE + 3)]
    await world.runner(index=down).pass_once()
    assert sorted(asked) == sorted(erasures[:AT_ONCE]), "who comes after them does not ask"
    assert {await world.state(item) for item in erasures} == {"keys_destroyed"}
    newest = await world.erase()
    order = [item.erasure_id for item in await world.store.open_erasures()]
    assert order == [newest, *erasures], "those whose keys still stand come first, then the oldest"


@pytest.mark.parametrize("error", [ZeroDivisionError(), Refusal("FIELD_INVALID", "it dislikes this one")])
async def test_a_defect_in_one_erasure_stops_no_other(world: World, error: Exception) -> None:
    broken, whole = await world.erase(), await world.erase()

    async def picky(erasure_id: str, bank: str, memory_ids: Sequence[str]) -> None:
        if erasure_id == broken:
            raise error

    await world.runner(index=picky).pass_once()
    assert (await world.state(broken), await world.state(whole)) == ("keys_destroyed", "server_done")


async def test_keys_that_still_stand_keep_it_hidden(world: World) -> None:
    erasure_id = await world.erase()

    async def lying(erasure_id: str, bank: str, memory_ids: Sequence[str]) -> None:
        return None

    await world.runner(sync=lying).pass_once()
    assert await world.state(erasure_id) == "hidden" and await world.audited() == STEPS[:1]


async def test_a_runner_killed_between_stages_is_resumed_by_the_next(world: World) -> None:
    erasure_id, reached = await world.erase(), asyncio.Event()

    async def stuck(erasure_id: str, bank: str, memory_ids: Sequence[str]) -> None:
        reached.set()
        await asyncio.Event().wait()

    first = world.runner(index=stuck)
    first.start()
    await asyncio.wait_for(reached.wait(), 10)
    await first.stop()
    assert await world.state(erasure_id) == "keys_destroyed" and await world.audited() == STEPS[:2]
    await world.runner().pass_once()
    assert await world.state(erasure_id) == "server_done" and await world.audited() == STEPS
    assert [entry[0] for entry in world.asked] == ["sync", "index"], "keys are not asked for again"


@pytest.mark.parametrize("lost", ["before", "after"])
async def test_a_step_whose_end_is_lost_is_repeated_without_a_second_row(world: World, lost: str) -> None:
    class Torn(Store):
        async def advance(self, pending: Open, to_state: str) -> bool:
            if lost == "after":
                await super().advance(pending, to_state)
            raise ConnectionResetError

    erasure_id = await world.erase()
    await world.runner(Torn(world.database, print)).pass_once()
    assert await world.state(erasure_id) == ("hidden" if lost == "before" else "keys_destroyed")
    await world.runner().pass_once()
    assert await world.state(erasure_id) == "server_done" and await world.audited() == STEPS
    assert [entry[0] for entry in world.asked] == ["sync"] * (2 if lost == "before" else 1) + ["index"]


async def test_two_replicas_leave_one_row_for_each_change(world: World) -> None:
    erasures = [await world.erase() for _ in range(5)]

    async def drive(runner: Runner) -> None:
        while await world.store.open_erasures():
            await runner.pass_once()
            await asyncio.sleep(0.01)

    await asyncio.wait_for(asyncio.gather(*(drive(world.runner()) for _ in range(3))), 30)
    assert sorted(await world.audited()) == sorted(STEPS * len(erasures))
    for erasure_id in erasures:
        await world.receipt(erasure_id)


async def test_a_replica_that_comes_late_to_the_signing_leaves_it_alone(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class Overtaken(Store):
        async def erasure(self, erasure_id: str) -> Erasure | None:
            await Runner(world.store, {}, KEY, Terms(35)).pass_once()
            return await super().erasure(erasure_id)

    erasure_id = await world.erase()
    await world.runner(Overtaken(world.database, print)).pass_once()
    assert await world.state(erasure_id) == "server_done" and await world.audited() == STEPS
    assert caplog.records == []


async def test_a_finished_erasure_keeps_its_first_receipt(world: World) -> None:
    erasure_id = await world.erase()
    await world.runner().pass_once()
    before = await world.erasure(erasure_id)
    with officer("erasure.server_done"):
        late = Open(erasure_id, BANK, "index_purged")
        assert not await world.store.finish(late, before.read_at, Receipt(b"", b"", b""))
        assert not await world.store.advance(Open(erasure_id, BANK, "hidden"), "keys_destroyed")
    assert (await world.erasure(erasure_id)).receipt == before.receipt and await world.audited() == STEPS


async def test_without_an_index_the_receipt_says_so(world: World) -> None:
    erasure_id = await world.erase()
    await Runner(world.store, {"sync": world.sync}, KEY, Terms(35, (*OUT_OF_SCOPE, NO_INDEX))).pass_once()
    assert (await world.receipt(erasure_id))[1]["out_of_scope"][-1] == NO_INDEX


async def test_devices_amend_an_erasure_but_not_its_receipt(world: World) -> None:
    register, ack = (
        "select memory.register_device($1, $2, 'user:alice')",
        "select memory.ack_erasure($1, $2, 'user:alice', $3)",
    )
    for device, bank in (("laptop-a", BANK), ("laptop-b", BANK), ("laptop-c", "project:other-2"), ("laptop-d", BANK)):
        await world.sql(register, bank, device)
    await world.sql("select memory.retire_device($1, 'laptop-d', null)", BANK)
    erasure_id = await world.erase()
    await world.sql(ack, BANK, "laptop-a", 4)
    await world.sql(ack, BANK, "laptop-b", 3)
    await world.runner().pass_once()
    await world.sql(register, BANK, "laptop-new")
    await world.sql(ack, BANK, "laptop-b", 4)
    erasure, (_, said) = await world.erasure(erasure_id), await world.receipt(erasure_id)
    assert erasure.through_seq == 4
    assert (erasure.confirmed, erasure.unconfirmed) == (("laptop-a", "laptop-b", "laptop-new"), ())
    assert [device for device, _ in erasure.retired] == ["laptop-d"]
    (retired,) = said["devices"].pop("retired")
    assert (retired["device_id"], retired["retired_at"][-1]) == ("laptop-d", "Z")
    assert said["devices"] == {"confirmed": ["laptop-a"], "unconfirmed": ["laptop-b"]}


async def test_the_loop_outlives_a_database_that_goes_away(world: World, database_url: str) -> None:
    server, name = database_url.rsplit("/", 1)
    admin = await asyncpg.connect(f"{server}/postgres")
    runner = world.runner()
    runner.start()
    try:
        await world.done(await world.erase())
        await admin.execute(f"alter database {name} with allow_connections false")
        await admin.fetch("select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", name)
        await asyncio.sleep(0.6)
        await admin.execute(f"alter database {name} with allow_connections true")
        await world.done(await world.erase())
    finally:
        await runner.stop()
        await admin.close()


async def hold(world: World, matter: str = "M-1") -> Placed:
    with officer("hold.placed"):
        placed = await world.store.place_hold(BANK, uuid.uuid4().hex, matter, "user:olga", None)
    assert placed is not None
    return placed


async def lift(world: World, placed: Placed) -> None:
    with officer("hold.lifted"):
        assert await world.store.lift_hold(BANK, placed.hold.hold_id, "user:olga")


async def test_a_hold_that_comes_before_the_keys_go_stops_the_erasure_until_it_is_lifted(
    world: World,
) -> None:
    erasure_id = await world.erase()
    placed = await hold(world)
    assert (placed.stopped, placed.unstoppable) == ((erasure_id,), ())
    for _ in range(2):
        await world.runner().pass_once()
    assert world.asked == [] and await world.audited() == []
    stopped = await world.erasure(erasure_id)
    assert (stopped.state, stopped.stopped) == ("hidden", True)
    await lift(world, placed)
    await world.runner().pass_once()
    done = await world.erasure(erasure_id)
    assert (done.state, done.stopped) == ("server_done", False) and await world.audited() == STEPS


async def test_a_hold_that_comes_too_late_says_so_and_stops_nothing(world: World) -> None:
    erasure_id = await world.erase()

    async def dies(erasure_id: str, bank: str, memory_ids: Sequence[str]) -> None:
        raise DOWN

    await world.runner(sync=dies).pass_once()
    placed = await hold(world)
    assert (placed.stopped, placed.unstoppable) == ((), (erasure_id,))
    assert not (await world.erasure(erasure_id)).stopped
    await world.runner().pass_once()
    assert await world.state(erasure_id) == "server_done" and await world.audited() == STEPS
    assert (await hold(world, "M-2")).unstoppable == (), "what is done is history"


async def waits(world: World, statement: str) -> None:
    """Until a session is kept waiting for a lock by such a statement."""
    async with asyncio.timeout(10):
        while not await world.sql(
            "select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like '%' || $1 || '%'",
            statement,
        ):
            await asyncio.sleep(0.01)


async def test_a_destruction_waits_for_a_hold_that_is_being_placed(world: World) -> None:
    erasure_id = await world.erase()
    placing = await asyncpg.connect(world.dsn)
    transaction = placing.transaction()
    await transaction.start()
    await placing.execute("select memory.place_hold($1, 'h', 'M-1', 'user:olga', null)", BANK)
    running = asyncio.create_task(world.runner().pass_once())
    await waits(world, "begin_key_destruction")
    await transaction.commit()
    await asyncio.wait_for(running, 10)
    assert await world.state(erasure_id) == "hidden" and world.asked == []
    await placing.close()


async def test_a_hold_waits_for_a_destruction_that_is_being_begun_and_names_it(world: World) -> None:
    erasure_id = await world.erase()
    beginning = await asyncpg.connect(world.dsn)
    transaction = beginning.transaction()
    await transaction.start()
    assert await beginning.fetchval("select memory.begin_key_destruction($1)", erasure_id)
    # A writer of the bank is not kept waiting.
    await asyncio.wait_for(world.put(1), 5)
    placing = asyncio.create_task(hold(world))
    await waits(world, "place_hold")
    await transaction.commit()
    assert (await asyncio.wait_for(placing, 10)).unstoppable == (erasure_id,)
    await beginning.close()


async def test_sync_sees_no_key_to_destroy_before_the_point_of_no_return(world: World) -> None:
    erasure_id = await world.erase()
    doomed = "select id from memory.doomed_keys where erasure_id = $1"
    assert await world.sql(doomed, erasure_id) == []
    with officer("erasure.keys_begun"):
        assert [await world.store.begin(Open(erasure_id, BANK, "hidden")) for _ in "12"] == [True, False]
    assert len(await world.sql(doomed, erasure_id)) == 2


class _Callers:
    """Takes the credential itself for the name of one of three callers."""

    def __init__(self, database: Database) -> None:
        self.access = AccessState(database)

    async def authenticate(self, metadata: Sequence[tuple[str, str]]) -> Caller:
        permissions = {"olga": {"comply"}, "alice": {"forget"}, "bob": {"admin", "read", "write"}}
        name = dict(metadata)["authorization"].removeprefix("Bearer ")
        return Caller(f"user:{name}", "person", "token", (Grant("project:*", frozenset(permissions[name])),))

    async def renew(self, known: Caller) -> Caller:
        return known


@pytest.fixture
async def service(world: World) -> AsyncIterator[Any]:
    add, handlers = (
        compliance_pb2_grpc.add_ComplianceServiceServicer_to_server,
        ComplianceHandlers(world.store),
    )
    built = Built(
        cast(Authenticator, _Callers(world.database)),
        {"teamlore.compliance.v1.ComplianceService": (add, handlers)},
        {"erasure_id": world.store.bank_of},
    )
    decisions = Decisions(world.database, "compliance")
    host = grpc.aio.server(interceptors=[Interceptor(built, Drain(), Limits(6000, 6000, 10), decisions)])
    add(handlers, host)
    port = host.add_insecure_port("127.0.0.1:0")
    await host.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield compliance_pb2_grpc.ComplianceServiceStub(channel)
    await host.stop(0)
    await decisions.stop()


def by(name: str) -> dict[str, Any]:
    return {"metadata": (("authorization", f"Bearer {name}"),)}


async def refused(call: Any) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code().name, caught.value.details() or ""


async def test_calls_from_hold_to_receipt(world: World, service: Any) -> None:
    ids, review = await world.put(2), Timestamp(seconds=1_900_000_000)
    place = compliance_pb2.PlaceHoldRequest(bank=BANK, matter="M-1", review_at=review)
    placed = await service.PlaceHold(place, **by("olga"))
    hold = placed.hold
    assert list(placed.stopped_erasures) == list(placed.unstoppable_erasures) == []
    listed = await service.ListHolds(compliance_pb2.ListHoldsRequest(bank=BANK), **by("olga"))
    assert list(listed.holds) == [hold]
    assert (hold.placed_by, hold.review_at) == ("user:olga", review)
    assert hold.HasField("placed_at") and not hold.HasField("lifted_at")
    erase = compliance_pb2.EraseMemoriesRequest(bank=BANK, memory_ids=[*ids, "memory-unknown"])
    assert (await refused(service.EraseMemories(erase, **by("olga"))))[0] == "FAILED_PRECONDITION"
    lift = compliance_pb2.LiftHoldRequest(bank=BANK, hold_id=hold.hold_id)
    assert [(await service.LiftHold(lift, **by("olga"))).released for _ in "12"] == [True, False]
    begun = await service.EraseMemories(erase, **by("olga"))
    again = await service.EraseMemories(erase, **by("olga"))
    assert (begun.erased_count, again.erased_count, again.erasure_id) == (2, 0, "")
    get = compliance_pb2.GetErasureRequest(erasure_id=begun.erasure_id)
    hidden = (await service.GetErasure(get, **by("alice"))).erasure
    assert (hidden.state, hidden.memory_count) == ("hidden", 2)
    assert not hidden.HasField("receipt") and not hidden.HasField("server_done_at")
    assert not hidden.stopped_by_hold
    late = await service.PlaceHold(place, **by("olga"))
    assert list(late.stopped_erasures) == [begun.erasure_id]
    assert (await service.GetErasure(get, **by("alice"))).erasure.stopped_by_hold
    lift = compliance_pb2.LiftHoldRequest(bank=BANK, hold_id=late.hold.hold_id)
    assert (await service.LiftHold(lift, **by("olga"))).released
    await world.runner().pass_once()
    done = (await service.GetErasure(get, **by("alice"))).erasure
    assert (await service.GetErasure(get, **by("olga"))).erasure == done, "comply does as well as forget"
    assert done.state == "server_done" and done.HasField("server_done_at") and done.through_seq == 4
    assert verify(Receipt(done.receipt.statement, done.receipt.signature, done.receipt.public_key), TRUSTED)
    assert await world.audited("") == ["hold.placed", "hold.lifted"] * 2 + STEPS


async def test_a_hold_on_a_mistyped_bank_holds_nothing_and_says_so(world: World, service: Any) -> None:
    typo = f"{BANK}x"
    place = compliance_pb2.PlaceHoldRequest(bank=typo, matter="M-1")
    assert (await refused(service.PlaceHold(place, **by("olga"))))[0] == "NOT_FOUND"
    assert await world.sql("select from memory.heads where bank = $1", typo) == []
    place.make_bank = True
    assert (await service.PlaceHold(place, **by("olga"))).hold.bank == typo
    place.make_bank = False
    assert (await service.PlaceHold(place, **by("olga"))).hold.bank == typo


async def test_calls_that_are_refused(world: World, service: Any) -> None:
    erasure_id = await world.erase()
    for number in (-(10**15), 10**15):
        wrong = compliance_pb2.PlaceHoldRequest(bank=BANK, matter="M-1", review_at=Timestamp(seconds=number))
        code, words = await refused(service.PlaceHold(wrong, **by("olga")))
        assert code == "INVALID_ARGUMENT" and words.startswith("review_at: ")
    past = compliance_pb2.PlaceHoldRequest(
        bank=BANK, matter="M-1", review_at=Timestamp(seconds=1_700_000_000)
    )
    code, words = await refused(service.PlaceHold(past, **by("olga")))
    assert (code, words) == ("INVALID_ARGUMENT", "review_at: must lie in the future")
    hold = compliance_pb2.PlaceHoldRequest(bank=BANK, matter="M-1")
    for name in ("alice", "bob"):
        assert (await refused(service.PlaceHold(hold, **by(name))))[0] == "PERMISSION_DENIED"
    known = compliance_pb2.GetErasureRequest(erasure_id=erasure_id)
    unknown = compliance_pb2.GetErasureRequest(erasure_id="0" * 32)
    unreadable = await refused(service.GetErasure(known, **by("bob")))
    assert unreadable[0] == "NOT_FOUND"
    assert await refused(service.GetErasure(unknown, **by("olga"))) == unreadable
    assert await world.store.holds(BANK) == []
