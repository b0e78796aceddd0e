"""Who has every file of a laptop is an agent and no person, also while the person is signed in beside it."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from teamlore.auth.v1 import access_pb2, access_pb2_grpc, auth_pb2, auth_pb2_grpc
from terminal import TEAMLORE, Terminal, gone, terminal

from kit.access import PERMISSIONS
from kit.authorising import access_of
from tests.integration.calls import call, outcome_of, service_of
from tests.integration.conftest import RunningStack
from tests.integration.test_access_matrix import bearer, request_for
from tests.test_descriptors import methods

CREDENTIAL = re.compile(rb"tlk_[A-Za-z0-9_-]{20,}|eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
KEYRING = {"PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring"}
PERSONAL = [method for method in methods() if access_of(method).person]


def said(answer: tuple[int, str]) -> Any:
    code, text = answer
    assert code == 0, text
    return json.loads(text[text.index("{") : text.rindex("}") + 1])


def signed_in(at: Terminal, person: str) -> None:
    at.type(f"{TEAMLORE} login; echo __$?__")
    at.expect("Person token: ")
    at.type(person)
    code, text = at.end()
    assert code == 0, text


def found_in(home: Path) -> set[str]:
    """Every string in any file below `home` that looks like a credential."""
    files = [path for path in home.rglob("*") if path.is_file()]
    return {found.decode() for path in files for found in CREDENTIAL.findall(path.read_bytes())}


def elsewhere(home: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """A command in a session of its own, without a terminal, as an agent's process runs it."""
    return subprocess.run(
        [sys.executable, "-m", "teamlore_client.cli", *arguments],
        cwd=home / "orders",
        env={"HOME": str(home), "PATH": os.environ["PATH"], **KEYRING},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        start_new_session=True,
    )


async def reason(answer: Any) -> str:
    try:
        await answer
    except grpc.aio.AioRpcError as error:
        return outcome_of(error).reason
    return "OK"


async def refused_as_no_person(stack: RunningStack, credential: str) -> None:
    """Every method that needs a person refuses the credential, and names that as the reason."""
    for method in PERSONAL:
        async with stack.channel(service_of(method)) as channel:
            request = request_for(method, "project:person-1a2b3c4d")
            seen = await call(channel, method, request, bearer(credential))
        assert seen.reason == "PERSON_REQUIRED", (method.full_name, seen)


async def tries(stack: RunningStack, agent: str, me: str, person_id: str, everything: bool) -> None:
    """All that an agent's credential may be turned into, and that none of it is a person."""
    who = bearer(agent)
    async with stack.channel("auth") as channel:
        access, auth = access_pb2_grpc.AccessServiceStub(channel), auth_pb2_grpc.AuthServiceStub(channel)
        grants = [access_pb2.Grant(pattern="project:*", permissions=["read"])]
        denied = "PERSON_REQUIRED" if everything else "PERMISSION_DENIED"
        for principal in (me, "user:another"):
            for given in ([], grants):
                make = access_pb2.CreateTokenRequest(principal=principal, kind="person", grants=given)
                assert await reason(access.CreateToken(make, metadata=who)) == denied
        rotate = access_pb2.RotateTokenRequest(token_id=person_id)
        assert await reason(access.RotateToken(rotate, metadata=who)) == denied
        exchanged = await auth.ExchangeToken(auth_pb2.ExchangeTokenRequest(token=agent))
        for credential in (agent, exchanged.access_token):
            for field in ("person_token", "id_token"):
                start = auth_pb2.StartSessionRequest(**{field: credential})
                assert await reason(auth.StartSession(start)) in ("CREDENTIAL_INVALID", "FIELD_INVALID")
            await refused_as_no_person(stack, credential)
            assert not (
                await auth.WhoAmI(auth_pb2.WhoAmIRequest(), metadata=bearer(credential))
            ).person_present
        made = access_pb2.CreateTokenRequest(principal=me, kind="agent", grants=grants)
        assert await reason(access.CreateToken(made, metadata=who)) == "PERMISSION_DENIED"
        own = (await auth.WhoAmI(auth_pb2.WhoAmIRequest(), metadata=who)).token_id
        again = access_pb2.RotateTokenRequest(token_id=own, overlap_seconds=600)
        assert await reason(access.RotateToken(again, metadata=who)) == "PERMISSION_DENIED"


@pytest.mark.parametrize(
    ("pattern", "words"),
    [("project:*", ("read", "write", "forget")), ("*", PERMISSIONS)],
    ids=["member", "admin"],
)
def test_every_file_of_a_laptop_makes_no_person(
    stack: RunningStack, tmp_path: Path, pattern: str, words: Sequence[str]
) -> None:
    assert {method.name for method in PERSONAL} >= {"CreatePersonalKey"}
    me, home, copy = f"user:{uuid.uuid4().hex[:8]}", tmp_path / "home", tmp_path / "copy"
    home.mkdir()
    subprocess.run(["git", "init", "-q", str(home / "orders")], check=True)
    remote = f"https://git.example.com/{uuid.uuid4().hex[:8]}.git"
    subprocess.run(["git", "-C", str(home / "orders"), "remote", "add", "origin", remote], check=True)
    server = ",".join(f"{name}={stack.address(name)}" for name in ("auth", "sync", "feed", "compliance"))
    person = asyncio.run(stack.token(me, (pattern, " ".join(words)), kind="person"))

    async def person_id() -> str:
        async with stack.channel("auth") as channel:
            me = await auth_pb2_grpc.AuthServiceStub(channel).WhoAmI(
                auth_pb2.WhoAmIRequest(), metadata=bearer(person)
            )
        return str(me.token_id)

    with terminal(home, TEAMLORE_SERVER=server, **KEYRING) as at:
        at.run("cd orders")
        signed_in(at, person)
        joined = said(at.run(f"{TEAMLORE} team join {server} --yes --json"))
        for line in ("memory add 'We use SQS.'", "team sync", "memory recall queue", "admin token list"):
            code, text = at.run(f"{TEAMLORE} {line}")
            assert code == 0, text
        assert said(at.run(f"{TEAMLORE} whoami --json"))["person_present"]
        # Sockets stay where they are; who has the files may still go there, and so does a command below.
        shutil.copytree(home, copy, ignore=lambda _, names: [n for n in names if n.endswith("sessions")])
        (agent,) = found_in(copy)
        assert person != agent
        for place in (home, copy):
            assert elsewhere(place, "session", "--json").returncode == 1
            told = json.loads(elsewhere(place, "whoami", "--json").stdout)
            assert (told["credential"], told["kind"], told["person_present"]) == (
                "membership",
                "agent",
                False,
            )
            assert told["token_id"] == joined["personal_key"]
        asyncio.run(tries(stack, agent, me, asyncio.run(person_id()), everything=pattern == "*"))
        assert said(at.run(f"{TEAMLORE} whoami --json"))["person_present"], "the session lived all the while"
    assert gone(home)
