"""A bank whose history is written with the real functions, and a mirror that reads it with the real store."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
from hypothesis import strategies as st
from teamlore.feed.v1 import feed_pb2

from kit.database import Database
from kit.errors import Refusal
from kit.sealing import KeyStore, Slot, seal
from services.feed.cursors import Cursor
from services.feed.store import QUERIES, Store

PUT = "select stored_id from memory.put($1, 'user:alice', $2, $3, $4, $5, $6, $7, $8)"
_fresh = itertools.count()
Op = tuple[str, tuple[int, ...]]
IDS = st.lists(st.integers(0, 7), min_size=1, max_size=3, unique=True).map(tuple)
WRITES = st.one_of(
    st.tuples(st.just("put"), IDS), st.tuples(st.just("put"), IDS),
    st.tuples(st.just("status"), IDS), st.tuples(st.just("forget"), IDS), st.tuples(st.just("erase"), IDS),
)  # fmt: skip


def digest_of(live: dict[str, int]) -> tuple[int, int]:
    """Count and sum, as GetDigest tells them."""
    import hashlib

    terms = (hashlib.sha256(f"{i}\0{seq}".encode()).digest()[:8] for i, seq in live.items())
    return len(live), sum(int.from_bytes(term, "big") for term in terms) % 2**64


def changes_in(body: bytes) -> list[feed_pb2.Change]:
    return list(feed_pb2.ListChangesResponse.FromString(body).changes)


@dataclass
class Bank:
    """One bank of a database; ids are numbers to the tests. Everything above a seq that tests choose is followed by an
    index that keeps up, unless they say otherwise."""

    sql: Any
    store: Store
    keys: KeyStore
    name: str
    page: int
    slots: Any = field(default_factory=itertools.count)

    @classmethod
    async def made(cls, sql: Any, database: Database, keys: KeyStore, slots: int = 64) -> "Bank":
        name = f"project:history-{next(_fresh)}-{random.getrandbits(32):x}"
        await sql.execute("select memory.open_bank($1)", name)
        await sql.execute("insert into index.cursors (bank, seq) values ($1, 1000000)", name)
        return cls(sql, Store(database, keys), keys, name, keys.make_pages(name, "user:alice", slots, 1)[0])

    def id(self, number: int) -> str:
        return f"{self.name.removeprefix('project:')}.{number}"

    async def put(self, *numbers: int) -> None:
        """Stores those that were never here."""
        ids = [self.id(number) for number in numbers]
        slots = [Slot(self.page, next(self.slots)) for _ in ids]
        content = [feed_pb2.Change(text=f"text of {i}").SerializeToString() for i in ids]
        sealed = [seal(self.keys.key(s), self.name, i, c) for s, i, c in zip(slots, ids, content, strict=True)]
        pages, n = [self.page] * len(ids), len(ids)
        indexes = [slot.index for slot in slots]
        await self.sql.fetch(
            PUT, self.name, ids, [""] * n, [None] * n, pages, indexes, sealed, [None] * n
        )  # fmt: skip

    async def status(self, number: int) -> None:
        row = await self.sql.fetchrow(
            "select version from memory.memories where bank = $1 and id = $2", self.name, self.id(number)
        )
        if row is not None:
            word = random.choice(["suspect", "current", "contradicted"])
            await self.sql.execute(
                "select memory.status($1, $2, $3, $4, null, null, null, now())",
                self.name,
                self.id(number),
                row[0],
                word,
            )

    async def forget(self, *numbers: int) -> None:
        await self.sql.execute("select memory.hide($1, $2)", self.name, [self.id(n) for n in numbers])

    async def erase(self, *numbers: int) -> None:
        await self.sql.execute(
            "select memory.erase($1, $2, 'user:olga', $3)", self.name, [self.id(n) for n in numbers],
            f"{self.name} {next(_fresh)}",
        )  # fmt: skip

    async def write(self, what: str, numbers: Sequence[int]) -> None:
        if what == "status":
            for number in numbers:
                await self.status(number)
        else:
            await {"put": self.put, "forget": self.forget, "erase": self.erase}[what](*numbers)

    async def raise_horizon(self, older: str = "0") -> Any:
        return await self.sql.fetchrow(
            f"select * from memory.raise_horizon($1, interval '{older}', interval '90 days')", self.name
        )

    async def compact(self, most: int) -> int:
        through, removed = 0, 0
        while True:
            row = await self.sql.fetchrow("select * from memory.trim($1, $2, $3)", self.name, through, most)
            if row["through"] is None:
                return removed
            assert row["through"] > through
            through, removed = row["through"], removed + row["removed"]

    async def live(self) -> dict[str, int]:
        rows = await self.sql.fetch("select id, last_seq from memory.live_memories where bank = $1", self.name)
        return {row["id"]: row["last_seq"] for row in rows}

    async def head(self) -> Any:
        return await self.sql.fetchrow("select * from memory.heads where bank = $1", self.name)

    async def listed(self, size: int = 1000, as_of: int = 0) -> dict[str, feed_pb2.Change]:
        """All pages of ListLive."""
        found: dict[str, feed_pb2.Change] = {}
        after = ""
        while True:
            body, after = await self.store.live(self.name, after, size, 10**6, as_of)
            found |= {change.id: change for change in changes_in(body)}
            if not after:
                return found


@dataclass
class Mirror:
    """What one device holds, and how often it had to reconcile."""

    bank: Bank
    cursor: Cursor | None = None
    holds: dict[str, int] = field(default_factory=dict)
    reconciled: int = 0

    async def step(self, limit: int) -> bool:
        """Reads one page; reconciles where it is told to. True where more is there."""
        head = await self.bank.head()
        try:
            page = await self.bank.store.page(self.bank.name, self.cursor, limit, 10**6)
        except Refusal as refusal:
            assert refusal.reason == "CURSOR_BEFORE_HORIZON"
            assert (self.cursor.seq if self.cursor else 0) < head["horizon"]
            await self.reconcile()
            return True
        assert page.start.seq >= head["horizon"], "below the horizon nothing may be told"
        for change in changes_in(page.changes):
            assert page.start.seq < change.seq <= page.end.seq
            if change.deleted:
                self.holds.pop(change.id, None)
            else:
                assert change.text == f"text of {change.id}"
                self.holds[change.id] = change.seq
        self.cursor = page.end
        return page.more

    async def reconcile(self) -> None:
        head = await self.bank.store.head(self.bank.name)
        self.holds = {i: change.seq for i, change in (await self.bank.listed(3)).items()}
        self.cursor = Cursor(head.epoch, head.head, head.nonce)
        self.reconciled += 1

    async def catch_up(self, limit: int = 100) -> None:
        while await self.step(limit):
            pass


async def connected(url: str, folder: Path) -> tuple[Any, Database, KeyStore]:
    """A superuser's connection, feed's own database handle, and a key store."""
    keys = KeyStore(folder / "keystore.db", make=True)
    return await asyncpg.connect(url), await Database.connect(url, "feed", QUERIES), keys
