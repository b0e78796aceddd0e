"""Every state-changing call leaves exactly one audit row, in the commit of what it changed; found by descriptors."""

import asyncio
import uuid

import asyncpg
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from teamlore.auth.v1 import access_pb2, auth_pb2
from teamlore.compliance.v1 import compliance_pb2
from teamlore.feed.v1 import feed_pb2
from teamlore.sync.v1 import sync_pb2

from kit.authorising import access_of
from tests.integration.conftest import RunningStack
from tests.integration.test_garbage import a_record, call, served, service_of

BANK = "project:audit-1a2b3c4d"
# Where a change shows, so that its transaction can be compared with that of the audit row.
TABLES = (
    "memory.changes", "memory.holds", "memory.mirrors", "memory.key_destructions", "auth.tokens", "index.cursors", "index.purged",
    "auth.access_grants", "auth.group_members", "auth.suspensions", "auth.teams", "auth.memberships", "auth.clients",
    "memory.banks", "index.leading_term_cursors",
)  # fmt: skip


TEAM = access_pb2.PutTeamRequest(team_id="00000000-0000-0000-0000-00000000000b", name="Audited")
GRANT = access_pb2.PutGrantRequest(
    grant=access_pb2.AccessGrant(
        subject="user:x", pattern="project:audit-x", permissions=["read"], effect="allow"
    )
)
OLD = access_pb2.PutBankRequest(bank="project:audit-old")
# What must stand before, and a call that then changes something.
ACCESS: dict[str, tuple[list[Message], Message]] = {
    "CreatePersonalKey": ([], access_pb2.CreatePersonalKeyRequest()),
    "SuspendPrincipal": ([], access_pb2.SuspendPrincipalRequest(principal="user:leaver-audited")),
    "PutGrant": ([], GRANT),
    "DeleteGrant": (
        [GRANT],
        access_pb2.DeleteGrantRequest(subject="user:x", pattern="project:audit-x", effect="allow"),
    ),
    "PutGroup": ([], access_pb2.PutGroupRequest(group="team:audit", members=["user:x"])),
    "PutTeam": ([], access_pb2.PutTeamRequest(team_id="00000000-0000-0000-0000-00000000000c", name="New")),
    "PutMembership": (
        [TEAM],
        access_pb2.PutMembershipRequest(
            team_id=TEAM.team_id, principal="user:x", role="member", status="active"
        ),
    ),
    "PutClient": ([TEAM], access_pb2.PutClientRequest(team_id=TEAM.team_id, client_id="acme")),
    "PutBank": ([], access_pb2.PutBankRequest(bank="project:audit-new", name="New")),
    "ArchiveBank": ([OLD], access_pb2.ArchiveBankRequest(bank=OLD.bank)),
    "PutPolicy": (
        [OLD],
        access_pb2.PutPolicyRequest(bank=OLD.bank, policy=access_pb2.Policy(min_lane="entry")),
    ),
    "ApplyAccess": (
        [],
        access_pb2.ApplyAccessRequest(
            document=access_pb2.AccessDocument(
                groups=[access_pb2.Group(group="team:audit-file", members=["user:x"])]
            )
        ),
    ),
}
# The same again changes nothing more, and then leaves no row.
REPEATABLE = {
    "Push",
    "PushStream",
    "Forget",
    "RevokeToken",
    "LiftHold",
    "EraseMemories",
    "RetireDevice",
    *ACCESS,
} - {"CreatePersonalKey"}


async def stored(stack: RunningStack, token: str) -> str:
    record = a_record()
    async with stack.channel("sync") as sync:
        answer = await stack.sync(sync).Push(
            sync_pb2.PushRequest(bank=BANK, records=[record]), metadata=stack.credential(token)
        )
    assert answer.results[0].status == "stored"
    return record.id


