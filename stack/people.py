"""The first admin and two people of a stack on one machine; their tokens are kept in stack.json for scripts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from teamlore.auth.v1 import access_pb2, access_pb2_grpc

from stack import topology
from stack.environment import needed
from stack.errors import StackError
from stack.jsonfile import load, save
from stack.topology import Facts, Settings

NAMES = ("alice", "bob")
_GRANTS = {"alice": ("read", "write", "forget"), "bob": ("read", "write")}


@dataclass(frozen=True)
class People:
    """Opaque tokens: the admin's, and one for each of NAMES."""

    admin: str
    tokens: dict[str, str]


async def ensure_people(settings: Settings, facts: Facts) -> People:
    """Return the people of this stack, made at the first run. Raises StackError where the admin's token is lost."""
    path = settings.data / "stack.json"
    kept = load(path)
    admin = str(kept.get("admin_token") or "") or await _bootstrap(settings, facts)
    if not kept.get("admin_token"):
        # Kept before anything else is made, since it is shown only once.
        kept = _keep(path, admin_token=admin)
    tokens: dict[str, str] = dict(kept.get("tokens", {}))
    for name in NAMES:
        if name not in tokens:
            tokens[name] = await _create(facts, admin, name)
            _keep(path, tokens=tokens)
    addresses = {name: topology.address(facts, name) for name in topology.SERVICES}
    _keep(path, addresses=addresses, database_url=facts.database_url)
    return People(admin, tokens)


def _keep(path: Path, **entries: Any) -> dict[str, Any]:
    kept = {**load(path), **entries}
    save(path, kept, mode=0o600)
    return kept


async def _bootstrap(settings: Settings, facts: Facts) -> str:
    process = await asyncio.create_subprocess_exec(
        settings.python, "-m", "services.auth.bootstrap",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env=needed() | topology.python_env(settings) | {"DATABASE_URL": facts.database_url}, cwd=settings.root,
    )  # fmt: skip
    said, complained = await process.communicate()
    if process.returncode == 3:
        raise StackError(
            f"the database has an admin, but {settings.data / 'stack.json'} no longer holds its token: "
            "put it back, or start with another data folder"
        )
    if process.returncode != 0:
        raise StackError(
            f"the first admin could not be made: {complained.decode().strip().splitlines()[-1:]}"
        )
    return said.decode().strip()


async def _create(facts: Facts, admin: str, name: str) -> str:
    request = access_pb2.CreateTokenRequest(
        principal=f"user:{name}",
        kind="agent",
        grants=[access_pb2.Grant(pattern="project:*", permissions=_GRANTS[name])],
    )
    async with grpc.aio.insecure_channel(topology.address(facts, "auth")) as channel:
        try:
            answer = await access_pb2_grpc.AccessServiceStub(channel).CreateToken(
                request, timeout=20, metadata=(("authorization", f"Bearer {admin}"),)
            )
        except grpc.aio.AioRpcError as error:
            raise StackError(f"no token could be made for {name}: {error.details()}") from error
    return answer.token
