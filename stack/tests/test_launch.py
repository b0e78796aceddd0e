"""A whole stack on a tree of small stand-in services, and the pure functions that describe it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest

from stack import topology
from stack.credentials import service_tokens, token_hash
from stack.errors import StackError
from stack.health import grpc_serving
from stack.launch import _claimed, clean, launch
from stack.placement import relocation_folder
from stack.ports import free_port, is_free, kept_ports
from stack.tests.conftest import alive
from stack.topology import Facts, Settings

ROOT = Path(__file__).resolve().parents[2]

SERVICE = """
import json, os, signal, sys
from concurrent.futures import ThreadPoolExecutor
import grpc
from grpc_health.v1 import health, health_pb2_grpc

server = grpc.server(ThreadPoolExecutor(2))
health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
server.add_insecure_port(os.environ["TEAMLORE_LISTEN"])
signal.signal(signal.SIGTERM, lambda *_: server.stop(0.1))
server.start()
print("up", flush=True)
server.wait_for_termination()
"""
MIGRATE = """
import asyncio, os, asyncpg

async def main():
    connection = await asyncpg.connect(os.environ["DATABASE_URL"])
    await connection.execute("create table if not exists runs (at timestamptz default now())")
    await connection.execute("insert into runs default values")
    print(await connection.fetchval("select count(*) from runs"))

