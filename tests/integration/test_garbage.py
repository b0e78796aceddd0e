"""Garbage at every field of every call is a typed refusal that names the field, or one record's rejection."""

import uuid
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from buf.validate import validate_pb2
from google.protobuf.descriptor import MethodDescriptor
from google.rpc import error_details_pb2, status_pb2
from teamlore.auth.v1 import access_pb2, auth_pb2
from teamlore.compliance.v1 import compliance_pb2
from teamlore.feed.v1 import feed_pb2
from teamlore.index.v1 import index_pb2
from teamlore.sync.v1 import sync_pb2

from kit import validation
from kit.authorising import access_of
from tests.integration.calls import first_answer, outcome_of
from tests.integration.conftest import ROOT, RunningStack
from tests.integration.garbage import Garbage, spoil
from tests.test_descriptors import methods

BANK = "project:garbage-1a2b3c4d"
TEAM = "00000000-0000-0000-0000-00000000000a"
TYPED = ("INVALID_ARGUMENT", "PERMISSION_DENIED", "NOT_FOUND", "UNAUTHENTICATED", "OK")


def a_record() -> sync_pb2.Record:
    record = sync_pb2.Record(
        id=uuid.uuid4().hex[:16], text=f"a fine sentence {uuid.uuid4()}", tags=["t"], fact_type="decision"
    )
    record.metadata["source"].string_value = "codex"
    record.occurred_at.FromSeconds(1_790_000_000)
    return record


def a_status() -> sync_pb2.UpdateStatusRequest:
    request = sync_pb2.UpdateStatusRequest(
        bank=BANK,
        id="nothere-2",
        version=1,
        status="suspect",
        trust="extracted",
        may_be_stale=True,
        superseded_by="b" * 8,
    )
    request.last_verified.FromSeconds(1_790_000_000)
    return request


def a_grant() -> access_pb2.AccessGrant:
    return access_pb2.AccessGrant(
        subject="user:nobody", pattern="project:g*", permissions=["read"], effect="allow"
    )


def a_document() -> access_pb2.AccessDocument:
    member = access_pb2.Membership(principal="user:nobody", role="member", status="active")
    return access_pb2.AccessDocument(
        default_access="deny",
        groups=[access_pb2.Group(group="team:garbage-file", members=["user:nobody"])],
        grants=[a_grant()],
        teams=[
            access_pb2.Team(
                team_id=TEAM,
                name="Garbage",
                members=[member],
                clients=[access_pb2.TeamClient(client_id="acme")],
            )
        ],
        banks=[
            access_pb2.BankDocument(
                bank="project:garbage-file", owner="user:nobody", policy=access_pb2.Policy(barrier="redact")
            )
        ],
    )