async def ask(stack: RunningStack, service: str, path: str, request: Message, token: str) -> bytes:
    async with stack.channel(service) as channel:
        answer: bytes = await channel.unary_unary(path)(
            request.SerializeToString(), metadata=stack.credential(token), timeout=20
        )
    return answer


async def arrange(stack: RunningStack, method: MethodDescriptor, token: str) -> Message:
    """A request that changes something; a new mutating call without one fails here."""
    name = method.name
    if name == "CreateToken":
        grants = [access_pb2.Grant(pattern="project:x", permissions=["read"])]
        return access_pb2.CreateTokenRequest(principal="user:new", kind="agent", grants=grants)
    if name in ("RevokeToken", "RotateToken"):
        grants = [access_pb2.Grant(pattern="project:x", permissions=["read"])]
        create = access_pb2.CreateTokenRequest(principal="user:leaver", kind="agent", grants=grants)
        raw = await ask(stack, "auth", "/teamlore.auth.v1.AccessService/CreateToken", create, token)
        # Never used: auth writes a token's last use a moment later, in a transaction of its own.
        made = access_pb2.CreateTokenResponse.FromString(raw)
        if name == "RotateToken":
            return access_pb2.RotateTokenRequest(token_id=made.token_id)
        return access_pb2.RevokeTokenRequest(token_id=made.token_id)
    if name == "StartSession":
        person = await stack.token("user:present", ("project:x", "read"), kind="person")
        return auth_pb2.StartSessionRequest(person_token=person)
    if name in ACCESS:
        before, request = ACCESS[name]
        for earlier in before:
            called = type(earlier).__name__.removesuffix("Request")
            await ask(stack, "auth", f"/teamlore.auth.v1.AccessService/{called}", earlier, token)
        return request
    if name == "Push":
        return sync_pb2.PushRequest(bank=BANK, records=[a_record(), a_record()])
    if name == "PushStream":
        return sync_pb2.PushStreamRequest(bank=BANK, sequence=1, records=[a_record()])
    if name == "UpdateStatus":
        return sync_pb2.UpdateStatusRequest(
            bank=BANK, id=await stored(stack, token), version=1, status="suspect"
        )
    if name == "Forget":
        return sync_pb2.ForgetRequest(bank=BANK, memory_ids=[await stored(stack, token)])
    if name == "RegisterDevice":
        return feed_pb2.RegisterDeviceRequest(bank=BANK, device_id=uuid.uuid4().hex)
    if name in ("AckErasures", "RetireDevice"):
        device = uuid.uuid4().hex
        register = feed_pb2.RegisterDeviceRequest(bank=BANK, device_id=device)
        await ask(stack, "feed", "/teamlore.feed.v1.FeedService/RegisterDevice", register, token)
        if name == "RetireDevice":
            return feed_pb2.RetireDeviceRequest(bank=BANK, device_id=device)
        return feed_pb2.AckErasuresRequest(bank=BANK, device_id=device, through_seq=1)
    held = "project:audit-held"
    if name == "PlaceHold":
        return compliance_pb2.PlaceHoldRequest(bank=held, matter="M-1", make_bank=True)
    if name == "LiftHold":
        place = compliance_pb2.PlaceHoldRequest(bank=held, matter="M-2", make_bank=True)
        raw = await ask(
            stack, "compliance", "/teamlore.compliance.v1.ComplianceService/PlaceHold", place, token
        )
        hold = compliance_pb2.PlaceHoldResponse.FromString(raw).hold
        return compliance_pb2.LiftHoldRequest(bank=held, hold_id=hold.hold_id)
    if name == "EraseMemories":
        return compliance_pb2.EraseMemoriesRequest(bank=BANK, memory_ids=[await stored(stack, token)])
    raise AssertionError(f"say how to call {method.full_name} so that it changes something")


def mutating() -> list[MethodDescriptor]:
    # Erasure steps between services are proven by the test below, since the erasure itself calls them.
    return [m for m in served() if access_of(m).mutates and m.name != "EraseObjects"]


