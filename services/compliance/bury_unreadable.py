"""Lets a bank be read again whose memories have lost their keys: `python -m services.compliance.bury_unreadable`.

Run it where the compliance service runs, with that service's environment. Without `--bury` it only lists, by ids.
"""

import argparse
import asyncio
import sys
import uuid

from kit.audit import CallContext, calling
from kit.config import bank, load_or_exit, principal
from kit.database import Database
from kit.errors import from_driver
from kit.hints import Sender
from kit.keystore import open_key_store
from kit.sealing import KeyStore, Slot, open_rows
from services.compliance.erasures import chunks
from services.compliance.main import Config
from services.compliance.store import QUERIES, Store


async def unreadable(store: Store, keys: KeyStore, bank: str) -> list[tuple[str, Slot]]:
    """The live memories of a bank that the key store does not open."""
    found: list[tuple[str, Slot]] = []
    after = ""
    while rows := await store.live(bank, after):
        opened = open_rows(keys, bank, rows)
        found += [(row[0], row[1]) for row, plain in zip(rows, opened, strict=True) if plain is None]
        after = rows[-1][0]
    return found


async def without_page(store: Store, keys: KeyStore, bank: str) -> list[tuple[str, Slot]]:
    """The erased memories of a bank whose keys are to be destroyed and cannot be found."""
    found: list[tuple[str, Slot]] = []
    after = ""
    while rows := await store.open_keys(bank, after):
        gone = set(keys.not_found([slot for _, slot in rows]))
        found += [row for row in rows if row[1] in gone]
        after = rows[-1][0]
    return found


async def bury(store: Store, keys: KeyStore, bank: str, principal: str, really: bool) -> tuple[int, int]:
    """Buries what cannot be read and gives up keys that cannot be found; counts both. Raises BANK_HELD as an erasure does."""
    live, open_ = await unreadable(store, keys, bank), await without_page(store, keys, bank)
    for what, rows in (("live, unreadable", live), ("erased, key not found", open_)):
        for memory_id, slot in rows:
            print(f"{what}: memory {memory_id}, key page {slot.page}, slot {slot.index}")
    if really:
        with calling(CallContext("erasure.unreadable_buried", principal, "operator")):
            for ids in chunks([memory_id for memory_id, _ in live]):
                erasure_id = uuid.uuid4().hex
                if await store.bury(bank, ids, principal, erasure_id):
                    print(f"erasure {erasure_id} began")
        with calling(CallContext("erasure.keys_written_off", principal, "operator")):
            for ids in chunks([memory_id for memory_id, _ in open_]):
                await store.write_off(bank, ids)
    return len(live), len(open_)


async def _run(config: Config, bank: str, principal: str, really: bool) -> tuple[int, int]:
    database = await Database.connect(config.database_url, "compliance", QUERIES, size=2)
    hints = Sender(config.database_url)
    try:
        keys = await open_key_store(database, config.keystore, "compliance")
        return await bury(Store(database, hints.committed), keys, bank, principal, really)
    finally:
        await hints.stop()
        await database.close()


def main() -> None:
    """The command. Exit code 0 when nothing is left to do, 3 when it only listed, 1 with one line when it cannot."""
    parser = argparse.ArgumentParser(
        prog="python -m services.compliance.bury_unreadable",
        description="List the memories of a bank whose keys are lost; with --bury, bury them for good.",
    )
    parser.add_argument("--bank", type=bank, required=True)
    parser.add_argument("--bury", action="store_true", help="write tombstones; this cannot be undone")
    parser.add_argument(
        "--principal", type=principal, help="who decides it, such as user:olga; needed with --bury"
    )
    arguments = parser.parse_args()
    if arguments.bury and not arguments.principal:
        parser.error("--bury needs --principal, which the audit rows name")
    config = load_or_exit(Config)
    try:
        live, lost = asyncio.run(_run(config, arguments.bank, arguments.principal or "", arguments.bury))
    except Exception as error:
        refusal = from_driver(error)
        if refusal is None:
            raise
        sys.exit(f"nothing more was buried: {refusal.message}")
    print(f"{live} live memories cannot be read; {lost} keys to destroy cannot be found", file=sys.stderr)
    if (live or lost) and not arguments.bury:
        sys.exit(3)


if __name__ == "__main__":
    main()