asyncio.run(main())
"""


@pytest.fixture
def settings(folder: Path) -> Settings:
    """A tree with auth, index, the engine and a migration, and an empty data folder."""
    root = folder / "tree"
    for name in ("services/auth", "services/index", "services/index/engine"):
        (root / name).mkdir(parents=True)
        (root / name / "main.py").write_text(SERVICE)
    (root / "kit").mkdir()
    (root / "kit" / "migrate.py").write_text(MIGRATE)
    return Settings(data=folder / "data", root=root)


async def test_comes_up_twice_with_the_same_data_and_leaves_nothing(settings: Settings) -> None:
    seen = []
    for run in (1, 2):
        async with launch(settings, lambda _: None) as stack:
            assert stack is not None and stack.supervisor.names() == ["postgres", "engine", "auth", "index"]
            for name in ("engine", "auth", "index"):
                assert await grpc_serving("127.0.0.1", stack.facts.ports[name])
            pids = [stack.supervisor.pid(name) for name in stack.supervisor.names()]
            seen.append(stack.facts)
            with pytest.raises(StackError, match="a stack already runs on"):
                async with launch(settings):
                    pass
        assert not any(alive(pid) for pid in pids if pid is not None)
        assert (settings.data / "logs" / "migrate.log").read_text().split()[-1] == str(run)
    assert seen[0] == seen[1]
    assert sorted(path.name for path in (settings.data / "logs").iterdir()) == [
        "auth.log", "engine.log", "index.log", "migrate.log", "postgres.log",
    ]  # fmt: skip


async def test_a_service_is_told_what_it_knows_and_not_what_else_its_person_exported(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = {"TEAMLORE_TOKEN": "tlk_mine", "TEAMLORE_SERVER": "@team", "TEAMLORE_TEAM_TOKEN": "tlk_x", "PGUSER": "me"}
    told = {"TEAMLORE_CALLS_PER_MINUTE": "7", "TEAMLORE_JWT_SECONDS": "8", "OTEL_SERVICE_NAME": "s", "https_proxy": "p"}
    for name, value in (mine | told).items():
        monkeypatch.setenv(name, value)
    settings = replace(settings, environ=dict(os.environ))
    (settings.root / "kit" / "migrate.py").write_text(f"import os\nassert not {set(mine)} & set(os.environ)")
    async with launch(settings, lambda _: None) as stack:
        assert stack is not None
        seen = {}
        for name in stack.supervisor.names():
            pairs = Path(f"/proc/{stack.supervisor.pid(name)}/environ").read_bytes().decode().split("\0")
            seen[name] = {pair.partition("=")[0] for pair in pairs}
    common = {"PATH", "OTEL_SERVICE_NAME", "https_proxy"}
    for name, more in (
        ("auth", {"TEAMLORE_CALLS_PER_MINUTE", "TEAMLORE_JWT_SECONDS"}), ("index", {"TEAMLORE_CALLS_PER_MINUTE"}),
        ("engine", set[str]()), ("postgres", set[str]()),
    ):  # fmt: skip
        assert seen[name] & (set(mine) | set(told) | common) == common | more, name


async def test_failed_migration_is_one_clear_line(settings: Settings) -> None:
    (settings.root / "kit" / "migrate.py").write_text("raise SystemExit('0007 was changed after it ran')")
    with pytest.raises(StackError, match=r"^the database .* migrated: 0007 was changed after it ran \(log:"):
        async with launch(settings, lambda _: None):
            pass


async def test_says_which_database_and_why_without_its_password(settings: Settings) -> None:
    (settings.root / "kit" / "migrate.py").write_text("raise SystemExit('no')")
    for url, told in (
        ("postgresql://me:secret@127.0.0.1:5433/other?a=secret", "127.0.0.1:5433/other, as DATABASE_URL says"),
        ("postgresql://me:secret@db.internal/other", "db.internal:5432/other, as DATABASE_URL says"),
        (None, f"an own Postgres in {settings.data / 'postgres'}, as DATABASE_URL is not set"),
    ):
        said = list[str]()
        with pytest.raises(StackError, match="could not be migrated"):
            async with launch(replace(settings, database_url=url), said.append):
                pass
        assert said[0] == f"database: {told}" and "secret" not in "".join(said)


async def test_a_lost_cluster_is_not_made_anew_under_the_keys_of_the_old(settings: Settings) -> None:
    topology.keystore(settings).parent.mkdir(parents=True)
    topology.keystore(settings).write_bytes(b"keys")
    with pytest.raises(StackError) as refused:
        async with launch(settings, lambda _: None):
            pass
    assert f"there is no Postgres cluster in {settings.data / 'postgres'}" in str(refused.value) or os.geteuid() == 0
    for told in ("put the cluster back", "set DATABASE_URL", f"remove {settings.data}"):
        assert told in str(refused.value)
    assert not (settings.data / "postgres").exists()


async def test_a_lost_key_store_is_one_line_and_an_end(settings: Settings) -> None:
    migrate = MIGRATE.replace(
        "    print(",
        "    await connection.execute('create schema if not exists memory')\n"
        "    await connection.execute('create table if not exists memory.key_store (id text)')\n    print(",
    )
    (settings.root / "kit" / "migrate.py").write_text(migrate)
    async with launch(settings, lambda _: None) as stack:
        assert stack is not None, "a database that has no key store yet is none that lost it"
        connection = await asyncpg.connect(stack.facts.database_url)
        await connection.execute("insert into memory.key_store values ('one')")
        await connection.close()
    with pytest.raises(StackError, match=r"^there is no key store in .*keystore.db, .* or run `python -m stack clean"):
        async with launch(settings, lambda _: None):
            pass
    clean(settings)
    assert not settings.data.exists()
    async with launch(settings, lambda _: None) as stack:
        assert stack is not None


async def test_clean_removes_what_lies_beside_the_data_and_nothing_of_a_running_stack(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = settings.data.parent / "moved"
    monkeypatch.setattr("stack.launch.relocation_folder", lambda path: relocation_folder(path, moved))
    mine, other = relocation_folder(settings.data / "postgres", moved), moved / "other"
    for folder in (mine / "data", other, settings.data):
        folder.mkdir(parents=True)
    with _claimed(settings.data), pytest.raises(StackError, match="a stack already runs on"):
        clean(settings)
    assert mine.exists() and settings.data.exists()
    clean(settings)
    assert not mine.exists() and not settings.data.exists() and other.exists()
    mine.mkdir()
    clean(settings)
    assert not mine.exists()


async def test_taken_service_port_is_one_clear_line(settings: Settings) -> None:
    port = kept_ports(settings.data / "stack.json", topology.PORTS)["auth"]
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(StackError, match=f"^port {port} .*kept for auth"),
    ):
        async with launch(settings, lambda _: None):
            pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_command_stops_on_a_signal(settings: Settings, number: signal.Signals) -> None:
    script = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom stack.launch import launch\n"
        "from stack.topology import Settings\n"
        "async def main():\n"
        "    async with launch(Settings(*map(Path, sys.argv[1:]))) as stack:\n"
        "        print('up;', flush=True)\n"
        "        await stack.supervisor.wait()\n"
        "asyncio.run(main())"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(settings.data), str(settings.root),
        stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout is not None
    async for line in process.stdout:
        if line.startswith(b"up;"):
            break
    process.send_signal(number)
    assert await asyncio.wait_for(process.wait(), 20) == 0
    ports = json.loads((settings.data / "stack.json").read_text())["ports"]
    assert all(is_free(port) for port in ports.values())
    assert not (settings.data / "postgres" / "postmaster.pid").exists()


def facts() -> Facts:
    ports = {name: 20_000 + number for number, name in enumerate(topology.PORTS)}
    tokens = {name: f"tlk_{name}" for name in topology.TOKEN_HOLDERS}
    return Facts("postgresql://db", ports, tokens)


def test_environment_of_each_service(settings: Settings) -> None:
    known = facts()
    common = {"DATABASE_URL": "postgresql://db", "TEAMLORE_KEYSTORE": f"{settings.data}/keys/keystore.db"}
    hashes = ",".join(
        f"{name}={token_hash(f'tlk_{name}')}" for name in ("sync", "feed", "compliance", "index")
    )
    auth, sync, index = "127.0.0.1:20002", "127.0.0.1:20003", "127.0.0.1:20006"
    proof = "TEAMLORE_SERVICE_TOKEN"
    assert {name: topology.service_env(settings, known, name) for name in topology.SERVICES} == {
        "auth": common | {"TEAMLORE_LISTEN": auth, "TEAMLORE_SERVICE_TOKEN_HASHES": hashes},
        "sync": common
        | {
            "TEAMLORE_LISTEN": sync,
            "TEAMLORE_AUTH_TARGET": auth,
            "TEAMLORE_INDEX_TARGET": index,
            proof: "tlk_sync",
        },
        "feed": common | {"TEAMLORE_LISTEN": "127.0.0.1:20004", "TEAMLORE_AUTH_TARGET": auth},
        "compliance": common
        | {
            "TEAMLORE_LISTEN": "127.0.0.1:20005",
            "TEAMLORE_AUTH_TARGET": auth,
            "TEAMLORE_INDEX_TARGET": index,
            "TEAMLORE_SYNC_TARGET": sync,
            proof: "tlk_compliance",
        },
        "index": common
        | {
            "TEAMLORE_LISTEN": index,
            "TEAMLORE_AUTH_TARGET": auth,
            "QDRANT_URL": "http://127.0.0.1:20001",
        },
    }


def test_a_qdrant_of_ones_own_replaces_the_engine(settings: Settings) -> None:
    (engine,) = topology.engine(settings, facts())
    assert engine.env["TEAMLORE_ENGINE_DIR"] == str(settings.data / "vectors")
    assert [child.name for child in topology.services(settings, facts())] == ["auth", "index"]
    own = Settings(data=settings.data, root=settings.root, qdrant_url="http://qdrant:6334")
    assert topology.engine(own, facts()) == []
    assert topology.service_env(own, facts(), "index")["QDRANT_URL"] == "http://qdrant:6334"


def test_secrets_are_made_once_and_private(folder: Path) -> None:
    path = folder / "secrets.json"
    first = service_tokens(path, ["sync"])
    path.chmod(0o644)
    both = service_tokens(path, ["sync", "feed"])
    path.chmod(0o644)
    assert service_tokens(path, ["sync", "feed"]) == both
    assert both["sync"] == first["sync"] != both["feed"]
    assert all(token.startswith("tlk_") and len(token) == 47 for token in both.values())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_ports_are_kept_and_new_names_added(folder: Path) -> None:
    path = folder / "stack.json"
    path.write_text('{"other": 1}')
    first = kept_ports(path, ["a", "b"])
    assert kept_ports(path, ["b", "c"])["b"] == first["b"]
    state = json.loads(path.read_text())
    assert state["other"] == 1 and len(set(state["ports"].values())) == 3
    path.write_text("{")
    with pytest.raises(StackError, match="is not JSON"):
        kept_ports(path, ["a"])


def test_free_port_can_be_listened_on() -> None:
    port = free_port()
    assert is_free(port)
    with socket.create_server(("127.0.0.1", port)):
        assert not is_free(port)
    assert not is_free(70_000)
