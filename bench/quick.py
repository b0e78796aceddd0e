"""`make bench-quick`: push and catch-up on a private stack, as ratios in one run against the embedder and asyncpg.

Prints a table and writes bench/results.json: {"results": [{"name", "value", "unit", "against"}]}.
"""

import asyncio
import os
import random
import signal
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import asyncpg
from rich.console import Console
from teamlore.sync.v1 import sync_pb2
from teamlore_embedder import open_embedder

from bench.filling import fill
from bench.reading import asyncpg_pages, in_turns, listed, watched
from bench.report import Result, command, report
from tests.integration.conftest import RunningStack, running_stack
from tests.robustness.processes import pid_of

SIZES = (1_000, 10_000)
PUSHED = 10_000
# Changes that each way of catching up reads in all, at the least.
READ = 30_000
WORDS = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8").split()
BARRIERS = {"plain": ("off", "off"), "secrets": ("redact", "off"), "both": ("redact", "redact")}
"""What a bank does with secrets and with personal data, by the name of the figure."""
ROUNDS = 3
INSERT = "insert into plain select * from unnest($1::text[], $2::text[], $3::bytea[]) on conflict do nothing returning id"


def sentence(rng: random.Random) -> str:
    """About 500 characters, unlike any other."""
    return f"{uuid.UUID(int=rng.getrandbits(128))} " + " ".join(rng.choice(WORDS) for _ in range(75))


async def rate(count: int, work: Callable[[], Awaitable[object]]) -> float:
    """Things a second."""
    started = time.perf_counter()
    await work()
    return count / (time.perf_counter() - started)


