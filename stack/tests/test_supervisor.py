"""The supervisor: readiness, restarts, giving up, stopping."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from stack.errors import StackError
from stack.ports import free_port
from stack.postgres import Postgres
from stack.supervisor import Child, Supervisor
from stack.tests.conftest import alive

ROOT = Path(__file__).resolve().parents[2]


def python(folder: Path, name: str, code: str, **more: Any) -> Child:
    return Child(name=name, argv=(sys.executable, "-c", code), log_path=folder / f"{name}.log", **more)


async def until(true: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_restarts_a_killed_child_and_leaves_nothing(folder: Path) -> None:
    code = (
        "import subprocess, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(99)"
    )
    log = folder / "a.log"
    said: list[str] = []
    async with Supervisor(said.append) as supervisor:
        assert await supervisor.start(python(folder, "a", code, ready=lambda: log.read_text() != ""))
        first = supervisor.pid("a")
        assert first is not None and os.getsid(first) == first
        os.kill(first, signal.SIGKILL)
        await until(lambda: len(log.read_text().split()) == 2)
        second = supervisor.pid("a")
        assert second not in (None, first) and supervisor.restarts("a") == 1
    grandchildren = [int(word) for word in log.read_text().split()]
    await until(lambda: not any(alive(pid) for pid in (first, second or 0, *grandchildren)))
    assert len(said) == 1 and said[0].startswith("a: was ended by SIGKILL") and "0.1 s" in said[0]


async def test_a_child_that_a_full_disk_ended_says_how_much_is_free(folder: Path) -> None:
    said: list[str] = []
    code = "import os, pathlib, signal, sys, time\nmark = pathlib.Path(sys.argv[1])\n"
    code += "mark.exists() and time.sleep(99)\nmark.touch()\nos.kill(os.getpid(), signal.SIGBUS)"
    child = Child("bus", (sys.executable, "-c", code, str(folder / "mark")), folder / "bus.log")
    async with Supervisor(said.append) as supervisor:
        await supervisor.start(child)
        await until(lambda: said)
    assert said[0].startswith("bus: was ended by SIGBUS; the disk may be full: ")
    assert f"bytes are free below {folder}" in said[0]


async def test_gives_up_with_the_last_log_line_of_this_run(folder: Path) -> None:
    (folder / "bad.log").write_text("old line\n")
    child = python(
        folder,
        "bad",
        "import sys; print('first', flush=True); sys.exit('no such table: heads')",
        ready=lambda: False,
    )
    began = time.monotonic()
    async with Supervisor(lambda _: None) as supervisor:
        with pytest.raises(
            StackError, match=r"^bad was given up after 5 quick exits: .*no such table: heads\)$"
        ):
            await supervisor.start(child)
        with pytest.raises(StackError, match="given up"):
            await supervisor.wait()
    assert time.monotonic() - began > 1.5  # 0.1 + 0.2 + 0.4 + 0.8 s of pauses
    assert (folder / "bad.log").read_text().startswith("old line\nfirst\n")


async def test_program_that_does_not_exist(folder: Path) -> None:
    child = Child(
        name="gone",
        argv=("/no/such/program",),
        log_path=folder / "gone.log",
        quick_exits=1,
        ready=lambda: False,
    )
    async with Supervisor(lambda _: None) as supervisor:
        with pytest.raises(StackError, match="cannot run /no/such/program"):
            await supervisor.start(child)


async def test_not_ready_in_time(folder: Path) -> None:
    child = python(
        folder, "slow", "import time; print('waiting for Godot', flush=True); time.sleep(600)",
        ready=("127.0.0.1", free_port()), ready_timeout=1.0,
    )  # fmt: skip
    async with Supervisor(lambda _: None) as supervisor:
        with pytest.raises(StackError, match=r"^slow was not ready within 1 s: waiting for Godot"):
            await supervisor.start(child)


async def test_stops_in_reverse_order_and_kills_what_does_not_listen(folder: Path) -> None:
    order = folder / "order"
    polite = (
        "import signal, sys, time\n"
        f"note = lambda: open({str(order)!r}, 'a').write(NAME)\n"
        "signal.signal(signal.SIGTERM, lambda *_: (note(), sys.exit()))\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(1)"
    )
    deaf = polite.replace("(note(), sys.exit())", "note()")
    said: list[str] = []
    supervisor = Supervisor(said.append, stop_deadline=0.5)
    for name, code in (("a", polite), ("b", deaf), ("c", polite)):
        log = folder / f"{name}.log"
        await supervisor.start(
            python(
                folder, name, code.replace("NAME", f"{name!r}"), ready=lambda log=log: "up" in log.read_text()
            )
        )
    pids = [supervisor.pid(name) for name in supervisor.names()]
    await supervisor.stop()
    await supervisor.stop()
    assert order.read_text() == "cba"
    assert not any(alive(pid) for pid in pids if pid is not None)
    assert said == ["b: did not stop within 0.5 s; killing it"]


async def test_stop_while_starting(folder: Path) -> None:
    async with Supervisor(lambda _: None) as supervisor:
        asyncio.get_running_loop().call_later(0.3, supervisor.request_stop)
        assert not await supervisor.start(
            python(folder, "s", "import time; time.sleep(600)", ready=lambda: False)
        )
        pid = supervisor.pid("s")
    assert pid is not None and not alive(pid)


ORPHANS = """
import asyncio, sys
from pathlib import Path
from typing import Any
from stack.postgres import Postgres
from stack.supervisor import Child, Supervisor

async def main():
    folder = Path(sys.argv[1])
    async with Supervisor() as supervisor:
        await supervisor.start(Postgres(folder / "pg", relocation_root=folder / "moved").as_child())
        await supervisor.start(Child(name="s", argv=("sleep", "600"), log_path=folder / "s.log"))
        await asyncio.sleep(0.3)
        print(supervisor.pid("postgres"), supervisor.pid("s"), flush=True)
        await supervisor.wait()

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
async def test_killed_supervisor_leaves_nothing(folder: Path) -> None:
    owner = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", ORPHANS, str(folder)], stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert owner.stdout is not None
    pids = [int(word) for word in owner.stdout.readline().split()]
    assert len(pids) == 2 and all(map(alive, pids))
    owner.kill()
    owner.wait()
    await until(lambda: not any(map(alive, pids)))


async def test_postgres_as_a_child_comes_back(postgres: Postgres) -> None:
    async with Supervisor(lambda _: None) as supervisor:
        assert await supervisor.start(postgres.as_child())
        connection = await asyncpg.connect(postgres.dsn)
        await connection.execute("create table t as select 1 as one")
        for _ in range(3):
            pid = supervisor.pid("postgres")
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await until(lambda pid=pid: supervisor.pid("postgres") not in (None, pid), 20)  # type: ignore[misc]
            await until(postgres.accepts)
        connection.terminate()
        connection = await asyncpg.connect(postgres.dsn)
        assert await connection.fetchval("table t") == 1
        await connection.close()
    assert not postgres.accepts() and not (postgres.home / "postmaster.pid").exists()
