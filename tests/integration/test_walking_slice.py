"""Push → feed → the other laptop lists it, over real processes."""

import asyncio
import uuid

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from teamlore.feed.v1 import feed_pb2
from teamlore.sync.v1 import sync_pb2
from teamlore_client import _sync as laptop

from services.sync.pushing import FORGOTTEN
from tests.integration.conftest import RunningStack


def reason_of(error: grpc.aio.AioRpcError) -> str:
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            info = error_details_pb2.ErrorInfo()
            status = status_pb2.Status.FromString(value)
            assert status.details[0].Unpack(info)
            return info.reason
    return ""


def record(text: str, **more: object) -> sync_pb2.Record:
    return sync_pb2.Record(id=uuid.uuid4().hex[:16], text=text, **more)


async def test_what_alice_pushes_bob_reads_with_her_name(stack: RunningStack) -> None:
    bank = "project:walk-1a2b3c4d"
    alice = await stack.token("user:alice", ("project:*", "read write forget"))
    bob = await stack.token("user:bob", ("project:*", "read write"))
    sent = record("We use SQS for the order queue.", tags=["queue"], fact_type="decision")
    sent.metadata["_actor"].string_value = "user:mallory"
    sent.metadata["source"].string_value = "codex"
    async with stack.channel("sync") as sync, stack.channel("feed") as feed:
        request = sync_pb2.PushRequest(bank=bank, records=[sent])
        first = await stack.sync(sync).Push(request, metadata=stack.credential(alice))
        again = await stack.sync(sync).Push(request, metadata=stack.credential(alice))
        listed = await stack.feed(feed).ListChanges(
            feed_pb2.ListChangesRequest(bank=bank), metadata=stack.credential(bob)
        )
        digest = await stack.feed(feed).GetDigest(
            feed_pb2.GetDigestRequest(bank=bank), metadata=stack.credential(bob)
        )
    assert [r.status for r in first.results] == ["stored"]
    assert [r.status for r in again.results] == ["unchanged"]
    assert [(c.id, c.text, c.author, list(c.tags), c.fact_type) for c in listed.changes] == [
        (sent.id, sent.text, "user:alice", ["queue"], "decision")
    ]
    assert dict(listed.changes[0].metadata) == {"source": sent.metadata["source"]}
    assert (listed.after_seq, listed.through_seq, listed.has_more) == (0, 1, False)
    assert (digest.seq, digest.count) == (1, 1)


async def test_a_watcher_hears_a_commit_and_a_forget(stack: RunningStack) -> None:
    bank = "project:watch-1a2b3c4d"
    alice = stack.credential(await stack.token("user:alice", ("project:*", "read write forget")))
    async with stack.channel("sync") as sync, stack.channel("feed") as feed:
        watch = stack.feed(feed).WatchChanges(feed_pb2.WatchChangesRequest(bank=bank), metadata=alice)
        start = await watch.read()
        assert start.bookmark.seq == 0
        sent = record("We moved to Kafka.")
        await stack.sync(sync).Push(sync_pb2.PushRequest(bank=bank, records=[sent]), metadata=alice)
        batch = (await watch.read()).batch
        assert [(c.id, c.deleted) for c in batch.changes] == [(sent.id, False)]
        assert (await watch.read()).bookmark.seq == 1
        forgotten = await stack.sync(sync).Forget(
            sync_pb2.ForgetRequest(bank=bank, memory_ids=[sent.id]), metadata=alice
        )
        assert forgotten.deleted_count == 1
        batch = (await watch.read()).batch
        assert [(c.id, c.deleted, c.text) for c in batch.changes] == [(sent.id, True, "")]
        resumed = await stack.feed(feed).ListChanges(
            feed_pb2.ListChangesRequest(bank=bank, cursor=batch.next_cursor), metadata=alice
        )
        assert not resumed.changes and resumed.through_seq == 2
        watch.cancel()