def pushes(bank: str, count: int) -> list[sync_pb2.PushRequest]:
    """Fresh records, 100 a call: made before the clock runs, since to make one costs as much as to push it."""
    rng = random.Random()
    return [
        sync_pb2.PushRequest(
            bank=bank,
            records=[sync_pb2.Record(id=uuid.uuid4().hex[:16], text=sentence(rng)) for _ in range(100)],
        )
        for _ in range(count // 100)
    ]


async def push(
    stack: RunningStack, requests: Sequence[sync_pb2.PushRequest], token: str, at_once: int
) -> None:
    """Pushes, `at_once` calls in flight."""
    left = iter(requests)
    async with stack.channel("sync") as channel:

        async def worker() -> None:
            for request in left:
                answer = await stack.sync(channel).Push(request, metadata=stack.credential(token))
                assert all(r.status == "stored" for r in answer.results) and not answer.dedup_skipped

        await asyncio.gather(*(worker() for _ in range(at_once)))


async def push_behind(
    stack: RunningStack, bank: str, token: str, requests: Mapping[str, Sequence[sync_pb2.PushRequest]]
) -> tuple[dict[str, float], float]:
    """Records a second behind each barrier, in turns; and what pushing costs the client, in µs of CPU a record."""
    database = await asyncpg.connect(stack.facts.database_url)
    seconds, cpu, count = dict.fromkeys(BARRIERS, 0.0), 0.0, 0
    for turn in range(ROUNDS):
        for name, (secrets, personal) in BARRIERS.items():
            await database.execute(
                "update memory.banks set barrier = $2, pii = $3 where bank = $1", bank, secrets, personal
            )
            part = requests[name][turn::ROUNDS]
            started, used = time.perf_counter(), time.process_time()
            await push(stack, part, token, 4)
            seconds[name] += time.perf_counter() - started
            cpu, count = cpu + time.process_time() - used, count + 100 * len(part)
    await database.close()
    return {name: 100 * len(requests[name]) / taken for name, taken in seconds.items()}, cpu / count * 1e6


async def asyncpg_insert(stack: RunningStack, count: int) -> None:
    """What Postgres takes of rows of this size from asyncpg, in batches of 100."""
    database = await asyncpg.connect(stack.facts.database_url)
    await database.execute(
        "create table if not exists plain (id text primary key, author text, sealed bytea)"
    )
    body = os.urandom(540)
    for _ in range(count // 100):
        ids = [uuid.uuid4().hex[:16] for _ in range(100)]
        await database.fetch(INSERT, ids, ["user:alice"] * 100, [body] * 100)
    await database.execute("drop table plain")
    await database.close()


async def caught_up(stack: RunningStack, bank: str, size: int, token: str) -> list[Result]:
    """Catch-up by a stream and by pages, against asyncpg; each way's best turn, since a small bank is read in no time."""
    database = await asyncpg.connect(stack.facts.database_url)
    async with stack.channel("feed") as channel:
        done = await in_turns(
            max(3, READ // size),
            pid_of(stack, "feed"),
            size,
            {
                "watched": lambda: watched(channel, bank, token, size),
                "asyncpg": lambda: asyncpg_pages(database, bank),
                "listed": lambda: listed(stack, channel, bank, token),
            },
        )
    await database.close()
    best = {name: max(turns.walls) for name, turns in done.items()}
    ratio = best["watched"] / best["asyncpg"]
    pages = f"{best['asyncpg']:.0f} rows/s, both at their best"
    return [
        Result(f"catchup_rows_s_{size}", best["watched"], "changes/s", "100,000 wanted; one stream"),
        Result(f"catchup_vs_asyncpg_{size}", ratio, "ratio", pages),
        Result(f"catchup_feed_cpu_rows_s_{size}", done["watched"].of_cpu, "changes/s of CPU", "100,000 wanted"),
        Result(f"catchup_listed_rows_s_{size}", best["listed"], "changes/s", "pages one by one, decoded"),
        Result(f"catchup_listed_feed_cpu_rows_s_{size}", done["listed"].of_cpu, "changes/s of CPU", "the same"),
    ]


async def measure(stack: RunningStack, say: Callable[[str], None]) -> list[Result]:
    """Runs all; each pair in turn, so that both feel the same machine."""
    token = await stack.token("user:alice", ("project:*", "read write"))
    embedder, results = open_embedder(), []
    rng = random.Random(7)
    for size in SIZES:
        say(f"a bank of {size:,}: push with the near-duplicate check, against the embedder alone")
        bank = f"project:dedup-{size}"
        await fill(stack, bank, [sentence(rng) for _ in range(size)])
        texts = [sentence(rng) for _ in range(300)]
        alone = await rate(300, lambda t=texts: asyncio.to_thread(embedder.embed, t))  # type: ignore[misc]
        pushed = await rate(300, lambda r=pushes(bank, 300): push(stack, r, token, 1))  # type: ignore[misc]
        results.append(
            Result(f"push_dedup_vs_embedder_{size}", pushed / alone, "ratio", f"{alone:.0f} texts/s")
        )
        results.append(Result(f"push_dedup_rows_s_{size}", pushed, "records/s", "embedder alone"))
    index = pid_of(stack, "index")
    os.kill(index, signal.SIGSTOP)  # it would embed behind the figures below
    try:
        for size in SIZES:
            say(f"a bank of {size:,}: push with the check off and catch-up, against asyncpg")
            bank = f"project:plain-{size}"
            await fill(stack, bank, [sentence(rng) for _ in range(size)], "off")
            results += await caught_up(stack, bank, size, token)
            inserted = await rate(PUSHED, lambda: asyncpg_insert(stack, PUSHED))
            # The recognizers load at their first use.
            await push_behind(stack, bank, token, {name: pushes(bank, 100 * ROUNDS) for name in BARRIERS})
            behind, client = await push_behind(
                stack, bank, token, {name: pushes(bank, PUSHED) for name in BARRIERS}
            )
            pushed = behind["plain"]
            results += [
                Result(f"push_plain_rows_s_{size}", pushed, "records/s", "15,000 wanted"),
                Result(f"push_plain_vs_asyncpg_{size}", pushed / inserted, "ratio", f"{inserted:.0f} rows/s"),
                Result(f"push_secrets_vs_plain_{size}", behind["secrets"] / pushed, "ratio", "no barrier"),
                Result(f"push_both_vs_plain_{size}", behind["both"] / pushed, "ratio", "no barrier"),
                Result(
                    f"push_client_cpu_us_{size}",
                    client,
                    "µs a record",
                    f"{1e6 / pushed:.0f} µs a record in all",
                ),
            ]
    finally:
        os.kill(index, signal.SIGCONT)
    return results


def main() -> None:
    """The command."""
    command(__doc__).parse_args()
    console = Console()
    with running_stack() as stack, console.status("measuring") as status:
        results = asyncio.run(measure(stack, status.update))
    report(results, console)


if __name__ == "__main__":
    main()
