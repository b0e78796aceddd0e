"""`make bench-first-sync`: a laptop's first sync of 100,000 memories through PushStream, and what memory it takes.

A real laptop, with a home and a clone of its own, pushes and then reads the whole feed back, while the memory of its
process and of sync's is read off five times a second beside how far it has come: told at a tenth, half and all of the
way, and as growth from a tenth to the most that is seen until the end. FIRST_SYNC_RECORDS makes it shorter. The
near-duplicate check is off: it is about the stream, not the model.
"""

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import numpy as np
from rich.console import Console
from teamlore_client._memory import Memory, new_id, scope_of
from teamlore_client._store import EmbedderIdentity, Store
from teamlore_embedder import open_embedder

from bench.quick import sentence
from bench.report import Result, amount, command, report
from tests.integration.conftest import RunningStack, running_stack
from tests.robustness.processes import pid_of

RECORDS = amount("FIRST_SYNC_RECORDS", 100_000)
SERVICES = ("auth", "sync", "feed", "compliance")
KIB = 1024


@dataclass(frozen=True)
class Sample:
    """How many records the server has, and resident memory in bytes."""

    stored: int
    laptop: int
    sync: int
    at: float


class Laptop:
    """A home with a clone of one project, driven by the command line."""

    def __init__(self, folder: Path) -> None:
        self.home, self.clone = folder / "home", folder / "clone"
        self.home.mkdir(parents=True)
        subprocess.run(["git", "init", "-q", str(self.clone)], check=True)
        origin = ["remote", "add", "origin", "git@github.com:acme/first-sync.git"]
        subprocess.run(["git", "-C", str(self.clone), *origin], check=True)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "teamlore_client.cli", *arguments],
            cwd=self.clone, env={"HOME": str(self.home), "PATH": os.environ["PATH"]},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *arguments: str) -> str:
        process = self.start(*arguments)
        said, complained = process.communicate()
        assert process.returncode == 0, complained
        return said

    def fill(self, bank: str) -> None:
        """Saves memories as `memory add` would, with vectors drawn at random."""
        embedder, rng, numbers = open_embedder(), random.Random(1), np.random.default_rng(1)
        identity = EmbedderIdentity(embedder.model, embedder.revision, embedder.dimension)
        began, scope = datetime.now(UTC) - timedelta(days=30), scope_of(bank)
        (file,) = self.home.rglob("memory.db")
        with Store(file, identity) as store:
            for start in range(0, RECORDS, 1000):
                count = min(1000, RECORDS - start)
                vectors = numbers.standard_normal((count, embedder.dimension)).astype("float32")
                store.put_mirrored(
                    [
                        (
                            Memory(new_id(), bank, scope, sentence(rng), began + timedelta(seconds=start + number)),
                            vector.tolist(),
                        )
                        for number, vector in enumerate(vectors)
                    ]
                )


def resident(pid: int) -> int:
    """Resident memory of a process in bytes; 0 for one that has ended."""
    try:
        found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.M)
    except OSError:
        return 0
    return int(found[1]) * KIB if found else 0


def at(samples: list[Sample], part: float, name: str) -> float:
    """MiB once this part of the records is stored."""
    reached = next(sample for sample in samples if sample.stored >= RECORDS * part)
    return float(getattr(reached, name)) / KIB / KIB


def grown(samples: list[Sample], name: str) -> float:
    """MiB between a tenth of the way and the most that was seen after it."""
    after = [getattr(sample, name) for sample in samples if sample.stored >= RECORDS / 10]
    return float(max(after)) / KIB / KIB - at(samples, 0.1, name)


async def measure(stack: RunningStack, folder: Path) -> list[Result]:
    """Joins, fills, syncs."""
    laptop = Laptop(folder)
    token = await stack.token("user:alice", ("project:*", "read write"))
    server = ",".join(f"{name}={stack.address(name)}" for name in SERVICES)
    await asyncio.to_thread(laptop.run, "memory", "list")
    await asyncio.to_thread(laptop.run, "team", "join", "--server", server, "--token", token, "--yes")
    bank = re.search(r'"bank": "([^"]+)"', await asyncio.to_thread(laptop.run, "memory", "list", "--json"))
    assert bank is not None
    database = await asyncpg.connect(stack.facts.database_url)
    await database.execute("select memory.open_bank($1, 'user:alice')", bank[1])
    await database.execute("update memory.banks set near_duplicates = 'off' where bank = $1", bank[1])
    await asyncio.to_thread(laptop.fill, bank[1])
    os.kill(pid_of(stack, "index"), signal.SIGSTOP)  # it would embed behind the figures
    samples, sync, began = list[Sample](), pid_of(stack, "sync"), time.perf_counter()
    process = laptop.start("team", "sync")
    while process.poll() is None:
        stored = await database.fetchval("select live from memory.heads where bank = $1", bank[1])
        samples.append(Sample(stored, resident(process.pid), resident(sync), time.perf_counter() - began))
        await asyncio.sleep(0.2)
    said, complained = process.communicate()
    os.kill(pid_of(stack, "index"), signal.SIGCONT)
    assert process.returncode == 0, complained
    assert f"{RECORDS} stored" in said, said
    await database.close()
    samples = [sample for sample in samples if sample.laptop]
    pushed = next(sample.at for sample in samples if sample.stored >= RECORDS)
    most = {name: max(getattr(sample, name) for sample in samples) / KIB / KIB for name in ("laptop", "sync")}
    return [
        Result("first_sync_push_rows_s", RECORDS / pushed, "records/s", f"{RECORDS:,} through PushStream"),
        Result("first_sync_seconds", samples[-1].at, "s", f"pushed in {pushed:.0f} s, then read back"),
        Result("first_sync_laptop_growth_mib", grown(samples, "laptop"), "MiB", f"at most {most['laptop']:.0f}"),
        Result("first_sync_server_growth_mib", grown(samples, "sync"), "MiB", f"at most {most['sync']:.0f}"),
        *(
            Result(f"first_sync_{name}_mib_{part:.0%}".replace("%", ""), at(samples, part, name), "MiB", f"{part:.0%} stored")
            for name in ("laptop", "sync")
            for part in (0.1, 0.5, 1.0)
        ),
    ]


def main() -> None:
    """The command."""
    command(__doc__).parse_args()
    console = Console()
    with (
        tempfile.TemporaryDirectory(prefix="teamlore-first-sync-") as folder,
        running_stack() as stack,
        console.status("a first sync"),
    ):
        results = asyncio.run(measure(stack, Path(folder)))
    report(results, console)


if __name__ == "__main__":
    main()
