"""Makes a restored database fit to be served: `python -m services.compliance.restored --principal user:WHO`.

Run it after every restore of the database, with compliance's settings and while no service runs. It begins a new epoch,
so that every laptop notices and compares all it has, and erases again what the ledger in the key store says was erased
after the backup. Services do not start on a database that lacks some of it before. To run it again is harmless.

Where the database knows all that the ledger does, nothing tells a restored one from one that was not: it changes nothing
then, unless `--force` says that there was a restore.

Exit codes: 0 done; 1 the database or the key store cannot be used; 2 a setting or an argument is missing or malformed;
3 nothing was done, for the database and the ledger agree.
"""

import argparse
import asyncio
import sys
from dataclasses import dataclass

from kit.audit import CallContext, calling
from kit.config import load_or_exit, principal
from kit.database import Database
from kit.errors import from_driver
from kit.keystore import open_key_store
from kit.ledger import Ledger
from services.compliance.main import Config
from services.compliance.store import QUERIES, Store


@dataclass(frozen=True)
class Done:
    """The epoch that began, and what was erased again: operations, and memories in them."""

    epoch: int
    erasures: int
    memories: int


async def restored(store: Store, ledger: Ledger, who: str) -> Done:
    """Begins a new epoch and erases again what the database does not know to be erased, in the order it was."""
    epoch = max(await store.epoch(), ledger.epoch()) + 1
    # The key store first: a database that was not told does not pass for one that was.
    ledger.raise_epoch(epoch)
    with calling(CallContext("history.restored", who, "operator")):
        await store.begin_epoch(epoch)
    erasures = memories = 0
    with calling(CallContext("erasure.reapplied", who, "operator")):
        for entry in ledger.entries():
            count = await store.erase_again(entry.erasure_id, entry.bank, entry.slots, who)
            erasures += count > 0
            memories += count
    return Done(epoch, erasures, memories)


async def _run(config: Config, who: str, force: bool) -> Done | None:
    """What was done; None where the database and the ledger agree and nobody says that it was restored."""
    database = await Database.connect(config.database_url, "compliance", QUERIES, size=2)
    try:
        keys = await open_key_store(database, config.keystore, "compliance", restored=True)
        ledger = Ledger(keys.path)
        try:
            if not force and await database.value("is_not_older", ledger.newest(), ledger.epoch()):
                return None
            return await restored(Store(database, lambda _: None), ledger, who)
        finally:
            ledger.close()
            keys.close()
    finally:
        await database.close()


def main() -> None:
    """The command; exit codes as the module says."""
    parser = argparse.ArgumentParser(
        prog="python -m services.compliance.restored",
        description="Make a restored database fit to be served: a new epoch, and what was erased since its backup.",
    )
    parser.add_argument(
        "--principal", type=principal, required=True, help="who restored, such as user:olga; audit rows name them"
    )
    parser.add_argument(
        "--force", action="store_true", help="the database was restored, though it knows all that was erased"
    )
    arguments = parser.parse_args()
    config = load_or_exit(Config)
    try:
        done = asyncio.run(_run(config, arguments.principal, arguments.force))
    except Exception as error:
        refusal = from_driver(error)
        if refusal is None:
            raise
        sys.exit(f"not done, run it again: {refusal.message}")
    if done is None:
        print(
            "nothing was done: the database knows all that the key store's ledger says was erased. If it was restored"
            " from a backup all the same, stop all services and run this again with --force; if not, there is"
            " nothing to do",
            file=sys.stderr,
        )
        sys.exit(3)
    print(
        f"epoch {done.epoch} begins; {done.erasures} erasures of {done.memories} memories since the backup are applied"
    )


if __name__ == "__main__":
    main()
