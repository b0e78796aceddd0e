"""Nothing leaves the machine: the library that runs the model would tell its maker about it, unless prevented."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

#: Says which sockets the process has; the library opens its store and its sender before the first run ends.
PROGRAM = """
import os, time
from teamlore_embedder import open_embedder
open_embedder().embed(["We use SQS."])
time.sleep(1)
links = []
for name in os.listdir("/proc/self/fd"):
    try:
        links.append(os.readlink("/proc/self/fd/" + name))
    except OSError:
        pass
print([link for link in links if link.startswith("socket:") or "onnxruntime.db" in link])
"""


def run(home: Path, prefix: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    """Embeds one text in a process of its own, started as a person's would be: outside any CI."""
    kept = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    done = subprocess.run(
        [*prefix, sys.executable, "-c", PROGRAM],
        env=kept | {"HOME": str(home)} | more,
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("wish", [{}, {"ORT_DISABLE_TELEMETRY": "0"}])
def test_embedding_writes_no_file_and_opens_no_socket(tmp_path: Path, wish: dict[str, str]) -> None:
    done = run(tmp_path, [], **wish)
    assert list(tmp_path.rglob("*")) == []
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_a_home_that_cannot_be_written_gives_no_warning(tmp_path: Path) -> None:
    assert run(tmp_path / "absent" / "home", []).stderr == ""
    assert run(Path("/proc/absent"), []).stderr == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_embedding_makes_no_call_to_the_network_and_reads_no_identity(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    home = tmp_path / "home"
    home.mkdir()
    run(home, ["strace", "-f", "-o", str(trace), "-e", "trace=network,openat"])
    calls = trace.read_text()
    assert "vocab.txt" in calls
    for told in ("AF_INET", "sendto(", "connect(", "/sys/class/dmi", "/etc/machine-id", "resolv.conf"):
        assert told not in calls, told
