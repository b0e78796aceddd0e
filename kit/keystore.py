"""Opens the key store that goes with the database, and no other: both carry one identity, compared at every start.

What is sealed under another key store can never be read, and what is erased there still stands here.
"""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from kit import audit
from kit.database import Database, Transaction
from kit.errors import Refusal
from kit.ledger import Ledger
from kit.sealing import KeyStore

_LOCK = "select pg_advisory_xact_lock(7214533)"
_KNOWN = "select id from memory.key_store"
_BIND = "select memory.bind_key_store($1)"
_FRESH = "select memory.never_had_a_key_store()"
_NOT_OLDER = "select memory.is_not_older($1, $2)"
_NEEDS_ANY = "select memory.needs_key_pages()"
_NEEDS = "select memory.needs_key_pages($1)"


async def open_key_store(database: Database, path: str, service: str, *, restored: bool = False) -> KeyStore:
    """The key store of this database. Raises Refusal KEYSTORE_UNAVAILABLE, in one line that says what to do.

    A database that lacks erasures of its key store was restored, and what was erased stands in it again: nobody opens
    it but the command that applies them, which says `restored`.

    A file is made only where the database never had a key store. Of services that start at once on a fresh deployment
    one makes it, and the others wait for it.
    """
    place = Path(path)
    known = await _known(database)
    if known:
        _refuse_missing(place)
        store = await asyncio.to_thread(KeyStore, place)
        with _closed_on_error(store):
            if store.identity() == known:
                if not restored:
                    await _refuse_older(database, place)
                return store
            if store.identity():
                raise _refusal(place, "it is not the key store of this database: give the path of that one")
        store.close()
    # The rest happens once in the life of a deployment, by one process at a time.
    with audit.calling(audit.CallContext("keystore.bound", f"service:{service}", f"service:{service}")):
        async with database.transaction() as tx:
            return await _bind(tx, place)


async def _known(database: Database) -> str:
    row = await database.execute_raw(_KNOWN)
    return str(row[0]) if row else ""


async def _refuse_older(database: Database, place: Path) -> None:
    newest, epoch = await asyncio.to_thread(_known_to_ledger, place)
    row = await database.execute_raw(_NOT_OLDER, newest, epoch)
    if not (row and row[0]):
        raise _refusal(
            place,
            "this database is older than what was erased since: after a restore run"
            " `python -m services.compliance.restored` first",
        )


def _known_to_ledger(place: Path) -> tuple[str, int]:
    with contextlib.closing(Ledger(place)) as ledger:
        return ledger.newest(), ledger.epoch()


async def _bind(tx: Transaction, place: Path) -> KeyStore:
    """The key store, with its identity written down on both sides. A crash on the way leaves what the next start mends."""
    await tx.connection.execute(_LOCK)
    known = str(await tx.connection.fetchval(_KNOWN) or "")
    fresh = not known and bool(await tx.connection.fetchval(_FRESH))
    if not fresh:
        _refuse_missing(place)
    store = await asyncio.to_thread(lambda: KeyStore(place, make=fresh))
    with _closed_on_error(store):
        mine = store.identity()
        if not (known and mine == known):
            if (known and mine) or not await _belongs(tx, store, known):
                raise _refusal(place, "it is not the key store of this database: give the path of that one")
            if not mine:
                mine = known or os.urandom(16).hex()
                store.adopt(mine)
            if not known:
                await tx.connection.execute(_BIND, mine)
            tx.changed("", 1)
        return store


async def _belongs(tx: Transaction, store: KeyStore, known: str) -> bool:
    """Whether two of which at least one carries no identity yet belong together: the store has a page that is needed."""
    if await tx.connection.fetchval(_NEEDS_ANY):
        for pages in store.pages():
            if await tx.connection.fetchval(_NEEDS, pages):
                return True
        return False
    # Nothing can prove it. One of an older version is believed; one with pages and an identity is some other database's.
    return not known and (not store.identity() or next(store.pages(), None) is None)


@contextlib.contextmanager
def _closed_on_error(store: KeyStore) -> Iterator[None]:
    try:
        yield
    except BaseException:
        store.close()
        raise


def _refuse_missing(place: Path) -> None:
    if not place.exists():
        raise _refusal(
            place, "there is no such file, and this database has a key store: give the path of that one"
        )


def _refusal(place: Path, why: str) -> Refusal:
    return Refusal("KEYSTORE_UNAVAILABLE", f"TEAMLORE_KEYSTORE={place}: {why}")
