"""Plant unique words, walk the path, erase, search every file of every store; and a backup that cannot bring them back."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import apsw
import asyncpg
import numpy as np
import pytest
from qdrant_client import AsyncQdrantClient, models
from teamlore.sync.v1 import sync_pb2

from kit.sealing import KeyMissing, KeyStore, Slot, unseal
from stack.postgres import Postgres
from tests.canary.search import search
from tests.integration.conftest import RunningStack, running_stack

WORDS = ("Zqcanary7781xylophone", "Quorndle4417bassoon")
TEXT = f"We chose {WORDS[0]} for the order queue because {WORDS[1]} was too slow."
OTHER = "The build runs on two cores and must stay under fifteen minutes."


@dataclass
class Laptop:
    """One HOME with a clone of the project."""

    home: Path

    def run(self, *arguments: str) -> str:
        project = self.home / "orders"
        if not project.exists():
            project.mkdir(parents=True)
            for command in (
                ("init", "-q"),
                ("remote", "add", "origin", "https://git.example.com/acme/orders.git"),
            ):
                subprocess.run(["git", *command], cwd=project, check=True)
        done = subprocess.run(
            [sys.executable, "-m", "teamlore_client.cli", *arguments],
            cwd=project,
            env={"HOME": str(self.home), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def planted() -> Iterator[RunningStack]:
    with running_stack() as running:
        yield running


async def vectors_of(stack: RunningStack, memory_id: str) -> list[bytes]:
    """The bytes of the memory's vector as the engine keeps them; waits until it is indexed."""
    client = AsyncQdrantClient(
        host="127.0.0.1", grpc_port=stack.facts.ports["engine"], prefer_grpc=True, check_compatibility=False
    )
    try:
        only = models.Filter(must=[models.FieldCondition(key="id", match=models.MatchValue(value=memory_id))])
        for _ in range(100):
            if await client.collection_exists("memories"):
                points, _ = await client.scroll(
                    "memories", scroll_filter=None, with_vectors=True, with_payload=True, limit=100
                )
                found = [point for point in points if (point.payload or {}).get("id") == memory_id]
                if found:
                    return [np.asarray(found[0].vector, dtype=np.float32).tobytes()[:256]]
            await asyncio.sleep(0.1)
        assert only
        raise AssertionError("the memory was not indexed within 10 s")
    finally:
        await client.close()


async def test_an_erased_memory_is_in_no_file(planted: RunningStack) -> None:
    server = planted.data.parent
    alice, bob = Laptop(server / "alice"), Laptop(server / "bob")
    addresses = ",".join(f"{n}={planted.address(n)}" for n in ("auth", "sync", "feed", "compliance"))
    for laptop, name, permissions in ((alice, "alice", "read write forget"), (bob, "bob", "read write")):
        token = await planted.token(f"user:{name}", ("project:*", permissions))
        laptop.run("team", "join", "--server", addresses, "--token", token, "--yes")
    memory_id = json.loads(alice.run("memory", "add", TEXT, "--tag", WORDS[1], "--excerpt", WORDS[-1], "--json"))["id"]
    other_id = json.loads(alice.run("memory", "add", OTHER, "--json"))["id"]
    alice.run("team", "sync")
    bob.run("team", "sync")
    assert WORDS[0] in bob.run("memory", "list")

    laptops, servers = [alice.home, bob.home], [planted.data]
    vector = await vectors_of(planted, memory_id)
    database = await asyncpg.connect(planted.facts.database_url)
    row = await database.fetchrow(
        "select bank, key_page, key_slot from memory.memories where id = $1", memory_id
    )
    assert row is not None
    keystore = apsw.Connection(str(planted.data / "keys" / "keystore.db"), flags=apsw.SQLITE_OPEN_READONLY)
    ((page,),) = keystore.execute("select keys from pages where page = ?", (row["key_page"],))
    keystore.close()
    key = page[row["key_slot"] * 32 : row["key_slot"] * 32 + 32]
    await database.execute("checkpoint")
    before = search(laptops, WORDS)
    assert {found.path.parts[len(server.parts)] for found in before} == {"alice", "bob"}
    assert search(servers, WORDS) == []
    assert search(servers, (), [*vector, key]), "the vector and the key stand in the servers' files before"
    backup = server / "backup"
    shutil.rmtree(backup, ignore_errors=True)
    base_backup(planted, backup)

    assert "server_done" in alice.run("memory", "forget", memory_id, "--team")
    bob.run("team", "sync")
    await database.execute("checkpoint")
    await database.close()
    assert search([*laptops, *servers], WORDS) == []
    assert search([*laptops, *servers], (), [*vector, key]) == []
    assert OTHER in " ".join(bob.run("memory", "list").split())
    await check_backup(planted, backup, memory_id, other_id)


def base_backup(stack: RunningStack, target: Path) -> None:
    """A base backup by Postgres' own tool."""
    from stack.placement import wheel_bindir

    done = subprocess.run(
        [
            wheel_bindir() / "pg_basebackup",
            "-D",
            target,
            "-d",
            stack.facts.database_url,
            "-X",
            "stream",
            "-c",
            "fast",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


async def check_backup(stack: RunningStack, backup: Path, erased: str, kept: str) -> None:
    """Restored beside today's key store, the backup gives back all but what was erased."""
    if os.geteuid() == 0:
        shutil.chown(backup, "nobody")
        for path in backup.rglob("*"):
            shutil.chown(path, "nobody")
    server = await asyncio.to_thread(Postgres(backup).start)
    try:
        connection = await asyncpg.connect(server.dsn)
        rows = await connection.fetch("select bank, id, key_page, key_slot, sealed from memory.memories")
        await connection.close()
    finally:
        server.stop()
    assert {erased, kept} <= {row["id"] for row in rows}
    keys = KeyStore(stack.data / "keys" / "keystore.db")
    for row in rows:
        slot = Slot(row["key_page"], row["key_slot"])
        if row["id"] == erased:
            with pytest.raises(KeyMissing):
                keys.key(slot)
        else:
            assert sync_pb2.MemoryContent.FromString(
                unseal(keys.key(slot), row["bank"], row["id"], row["sealed"])
            ).text
    keys.close()