def valid_request(method: MethodDescriptor) -> Any:
    """A valid request for each call; a call that is missing here fails the test below."""
    name = method.name
    made: dict[str, Any] = {
        "ExchangeToken": auth_pb2.ExchangeTokenRequest(token="tlk_x"),
        "GetJwks": auth_pb2.GetJwksRequest(),
        "WhoAmI": auth_pb2.WhoAmIRequest(bank=BANK),
        "StartSession": auth_pb2.StartSessionRequest(person_token="tlk_x"),
        "GetSignIn": auth_pb2.GetSignInRequest(),
        "CreateToken": access_pb2.CreateTokenRequest(
            principal="user:garbage",
            kind="agent",
            grants=[access_pb2.Grant(pattern="project:g*", permissions=["read"])],
        ),
        "ExplainAccess": auth_pb2.ExplainAccessRequest(bank=BANK, principal="user:alice"),
        "CreatePersonalKey": access_pb2.CreatePersonalKeyRequest(
            grants=[access_pb2.Grant(pattern="project:g*", permissions=["read"])], note="a key"
        ),
        "ListTokens": access_pb2.ListTokensRequest(principal="user:garbage", page_size=3),
        "RotateToken": access_pb2.RotateTokenRequest(token_id="0" * 16, overlap_seconds=60),
        "RevokeToken": access_pb2.RevokeTokenRequest(token_id="0" * 16),
        "SuspendPrincipal": access_pb2.SuspendPrincipalRequest(principal="user:garbage-leaver"),
        "PutGrant": access_pb2.PutGrantRequest(grant=a_grant()),
        "DeleteGrant": access_pb2.DeleteGrantRequest(
            subject="user:nobody", pattern="project:g*", effect="allow"
        ),
        "ListGrants": access_pb2.ListGrantsRequest(pattern="project:g*", subject="user:nobody", page_size=3),
        "PutGroup": access_pb2.PutGroupRequest(group="team:garbage", members=["user:nobody"]),
        "ListGroups": access_pb2.ListGroupsRequest(page_size=3),
        "PutTeam": access_pb2.PutTeamRequest(team_id=TEAM, name="Garbage"),
        "ListTeams": access_pb2.ListTeamsRequest(page_size=3),
        "PutMembership": access_pb2.PutMembershipRequest(
            team_id=TEAM, principal="user:nobody", role="member", status="active"
        ),
        "PutClient": access_pb2.PutClientRequest(team_id=TEAM, client_id="acme"),
        "PutBank": access_pb2.PutBankRequest(bank=BANK, name="Garbage", owner="user:nobody"),
        "GetBank": access_pb2.GetBankRequest(bank=BANK),
        "ListBanks": access_pb2.ListBanksRequest(pattern="project:*", page_size=3),
        "ArchiveBank": access_pb2.ArchiveBankRequest(bank=BANK, reopen=True),
        "PutPolicy": access_pb2.PutPolicyRequest(
            bank="project:garbage-old",
            policy=access_pb2.Policy(min_lane="synced", near_duplicate_threshold=0.9),
        ),
        "ApplyAccess": access_pb2.ApplyAccessRequest(document=a_document()),
        "Push": sync_pb2.PushRequest(bank=BANK, records=[a_record(), a_record()]),
        "PushStream": sync_pb2.PushStreamRequest(bank=BANK, sequence=1, records=[a_record(), a_record()]),
        "GetMemories": sync_pb2.GetMemoriesRequest(bank=BANK, memory_ids=["nothere-1"]),
        "UpdateStatus": a_status(),
        "Forget": sync_pb2.ForgetRequest(bank=BANK, memory_ids=["nothere-1"], erase=True),
        "ListChanges": feed_pb2.ListChangesRequest(bank=BANK),
        "WatchChanges": feed_pb2.WatchChangesRequest(bank=BANK),
        "GetHead": feed_pb2.GetHeadRequest(bank=BANK),
        "GetDigest": feed_pb2.GetDigestRequest(bank=BANK),
        "ListLive": feed_pb2.ListLiveRequest(bank=BANK),
        "RegisterDevice": feed_pb2.RegisterDeviceRequest(bank=BANK, device_id="0" * 32),
        "ListDevices": feed_pb2.ListDevicesRequest(bank=BANK, page_size=3),
        "RetireDevice": feed_pb2.RetireDeviceRequest(bank=BANK, device_id="0" * 32),
        "AckErasures": feed_pb2.AckErasuresRequest(bank=BANK, device_id="0" * 32, through_seq=1),
        "PlaceHold": compliance_pb2.PlaceHoldRequest(
            bank="project:garbage-held", matter="M-1", make_bank=True
        ),
        "LiftHold": compliance_pb2.LiftHoldRequest(bank="project:garbage-held", hold_id="0" * 32),
        "ListHolds": compliance_pb2.ListHoldsRequest(bank=BANK),
        "EraseMemories": compliance_pb2.EraseMemoriesRequest(bank=BANK, memory_ids=["nothere-1"]),
        "GetErasure": compliance_pb2.GetErasureRequest(erasure_id="0" * 32),
        "EraseObjects": compliance_pb2.EraseObjectsRequest(
            erasure_id="0" * 32, bank=BANK, memory_ids=["nothere-1"]
        ),
        "Search": index_pb2.SearchRequest(bank=BANK, query="which queue"),
        "FindNearDuplicates": index_pb2.FindNearDuplicatesRequest(
            bank=BANK, candidates=[index_pb2.Candidate(id="nothere-1", text="x")], threshold=0.95
        ),
    }
    return made[name]