@pytest.mark.parametrize("method", mutating(), ids=lambda m: m.full_name)
async def test_one_row_in_the_same_commit(stack: RunningStack, method: MethodDescriptor) -> None:
    token = await stack.token("user:audited", ("*", "read write forget comply admin"))
    if access_of(method).person:
        token = await stack.session("user:audited")
    request = await arrange(stack, method, token)
    audit = access_of(method).audit
    database = await asyncpg.connect(stack.facts.database_url)
    try:
        before = await database.fetchval("select coalesce(max(audit_id), 0) from compliance.audit_calls")
        async with stack.channel(service_of(method)) as channel:
            code, _, _ = await call(channel, method, request.SerializeToString(), token)
        assert code == "OK"
        rows = await database.fetch(
            "select *, xmin::text as tx from compliance.audit_calls where audit_id > $1 and name = $2",
            before,
            audit,
        )
        assert len(rows) == 1
        assert await changed_in(database, rows[0]["tx"])
        if method.name in REPEATABLE:
            async with stack.channel(service_of(method)) as channel:
                code, _, _ = await call(channel, method, request.SerializeToString(), token)
            assert code == "OK"
            again = await database.fetchval(
                "select count(*) from compliance.audit_calls where audit_id > $1 and name = $2", before, audit
            )
            assert again == 1
        text = " ".join(str(dict(row)) for row in rows)
        assert "user:audited" not in text and "fine sentence" not in text
    finally:
        await database.close()


async def changed_in(database: asyncpg.Connection, tx: str) -> bool:
    for table in TABLES:
        if await database.fetchval(f"select exists (select 1 from {table} where xmin::text = $1)", tx):
            return True
    return False


async def test_an_erasure_leaves_one_row_for_each_step_and_participant(stack: RunningStack) -> None:
    token = await stack.token("user:audited", ("*", "read write forget comply admin"))
    bank, memory = f"project:audit-{uuid.uuid4().hex[:8]}", a_record()
    database = await asyncpg.connect(stack.facts.database_url)

    async def forget(erase: bool) -> str:
        request = sync_pb2.ForgetRequest(bank=bank, memory_ids=[memory.id], erase=erase)
        async with stack.channel("sync") as sync:
            return str((await stack.sync(sync).Forget(request, metadata=stack.credential(token))).erasure_id)

    async def until(sql: str, *args: object) -> None:
        async with asyncio.timeout(30):
            while not await database.fetchval(sql, *args):
                await asyncio.sleep(0.05)

    try:
        async with stack.channel("sync") as sync:
            push = sync_pb2.PushRequest(bank=bank, records=[memory])
            await stack.sync(sync).Push(push, metadata=stack.credential(token))
        await forget(erase=False)
        # The follower has taken the vector away, so that index finds nothing left to delete.
        await until("select seq = 2 from index.cursors where bank = $1", bank)
        erasure_id = await forget(erase=True)
        await until("select state = 'server_done' from memory.erasures where erasure_id = $1", erasure_id)
        again = compliance_pb2.EraseObjectsRequest(erasure_id=erasure_id, bank=bank, memory_ids=[memory.id])
        path = "/teamlore.compliance.v1.ErasureParticipantService/EraseObjects"
        for participant in ("sync", "index"):
            await ask(stack, participant, path, again, stack.facts.tokens["compliance"])
        rows = await database.fetch(
            "select name, xmin::text as tx from compliance.audit_calls where bank = $1"
            " and name like 'erasure.%' order by audit_id",
            bank,
        )
        assert [row["name"] for row in rows] == [
            "erasure.keys_begun", "erasure.objects_erased", "erasure.keys_destroyed", "erasure.objects_erased",
            "erasure.index_purged", "erasure.server_done",
        ]  # fmt: skip
        assert await changed_in(database, rows[1]["tx"]) and await changed_in(database, rows[3]["tx"])
    finally:
        await database.close()
