"""A process that stops in the middle of a push: `python -m tests.robustness.holder DATABASE_URL BANK`.

It works through the kit as sync does, takes the bank's head, and stops itself as a debugger or a frozen machine would.
Woken again, it goes on to commit and says what became of that.
"""

import asyncio
import os
import signal
import sys
import uuid

from kit import audit
from kit.database import Database
from kit.errors import from_driver
from services.sync.store import QUERIES


async def _main(url: str, bank: str) -> None:
    database = await Database.connect(url, "sync", QUERIES, size=1, patience=2)
    with audit.calling(audit.CallContext("memory.erase", "user:frozen", "t-frozen")):
        try:
            async with database.transaction() as tx:
                await tx.row("erase", bank, [uuid.uuid4().hex], "user:frozen", uuid.uuid4().hex)
                tx.changed(bank, 1)
                print("holds", flush=True)
                os.kill(os.getpid(), signal.SIGSTOP)
        except Exception as error:
            refusal = from_driver(error)
            print(refusal.reason if refusal else f"a defect: {error!r}", flush=True)
        else:
            print("committed", flush=True)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2]))
