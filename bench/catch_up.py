"""`make bench-catch-up`: how fast one feed process tells a bank's whole history, unsealing included.

Each round measures all ways one after the other on the same rows of about 500 characters, pushed 100 at once as laptops
do, so that each feels the same machine (a row that was pushed alone has a time of its own, and costs the feed an eighth
more); medians are reported, with the spread of the rounds. `catchup_rows_s` is wall time on a machine that the reader
and Postgres share, the reader leaving the bytes as they come; `catchup_feed_cpu_rows_s` is what the feed process does in
a second of its own CPU. CATCHUP_CHANGES and CATCHUP_ROUNDS make it shorter.
"""

import os
import random
import signal
import statistics
from collections.abc import Callable

import asyncpg
import uvloop
from rich.console import Console

from bench.filling import fill
from bench.quick import sentence
from bench.reading import asyncpg_pages, in_turns, listed, watched
from bench.report import Result, amount, command, report
from tests.integration.conftest import RunningStack, running_stack
from tests.robustness.processes import pid_of

CHANGES = amount("CATCHUP_CHANGES", 50_000)
ROUNDS = amount("CATCHUP_ROUNDS", 7)
BANK = "project:catch-up"


async def measure(stack: RunningStack, say: Callable[[str], None]) -> list[Result]:
    """Fills a bank, then runs the rounds, with the index stopped: it would embed behind the figures."""
    token = await stack.token("user:alice", ("project:*", "read write"))
    index, feed = pid_of(stack, "index"), pid_of(stack, "feed")
    os.kill(index, signal.SIGSTOP)
    try:
        say("filling a bank")
        rng = random.Random(11)
        await fill(stack, BANK, [sentence(rng) for _ in range(CHANGES)], "off")
        say(f"{ROUNDS} rounds")
        database = await asyncpg.connect(stack.facts.database_url)
        async with stack.channel("feed") as channel:
            done = await in_turns(
                ROUNDS,
                feed,
                CHANGES,
                {
                    "watched": lambda: watched(channel, BANK, token, CHANGES),
                    "asyncpg": lambda: asyncpg_pages(database, BANK),
                    "listed": lambda: listed(stack, channel, BANK, token),
                },
            )
        await database.close()
    finally:
        os.kill(index, signal.SIGCONT)
    streamed, plain = done["watched"].walls, done["asyncpg"].walls
    ratios = [ours / theirs for ours, theirs in zip(streamed, plain, strict=True)]

    def spread(values: list[float]) -> str:
        return f"{ROUNDS} rounds from {min(values):,.2f} to {max(values):,.2f}"

    def middle(name: str, values: list[float], unit: str, against: str) -> Result:
        return Result(name, statistics.median(values), unit, f"{against}; {spread(values)}")

    return [
        middle("catchup_rows_s", streamed, "changes/s", "100,000 wanted"),
        middle("catchup_vs_asyncpg", ratios, "ratio", "pages of 500 by asyncpg"),
        Result("catchup_feed_cpu_rows_s", done["watched"].of_cpu, "changes/s of CPU", "100,000 wanted"),
        middle("catchup_listed_rows_s", done["listed"].walls, "changes/s", "ListChanges, decoded"),
        Result("catchup_listed_feed_cpu_rows_s", done["listed"].of_cpu, "changes/s of CPU", "ListChanges"),
    ]


def main() -> None:
    """The command."""
    command(__doc__).parse_args()
    console = Console()
    with running_stack() as stack, console.status("measuring") as status:
        results = uvloop.run(measure(stack, status.update))
    report(results, console)


if __name__ == "__main__":
    main()