def service_of(method: MethodDescriptor) -> str:
    name = str(method.full_name.split(".")[1])
    return "sync" if method.name == "EraseObjects" else name


def served() -> Iterator[MethodDescriptor]:
    for method in methods():
        if (ROOT / "services" / service_of(method) / "main.py").exists():
            yield method


async def call(
    channel: grpc.aio.Channel, method: MethodDescriptor, raw: bytes, token: str
) -> tuple[str, list[str], bytes]:
    path = f"/{method.containing_service.full_name}/{method.name}"
    metadata = (("authorization", f"Bearer {token}"),)
    answer = b""
    try:
        if method.server_streaming:
            answer = await first_answer(channel, method, raw, metadata, 10)
        else:
            answer = await channel.unary_unary(path)(raw, metadata=metadata, timeout=20)
        return "OK", [], answer
    except grpc.aio.AioRpcError as error:
        fields: list[str] = []
        for key, value in error.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                for detail in status_pb2.Status.FromString(value).details:
                    bad = error_details_pb2.BadRequest()
                    if detail.Unpack(bad):
                        fields = [violation.field for violation in bad.field_violations]
        return error.code().name, fields, answer


def complaint(method: MethodDescriptor, item: Garbage, code: str, fields: list[str]) -> str:
    """What is wrong with an answer to garbage; empty when nothing is."""
    if code not in TYPED:
        return f"{item.field} {item.how}: {code}"
    if not item.decodes and code not in ("INVALID_ARGUMENT",):
        return f"{item.field} {item.how}: {code} for bytes that do not decode"
    # A rule over the whole message, such as one field of two, names none.
    whole = method.input_type.GetOptions().HasExtension(validate_pb2.message) and fields == [""]
    named = (
        not fields
        or not item.field
        or whole
        or any(f.split(".")[0].split("[")[0] == item.field.split(".")[0] for f in fields)
    )
    if code == "INVALID_ARGUMENT" and item.decodes and not named:
        return f"{item.field} {item.how}: named {fields}"
    return ""


@pytest.mark.parametrize("method", list(served()), ids=lambda m: m.full_name)
async def test_garbage_is_refused_by_name_and_breaks_nothing(
    stack: RunningStack, method: MethodDescriptor
) -> None:
    grants = (("*", "read write forget comply admin"),)
    token = await stack.token("user:garbage", *grants)
    if method.name in ("EraseObjects", "FindNearDuplicates"):
        token = stack.facts.tokens["sync"]
    if access_of(method).person:
        token = await stack.session("user:garbage")
    complaints = []
    async with stack.channel(service_of(method)) as channel:
        for item in spoil(valid_request(method)):
            code, fields, _ = await call(channel, method, item.raw, token)
            problem = complaint(method, item, code, fields)
            if problem:
                complaints.append(problem)
    assert complaints == []


