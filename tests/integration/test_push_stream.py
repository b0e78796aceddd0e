"""A first sync through PushStream on real processes: every batch its own commit and audit row, and sent twice it is unchanged."""

import asyncio
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import asyncpg
from teamlore.auth.v1 import access_pb2, access_pb2_grpc
from teamlore_client._address import parse_address
from teamlore_client._memory import Memory, scope_of
from teamlore_client._rpc import TeamClient
from teamlore_client._streaming import ON_THE_WAY

from tests.integration.conftest import RunningStack

BANK = "project:stream-1a2b3c4d"
BATCHES, SIZE = 20, 100


async def test_a_long_stream_commits_batch_by_batch(stack: RunningStack) -> None:
    token = await stack.token("user:streamer", (BANK, "read write"))
    async with stack.channel("auth") as auth:
        access, admin = access_pb2_grpc.AccessServiceStub(auth), stack.credential(stack.admin)
        await access.PutBank(access_pb2.PutBankRequest(bank=BANK), metadata=admin)
        policy = access_pb2.Policy(near_duplicates="off")
        await access.PutPolicy(access_pb2.PutPolicyRequest(bank=BANK, policy=policy), metadata=admin)
    address = parse_address(
        ",".join(f"{name}=http://{stack.address(name)}" for name in ("auth", "sync", "feed", "compliance"))
    )
    mark, scope, moment = uuid.uuid4().hex[:6], scope_of(BANK), datetime.now(UTC)
    out = most = 0

    def batches() -> Iterator[Sequence[Memory]]:
        nonlocal out, most
        for number in range(BATCHES):
            out += 1
            most = max(most, out)
            yield [
                Memory(f"{mark}-{number:03}-{n:03}", BANK, scope, f"text {number} {n}", moment)
                for n in range(SIZE)
            ]

    def streamed() -> list[str]:
        nonlocal out
        statuses = []
        with TeamClient(address, token) as client:
            for _, answers in client.push_stream(BANK, batches()):
                out -= 1
                statuses += [answer.status for answer in answers]
            digest = client.get_digest(BANK)
        assert (digest.count, digest.seq) == (BATCHES * SIZE, BATCHES * SIZE)
        return statuses

    assert set(await asyncio.to_thread(streamed)) == {"stored"} and most == ON_THE_WAY
    assert set(await asyncio.to_thread(streamed)) == {"unchanged"}
    database = await asyncpg.connect(stack.facts.database_url)
    rows = await database.fetch(
        "select objects, count(*) from compliance.audit_calls where bank = $1 and name = 'memory.push_stream' group by 1",
        BANK,
    )
    await database.close()
    assert [tuple(row) for row in rows] == [(SIZE, BATCHES)]
