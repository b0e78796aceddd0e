"""What must be so once all have stopped: erasures are through, keys stand where they must, and a late reader sees the same."""

import asyncio
import time
from pathlib import Path

import apsw
import asyncpg

from kit.errors import LOST
from services.compliance.erasures import STAGES
from tests.integration.conftest import RunningStack

OPEN = (
    "select e.bank, e.erasure_id, e.state, count(k.id) filter (where k.done_at is null) as keys"
    " from memory.erasures e left join memory.key_destructions k using (erasure_id)"
    " where e.state <> 'server_done' group by e.erasure_id order by e.requested_at"
)


async def settled(database_url: str, patience: float = 120) -> list[str]:
    """Waits until every erasure is through all its stages, as long as they get fewer; says which are not."""
    deadline, left = time.monotonic() + patience, ["the database was never reached"]
    while time.monotonic() < deadline:
        try:
            database = await asyncpg.connect(database_url)
            try:
                rows = await database.fetch(OPEN)
            finally:
                await database.close()
            if not rows:
                return []
            if len(rows) != len(left):
                deadline = time.monotonic() + patience
            left = [
                f"{r['erasure_id']} of {r['bank']}: {r['state']}, next {STAGES[r['state']].to_state},"
                f" {r['keys']} keys stand"
                for r in rows
            ]
        except LOST:
            pass
        await asyncio.sleep(0.3)
    return left


async def wrong_keys(stack: RunningStack) -> list[str]:
    """Live rows that lack their key, and erased ones that have it."""
    database = await asyncpg.connect(stack.facts.database_url)
    rows = await database.fetch("select id, key_page, key_slot, true as live from memory.memories")
    rows += await database.fetch("select id, key_page, key_slot, false as live from memory.key_destructions")
    await database.close()
    pages = keys_of(stack.data / "keys" / "keystore.db")
    wrong = []
    for row in rows:
        stands = any(pages.get(row["key_page"], b"")[row["key_slot"] * 32 : row["key_slot"] * 32 + 32])
        if stands != row["live"]:
            wrong.append(
                f"{row['id']} is {'live without a key' if row['live'] else 'erased and its key stands'}"
            )
    return wrong


def keys_of(path: Path) -> dict[int, bytes]:
    """Key pages by id."""
    store = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        rows = store.execute("select page, keys from pages").fetchall()
    finally:
        store.close()
    return {page: keys for page, keys in rows if isinstance(page, int) and isinstance(keys, bytes)}