async def test_a_bad_record_never_takes_its_batch_down(stack: RunningStack) -> None:
    bank = "project:onebad-1a2b3c4d"
    token = stack.credential(await stack.token("user:alice", ("project:*", "read write")))
    bad = [a_record() for _ in range(5)]
    bad[0].text = ""
    bad[1].occurred_at.seconds = 2**60
    bad[2].metadata["k"].number_value = float("inf")
    bad[3].content_hash = "sha256:" + "0" * 64
    bad[4].id = "short"
    good = [a_record() for _ in range(20)]
    edges = [a_record(), a_record()]
    edges[0].occurred_at.seconds, edges[1].occurred_at.seconds = -62135596800, 253402300799
    async with stack.channel("sync") as sync, stack.channel("feed") as feed:
        answer = await stack.sync(sync).Push(
            sync_pb2.PushRequest(bank=bank, records=[*bad, *good, *edges]), metadata=token
        )
        assert [r.status for r in answer.results[:5]] == ["rejected"] * 5
        assert [r.reason.split(":")[0] for r in answer.results[:5]] == [
            "text",
            "occurred_at",
            "metadata",
            "content_hash",
            "id",
        ]
        assert {r.status for r in answer.results[5:]} <= {"stored", "duplicate"}
        listed = await stack.feed(feed).ListChanges(
            feed_pb2.ListChangesRequest(bank=bank, limit=1000), metadata=token
        )
        stored = [r.id for r in answer.results if r.status == "stored"]
        assert sorted(c.id for c in listed.changes) == sorted(stored)
        too_many = sync_pb2.PushRequest(bank=bank, records=[a_record() for _ in range(101)])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stack.sync(sync).Push(too_many, metadata=token)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_request_of_too_many_bytes_is_refused_by_name_whole(stack: RunningStack) -> None:
    """Each record is within its limits, and all of them are more than one request takes."""
    bank = f"project:bytes-{uuid.uuid4().hex[:8]}"
    token = stack.credential(await stack.token("user:alice", ("project:*", "read write")))
    large = sync_pb2.PushRequest(bank=bank, records=[a_record() for _ in range(100)])
    for each in large.records:
        each.text = each.id + "x" * 42_000
    assert validation.LARGEST < large.ByteSize() < 2 * validation.LARGEST
    fits = sync_pb2.PushRequest()
    fits.CopyFrom(large)
    for each in fits.records:
        each.id = "short"  # judged one by one, and none is stored
    fits.records[0].text = fits.records[0].text[: validation.LARGEST - fits.ByteSize()]
    assert fits.ByteSize() == validation.LARGEST
    batches = [
        sync_pb2.PushStreamRequest(bank=bank, sequence=1, records=[a_record()]),
        sync_pb2.PushStreamRequest(sequence=2, records=large.records),
    ]
    async with stack.channel("sync") as sync, stack.channel("feed") as feed:
        answer = await stack.sync(sync).Push(fits, metadata=token)
        assert {result.status for result in answer.results} == {"rejected"}
        with pytest.raises(grpc.aio.AioRpcError) as alone:
            await stack.sync(sync).Push(large, metadata=token)
        stream = stack.sync(sync).PushStream(iter(batches), metadata=token)
        assert (await stream.read()).sequence == 1
        with pytest.raises(grpc.aio.AioRpcError) as streamed:
            await stream.read()
        for refused in (outcome_of(alone.value), outcome_of(streamed.value)):
            assert (refused.code, refused.reason, refused.fields) == ("INVALID_ARGUMENT", "FIELD_INVALID", ("records",))
            assert str(validation.LARGEST) in refused.message
        head = await stack.feed(feed).GetHead(feed_pb2.GetHeadRequest(bank=bank), metadata=token)
        assert head.head == 1


async def test_after_all_garbage_the_feed_is_read_from_start_to_end(stack: RunningStack) -> None:
    token = stack.credential(await stack.token("user:alice", ("project:*", "read")))
    async with stack.channel("feed") as feed:
        cursor, seen = "", 0
        while True:
            page = await stack.feed(feed).ListChanges(
                feed_pb2.ListChangesRequest(bank=BANK, cursor=cursor, limit=100), metadata=token
            )
            assert page.after_seq == seen
            seen, cursor = page.through_seq, page.next_cursor
            if not page.has_more:
                break
        digest = await stack.feed(feed).GetDigest(feed_pb2.GetDigestRequest(bank=BANK), metadata=token)
        assert seen == digest.seq
