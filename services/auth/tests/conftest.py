"""The auth service in this process, over gRPC and a database of its own: calls pass the interceptor as ever."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from teamlore.auth.v1 import access_pb2, access_pb2_grpc, auth_pb2_grpc

from kit import audit
from kit.database import Database
from kit.decisions import Decisions
from kit.foundation import Drain, Foundation
from kit.interceptor import Interceptor
from kit.limits import Limits
from services.auth.bootstrap import bootstrap
from services.auth.main import Config, build
from services.auth.store import QUERIES, Store
from services.auth.tokens import make_token


class Refused(Exception):
    """A refusal as the caller sees it."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        self.code, self.message = error.code().name, error.details()
        self.reason, self.fields, self.metadata = "", [], {}
        for key, value in error.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                for detail in status_pb2.Status.FromString(value).details:
                    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
                    if detail.Unpack(info):
                        self.reason, self.metadata = info.reason, dict(info.metadata)
                    if detail.Unpack(bad):
                        self.fields = [violation.field for violation in bad.field_violations]
        super().__init__(f"{self.reason} {self.fields} {self.message}")


@dataclass
class Auth:
    """A running auth service with its first admin, user:root."""

    url: str
    channel: grpc.aio.Channel
    built: Any
    root: str
    database: asyncpg.Connection

    async def __call__(self, name: str, request: Any, token: str = "", *more: tuple[str, str]) -> Any:
        """Makes a call with the access state of now. Raises Refused."""
        await self.built.authenticator.access._poll_once()
        stub = self.stub(name)
        try:
            return await stub(request, metadata=(("authorization", f"Bearer {token or self.root}"), *more))
        except grpc.aio.AioRpcError as error:
            raise Refused(error) from error

    def stub(self, name: str) -> Any:
        access = access_pb2_grpc.AccessServiceStub(self.channel)
        return getattr(access, name, None) or getattr(auth_pb2_grpc.AuthServiceStub(self.channel), name)

    async def refusal(self, name: str, request: Any, token: str = "", *more: tuple[str, str]) -> Refused:
        with pytest.raises(Refused) as caught:
            await self(name, request, token, *more)
        return caught.value

    async def token(self, principal: str, *grants: tuple[str, str], kind: str = "agent", **more: Any) -> str:
        parts = [access_pb2.Grant(pattern=p, permissions=w.split()) for p, w in grants]
        request = access_pb2.CreateTokenRequest(principal=principal, kind=kind, grants=parts, **more)
        return (await self("CreateToken", request)).token

    async def present(self) -> str:
        """The first admin as a person who is present."""
        from teamlore.auth.v1 import auth_pb2

        return (await self("StartSession", auth_pb2.StartSessionRequest(person_token=self.root))).session_token

    async def session(self, principal: str) -> str:
        """A person session, as `teamlore login` makes one."""
        ends = datetime.now(UTC) + timedelta(minutes=15)
        token = replace(make_token(principal, "person", (), ends), personal=True, session=True)
        database = await Database.connect(self.url, "auth", QUERIES, size=1)
        with audit.calling(audit.CallContext("auth.session_started", principal, token.token_id)):
            await Store(database).add_token(token, principal)
        await database.close()
        return token.secret

    async def who(self, token: str, bank: str = "") -> Any:
        from teamlore.auth.v1 import auth_pb2

        return await self("WhoAmI", auth_pb2.WhoAmIRequest(bank=bank), token)

    async def audited(self) -> list[str]:
        """The names of all audit rows so far."""
        return [
            r["name"]
            for r in await self.database.fetch("select name from compliance.audit_calls order by audit_id")
        ]

    async def version(self) -> int:
        return int(await self.database.fetchval("select version from auth.access_head"))


@pytest.fixture
async def auth(database_url: str, tmp_path: Path) -> AsyncIterator[Auth]:
    root = await bootstrap(database_url, "user:root")
    assert root is not None
    drain = Drain()
    config = Config(database_url=database_url, keystore=str(tmp_path / "keys.db"))
    async with Foundation.laid("auth", config, QUERIES, drain, 10) as base:
        built = await build(config, base)
        decisions = Decisions(base.database, "auth")
        server = grpc.aio.server(
            interceptors=[Interceptor(built, drain, Limits(100_000, 100_000, 100), decisions)]
        )
        for add, handlers in built.services.values():
            add(handlers, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        database = await asyncpg.connect(database_url)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Auth(database_url, channel, built, root, database)
        await database.close()
        await server.stop(0)