@pytest.mark.parametrize(
    ("grant", "bank", "code", "reason"),
    [
        ("project:*", "projectx-1a2b3c4d", grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"),
        ("project:*", "private:user:bob", grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"),
        ("*", "private:user:bob", grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"),
        ("*", "nolayer-1", grpc.StatusCode.INVALID_ARGUMENT, "INVALID_SCOPE"),
        ("*", "bad bank", grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID"),
    ],
)
async def test_a_push_beyond_its_grant_is_refused(
    stack: RunningStack, grant: str, bank: str, code: grpc.StatusCode, reason: str
) -> None:
    token = stack.credential(await stack.token("user:eve", (grant, "read write")))
    async with stack.channel("sync") as sync:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stack.sync(sync).Push(
                sync_pb2.PushRequest(bank=bank, records=[record("x y")]), metadata=token
            )
    assert (caught.value.code(), reason_of(caught.value)) == (code, reason)


async def test_a_token_without_forget_cannot_erase_and_a_revoked_one_nothing(stack: RunningStack) -> None:
    from teamlore.auth.v1 import access_pb2, access_pb2_grpc, auth_pb2, auth_pb2_grpc

    bank = "project:forget-1a2b3c4d"
    bob = stack.credential(await stack.token("user:bob", ("project:*", "read write")))
    async with stack.channel("sync") as sync, stack.channel("auth") as auth:
        request = sync_pb2.ForgetRequest(bank=bank, memory_ids=["abcdefgh"], erase=True)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stack.sync(sync).Forget(request, metadata=bob)
        assert reason_of(caught.value) == "PERMISSION_DENIED"
        who = await auth_pb2_grpc.AuthServiceStub(auth).WhoAmI(
            auth_pb2.WhoAmIRequest(bank=bank), metadata=bob
        )
        assert (who.principal, list(who.permissions)) == ("user:bob", ["read", "write"])
        await access_pb2_grpc.AccessServiceStub(auth).RevokeToken(
            access_pb2.RevokeTokenRequest(token_id=who.token_id), metadata=stack.credential(stack.admin)
        )
        await asyncio.sleep(1.2)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stack.sync(sync).Push(
                sync_pb2.PushRequest(bank=bank, records=[record("x y")]), metadata=bob
            )
        assert reason_of(caught.value) == "CREDENTIAL_REVOKED"


async def test_a_scoped_admin_can_make_tokens_for_itself_alone(stack: RunningStack) -> None:
    from teamlore.auth.v1 import access_pb2, access_pb2_grpc

    mallory = stack.credential(await stack.token("user:mallory", ("project:mal-*", "read admin")))

    def request(principal: str, pattern: str = "project:mal-1", *words: str) -> access_pb2.CreateTokenRequest:
        grants = [access_pb2.Grant(pattern=pattern, permissions=words or ("read",))]
        return access_pb2.CreateTokenRequest(principal=principal, kind="agent", grants=grants)

    async with stack.channel("auth") as channel:
        stub = access_pb2_grpc.AccessServiceStub(channel)
        assert (await stub.CreateToken(request("user:mallory"), metadata=mallory)).token
        for refused in (
            request("user:bob"),
            request("user:mallory", "project:*"),
            request("user:mallory", "project:mal-1", "comply"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.CreateToken(refused, metadata=mallory)
            assert reason_of(caught.value) == "PERMISSION_DENIED"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.CreateToken(request("service:sync"), metadata=stack.credential(stack.admin))
        assert reason_of(caught.value) == "FIELD_INVALID"


async def test_a_page_of_large_memories_stays_below_the_message_limit(stack: RunningStack) -> None:
    bank = "project:large-1a2b3c4d"
    token = stack.credential(await stack.token("user:alice", ("project:*", "read write")))
    async with stack.channel("sync") as sync, stack.channel("feed") as feed:
        for start in range(0, 120, 20):
            records = [record(f"{uuid.uuid4()} " + chr(0x1F600 + start + n % 20) * 14_000) for n in range(20)]
            await stack.sync(sync).Push(sync_pb2.PushRequest(bank=bank, records=records), metadata=token)
        digest = await stack.feed(feed).GetDigest(feed_pb2.GetDigestRequest(bank=bank), metadata=token)
        seen, page_token = 0, ""
        while True:
            page = await stack.feed(feed).ListLive(
                feed_pb2.ListLiveRequest(bank=bank, page_token=page_token), metadata=token
            )
            seen, page_token = seen + len(page.memories), page.next_page_token
            if not page_token:
                break
        assert seen == digest.count > 60


@pytest.mark.parametrize("erase", [False, True])
async def test_a_forgotten_id_is_refused_in_the_words_that_laptops_know(
    stack: RunningStack, erase: bool
) -> None:
    bank, sent = f"project:words-{erase}", record("Not for long.")
    who = stack.credential(await stack.token("user:alice", ("project:*", "read write forget")))
    async with stack.channel("sync") as channel:
        sync, push = stack.sync(channel), sync_pb2.PushRequest(bank=bank, records=[sent])
        await sync.Push(push, metadata=who)
        await sync.Forget(sync_pb2.ForgetRequest(bank=bank, memory_ids=[sent.id], erase=erase), metadata=who)
        (result,) = (await sync.Push(push, metadata=who)).results
    assert (result.status, result.reason) == ("rejected", laptop.FORGOTTEN)
    assert laptop.FORGOTTEN == FORGOTTEN


@pytest.mark.parametrize("erase", [False, True])
async def test_who_may_forget_alone_binds_a_late_push_also_where_the_bank_is_not_made_yet(
    stack: RunningStack, erase: bool
) -> None:
    bank, late = f"project:late-{uuid.uuid4().hex[:8]}", record("From a long flight.")
    officer = stack.credential(await stack.token("service:cleaner", ("project:*", "forget")))
    alice = stack.credential(await stack.token("user:alice", ("project:*", "read write")))
    async with stack.channel("sync") as channel:
        sync = stack.sync(channel)
        forget = sync_pb2.ForgetRequest(bank=bank, memory_ids=[late.id], erase=erase)
        answer = await sync.Forget(forget, metadata=officer)
        assert (answer.deleted_count, answer.erased_count, answer.erasure_id) == (0, 0, "")
        (result,) = (await sync.Push(sync_pb2.PushRequest(bank=bank, records=[late]), metadata=alice)).results
    assert (result.status, result.reason) == ("rejected", FORGOTTEN)
