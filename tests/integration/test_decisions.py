"""Each service counts what it decides: denials at once, grants within seconds, and nothing in words."""

import asyncio
import uuid

import asyncpg
import grpc
import pytest
from teamlore.auth.v1 import auth_pb2, auth_pb2_grpc
from teamlore.feed.v1 import feed_pb2
from teamlore.sync.v1 import sync_pb2

from tests.integration.conftest import RunningStack
from tests.integration.test_walking_slice import record

ROWS = (
    "select service, method, name, reason, bank, token_id, count, coalesce(principal, '') as principal"
    " from compliance.decisions left join compliance.principals using (principal_ref)"
)


async def test_denials_stand_when_they_are_answered_and_grants_follow(stack: RunningStack) -> None:
    who, bank = f"user:dana-{uuid.uuid4().hex[:8]}", "project:decide-1a2b3c4d"
    token = await stack.token(who, ("project:*", "read write"))
    database = await asyncpg.connect(stack.facts.database_url)
    try:
        async with (
            stack.channel("sync") as sync,
            stack.channel("feed") as feed,
            stack.channel("auth") as auth,
        ):
            mine = stack.credential(token)
            await stack.sync(sync).Push(
                sync_pb2.PushRequest(bank=bank, records=[record("x y")]), metadata=mine
            )
            with pytest.raises(grpc.aio.AioRpcError):
                request = sync_pb2.ForgetRequest(bank="private:user:bob", memory_ids=["abcdefgh"])
                await stack.sync(sync).Forget(request, metadata=mine)
            with pytest.raises(grpc.aio.AioRpcError):
                await stack.feed(feed).GetHead(feed_pb2.GetHeadRequest(bank=bank))
            with pytest.raises(grpc.aio.AioRpcError):
                guess = auth_pb2.ExchangeTokenRequest(token="tlk_" + "g" * 43)
                await auth_pb2_grpc.AuthServiceStub(auth).ExchangeToken(guess)
        rows = await database.fetch(ROWS + " where name = 'access.denied'")
        found = {(r["service"], r["method"].rpartition(".")[2], r["reason"], r["principal"]) for r in rows}
        assert found >= {
            ("sync", "Forget", "PERMISSION_DENIED", who),
            ("feed", "GetHead", "CREDENTIAL_MISSING", ""),
            ("auth", "ExchangeToken", "CREDENTIAL_INVALID", ""),
        }
        (denied,) = [r for r in rows if r["principal"] == who]
        bob = await database.fetchval(
            "select principal_ref from compliance.principals where principal = 'user:bob'"
        )
        assert (denied["bank"], denied["count"]) == (f"private:{bob}", 1)
        for _ in range(100):
            granted = await database.fetch(ROWS + " where name = 'access.granted' and principal = $1", who)
            if granted:
                break
            await asyncio.sleep(0.1)
        assert [(r["service"], r["method"], r["count"], r["bank"], r["reason"]) for r in granted] == [
            ("sync", "teamlore.sync.v1.SyncService.Push", 1, "", "")
        ]
        raw = str([dict(row) for row in await database.fetch("select * from compliance.decisions")])
        assert token not in raw and "dana" not in raw and "bob" not in raw
    finally:
        await database.close()
