"""`make bench-trimming`: what a trim takes from the writers of the very bank that it trims.

Each round pushes the same number of batches to one bank while the command trims it, and while it does not, in turns that
change places; the ratio of the two rates is reported.
"""

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import uuid

import asyncpg
from rich.console import Console

from bench.report import Result, amount, command, report
from bench.watchers import Pushes, open_banks
from tests.integration.conftest import ROOT, RunningStack, running_stack
from tests.robustness.processes import pid_of

ROUNDS = amount("TRIM_ROUNDS", 6)
DEAD, BATCHES = 40_000, 60
PUT = "select count(*) from memory.put($1, 'user:alice', $2, $3, $4, $5, $6, $7, $8)"


async def dead_changes(database: asyncpg.Connection, bank: str, slot: int) -> None:
    """Memories that were stored and erased: two changes each that a trim takes away."""
    for start in range(0, DEAD // 2, 500):
        ids, none = [uuid.uuid4().hex for _ in range(500)], [None] * 500
        pages = [slot + start + number for number in range(500)]
        await database.execute(PUT, bank, ids, [""] * 500, none, pages, [0] * 500, [b"x" * 540] * 500, none)
        await database.execute("select memory.erase($1, $2, 'user:alice', $3)", bank, ids, uuid.uuid4().hex)


async def turn(stack: RunningStack, token: str, bank: str, trimmed: bool) -> float:
    """Records a second of one turn; the trim runs from before it begins and is still at it when it ends."""
    pushes = Pushes(stack, token, [bank], BATCHES)
    if not trimmed:
        return await pushes.flat_out()
    command = [sys.executable, "-m", "services.sync.trim", "--older-than", "0", "--bank", bank]
    trim = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env={"DATABASE_URL": stack.facts.database_url}, stdout=subprocess.PIPE
    )
    database = await asyncpg.connect(stack.facts.database_url)
    while not await database.fetchval("select horizon from memory.heads where bank = $1", bank):
        pass
    await database.close()
    rate = await pushes.flat_out()
    lasted = trim.returncode is None
    said, _ = await trim.communicate()
    assert trim.returncode == 0 and f"{DEAD} changes left" in said.decode(), said
    if not lasted:
        print("a trim ended before the pushes beside it: the ratio flatters it")
    return rate


async def measure(stack: RunningStack) -> list[Result]:
    """Runs the rounds, with the index stopped: it would embed behind the figures."""
    token = await stack.token("user:alice", ("project:*", "read write"))
    database = await asyncpg.connect(stack.facts.database_url)
    os.kill(pid_of(stack, "index"), signal.SIGSTOP)
    ratios, rates = [], []
    for number in range(ROUNDS):
        banks = [f"project:trim-{number}-{part}" for part in ("with", "without")]
        await open_banks(stack, banks)
        for part, bank in enumerate(banks):
            await database.execute("insert into index.cursors values ($1, $2)", bank, DEAD)
            await dead_changes(database, bank, (number * 2 + part) * DEAD)
        order = (True, False) if number % 2 else (False, True)
        rate = {trimmed: await turn(stack, token, banks[not trimmed], trimmed) for trimmed in order}
        ratios.append(rate[True] / rate[False])
        rates.append(rate[False])
    await database.close()
    os.kill(pid_of(stack, "index"), signal.SIGCONT)
    said = f"{ROUNDS} rounds from {min(ratios):.2f} to {max(ratios):.2f}; {statistics.median(rates):,.0f} records/s without"
    return [Result("push_while_trimming", statistics.median(ratios), "ratio", said)]


def main() -> None:
    """The command."""
    command(__doc__).parse_args()
    console = Console()
    generous = {"TEAMLORE_CALLS_PER_MINUTE": "1000000"}
    with running_stack({"sync": generous}) as stack, console.status("measuring"):
        results = asyncio.run(measure(stack))
    report(results, console)


if __name__ == "__main__":
    main()
