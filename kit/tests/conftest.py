"""The service that the tests of the steps of a call share."""

from collections.abc import AsyncIterator

import grpc
import pytest
from teamlore.auth.v1 import access_pb2_grpc, auth_pb2_grpc
from teamlore.compliance.v1 import compliance_pb2_grpc
from teamlore.feed.v1 import feed_pb2_grpc
from teamlore.sync.v1 import sync_pb2_grpc

from kit.database import Database
from kit.decisions import Decisions
from kit.foundation import Drain
from kit.interceptor import Built, Interceptor
from kit.limits import Limits
from kit.serving import OPTIONS
from kit.tests.served import (
    ACCESS,
    AUTH,
    FEED,
    HEAD,
    PARTICIPANT,
    QUERIES,
    SYNC,
    Auth,
    Callers,
    Feed,
    Push,
    Served,
)


@pytest.fixture
async def served(database_url: str) -> AsyncIterator[Served]:
    database = await Database.connect(database_url, "feed", QUERIES)
    callers, push, drain = Callers(database), Push(), Drain()
    services = {
        FEED: (feed_pb2_grpc.add_FeedServiceServicer_to_server, Feed()),
        AUTH: (auth_pb2_grpc.add_AuthServiceServicer_to_server, Auth()),
        SYNC: (sync_pb2_grpc.add_SyncServiceServicer_to_server, push),
        PARTICIPANT: (
            compliance_pb2_grpc.add_ErasureParticipantServiceServicer_to_server,
            compliance_pb2_grpc.ErasureParticipantServiceServicer(),
        ),
        ACCESS: (access_pb2_grpc.add_AccessServiceServicer_to_server, access_pb2_grpc.AccessServiceServicer()),
    }
    counted = Decisions(database, "feed")
    built = Built(
        callers,  # type: ignore[arg-type]  # callers are the test's
        services,
        counted_as={f"{SYNC}.PushStream": f"{SYNC}.Push"},
        judges_credentials=frozenset((f"{AUTH}.ExchangeToken",)),
    )
    limits = Limits(100, 4, 2, {HEAD: 5, f"{SYNC}.Push": 20})
    server = grpc.aio.server(interceptors=[Interceptor(built, drain, limits, counted)], options=OPTIONS)
    for add, handlers in services.values():
        add(handlers, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Served(database_url, f"127.0.0.1:{port}", channel, counted, callers, push, drain)
    await server.stop(0)
    await counted.stop()
    await database.close()
