"""`make run` and `make demo` as a person meets them: they come up, keep data, end cleanly, and fail in one clear line."""

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="teamlore-run-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def environment(home: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(home), "PATH": os.environ["PATH"], **more}


class Run:
    """`python -m stack run` until it says that it is up."""

    def __init__(self, data: Path, **more: str) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stack", "run", "--data", str(data)],
            cwd=ROOT, env=environment(data.parent, **more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self._up = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if "Try next" in line:
                self._up.set()
        self._up.set()

    @property
    def said(self) -> str:
        return "".join(self.lines)

    def wait_up(self) -> None:
        assert self._up.wait(120) and "Try next" in self.said, self.said

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(40)


def processes_of(folder: Path) -> list[str]:
    """Command lines of all processes that name the folder in their arguments or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                alive = (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
            except OSError:
                continue
            if str(folder).encode() in text and alive:
                found.append(text[:120].decode(errors="replace"))
    return found


def test_a_second_run_keeps_the_data_and_ctrl_c_leaves_nothing(folder: Path) -> None:
    first = Run(folder / "data")
    first.wait_up()
    assert "(alice) We use SQS" in " ".join(first.said.split())
    kept = json.loads((folder / "data" / "stack.json").read_text())
    assert {"admin_token", "tokens", "addresses", "ports"} <= set(kept)
    assert stat.S_IMODE((folder / "data" / "stack.json").stat().st_mode) == 0o600
    assert first.interrupt() == 0
    deadline = time.monotonic() + 5
    while processes_of(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_of(folder) == []
    # As the guides have a person's shell: none of it concerns the services.
    second = Run(
        folder / "data", TEAMLORE_SERVER="@team.json", TEAMLORE_TOKEN="tlk_x", TEAMLORE_TEAM_TOKEN="tlk_y"
    )
    second.wait_up()
    assert "memory add" not in second.said and "(alice) We use SQS" in " ".join(second.said.split())
    assert json.loads((folder / "data" / "stack.json").read_text()) == kept
    assert second.interrupt() == 0


def test_the_demo_holds(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stack", "demo"],
        cwd=ROOT, env=environment(folder, TMPDIR=str(folder)), capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The story holds." in done.stdout and "server_done" in done.stdout


def test_a_taken_port_and_a_wrong_address_are_one_line_each(folder: Path) -> None:
    data = folder / "data"
    data.mkdir()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        (data / "stack.json").write_text(json.dumps({"ports": {"postgres": taken.getsockname()[1]}}))
        refused = subprocess.run(
            [sys.executable, "-m", "stack", "run", "--data", str(data)],
            cwd=ROOT, env=environment(folder), capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert refused.returncode == 1 and len(refused.stderr.strip().splitlines()) == 1
    assert "taken" in refused.stderr
    wrong = subprocess.run(
        [sys.executable, "-m", "stack", "run", "--data", str(folder / "other")],
        cwd=ROOT, env=environment(folder, DATABASE_URL="postgresql://nobody@127.0.0.1:1/none"),
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert wrong.returncode == 1 and len(wrong.stderr.strip().splitlines()) == 1
    assert "DATABASE_URL" in wrong.stderr
