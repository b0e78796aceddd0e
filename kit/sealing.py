"""Sealing: text is kept only as AES-256-GCM ciphertext, under a key that seals one memory, once.

Keys stand in pages in a `KeyStore` outside of the database and its backups. To erase a memory is to zero its slot.
"""

import os
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import apsw
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kit.errors import Refusal

KEY_BYTES = 32
NONCE_BYTES = 12
FIRST_PAGE, LARGEST_PAGE = 8, 128
CACHE_SECONDS = 5.0
# A page that no row names is dropped once it is a day old. Slots are handed out from it for half a day only, so that
# by then every commit that could still name it has ended long ago.
PAGE_SECONDS, UNUSED_SECONDS = 12 * 3600.0, 24 * 3600.0
_ZERO = bytes(KEY_BYTES)


class KeyMissing(Exception):
    """The slot holds no key: what it sealed was erased, or the key store is not the one that goes with the database."""


@dataclass(frozen=True)
class Slot:
    """Where a key stands: page id and index within the page."""

    page: int
    index: int


class KeyStore:
    """Key pages and named secrets in one SQLite file. One durable write makes a page; zeroed slots leave no byte."""

    def __init__(self, path: Path) -> None:
        """Opens or makes the file (mode 0600). Raises Refusal KEYSTORE_UNAVAILABLE when it cannot."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            self._db = apsw.Connection(str(path))
            self._db.set_busy_timeout(5000)
            for pragma in ("journal_mode=wal", "secure_delete=on", "synchronous=full"):
                self._db.execute(f"pragma {pragma}").fetchall()
            self._db.execute(
                "create table if not exists pages (page integer primary key, bank text not null, author text not null,"
                " keys blob not null, created_at real not null);"
                "create index if not exists pages_by_age on pages (created_at);"
                "create table if not exists secrets (name text primary key, value blob not null)"
            )
        except (apsw.Error, OSError) as error:
            raise Refusal("KEYSTORE_UNAVAILABLE", f"the key store cannot be opened: {error}") from error
        self._cache: dict[int, tuple[float, bytes]] = {}

    def close(self) -> None:
        """Closes the file."""
        self._db.close()

    def make_page(self, bank: str, author: str, slots: int) -> int:
        """Writes a page of `slots` fresh keys durably; gives its id."""
        page = int.from_bytes(os.urandom(8), "big") >> 2
        keys = os.urandom(KEY_BYTES * slots)
        try:
            self._db.execute(
                "insert into pages values (?, ?, ?, ?, ?)", (page, bank, author, keys, time.time())
            )
        except apsw.Error as error:
            raise Refusal("KEYSTORE_UNAVAILABLE", "the key store cannot be written", retry_after=1) from error
        return page

    def key(self, slot: Slot) -> bytes:
        """The 32 bytes of a slot; cached for at most 5 s. Raises KeyMissing when zeroed or unknown."""
        now = time.monotonic()
        held = self._cache.get(slot.page)
        if held is None or held[0] < now:
            try:
                row = self._db.execute("select keys from pages where page = ?", (slot.page,)).fetchone()
            except apsw.Error as error:
                raise Refusal(
                    "KEYSTORE_UNAVAILABLE", "the key store cannot be read", retry_after=1
                ) from error
            if len(self._cache) > 4096:
                self._cache = {page: entry for page, entry in self._cache.items() if entry[0] >= now}
            held = (now + CACHE_SECONDS, row[0] if row else b"")
            self._cache[slot.page] = held
        key = held[1][slot.index * KEY_BYTES : (slot.index + 1) * KEY_BYTES]
        if len(key) != KEY_BYTES or key == _ZERO:
            raise KeyMissing(f"page {slot.page} slot {slot.index}")
        return key

    def fresh_key(self, slot: Slot) -> bytes:
        """The key of a slot just taken from an Allocator over this store, looking past an older cached page."""
        try:
            return self.key(slot)
        except KeyMissing:
            self._cache.pop(slot.page, None)
            return self.key(slot)

    def destroy(self, slots: Iterable[Slot]) -> int:
        """Zeroes slots and returns only when no byte of their keys is left in the file or its log; counts the zeroed.

        Raises Refusal KEYSTORE_UNAVAILABLE when that cannot be had within 10 s; to call again is harmless.
        """
        done = 0
        try:
            with self._db:
                for slot in slots:
                    row = self._db.execute("select keys from pages where page = ?", (slot.page,)).fetchone()
                    if row is None:
                        continue
                    keys = bytearray(row[0])
                    start = slot.index * KEY_BYTES
                    if keys[start : start + KEY_BYTES] != _ZERO:
                        keys[start : start + KEY_BYTES] = _ZERO
                        self._db.execute("update pages set keys = ? where page = ?", (bytes(keys), slot.page))
                        done += 1
                    self._cache.pop(slot.page, None)
            self._empty_log()
        except apsw.Error as error:
            raise Refusal("KEYSTORE_UNAVAILABLE", "the key store cannot be written", retry_after=1) from error
        return done

    def _empty_log(self) -> None:
        deadline = time.monotonic() + 10
        while True:
            busy = self._db.execute("pragma wal_checkpoint(truncate)").fetchone()
            if busy and busy[0] == 0:
                return
            if time.monotonic() > deadline:
                raise Refusal(
                    "KEYSTORE_UNAVAILABLE", "another process holds the key store's log", retry_after=1
                )
            time.sleep(0.01)

    def old_pages(self) -> list[int]:
        """Pages made so long ago that a row names them by now, or none ever will."""
        limit = time.time() - UNUSED_SECONDS
        try:
            rows = self._db.execute("select page from pages where created_at < ?", (limit,)).fetchall()
        except apsw.Error as error:
            raise Refusal("KEYSTORE_UNAVAILABLE", "the key store cannot be read", retry_after=1) from error
        return [page for (page,) in rows if isinstance(page, int)]

    def drop_pages(self, pages: Collection[int]) -> None:
        """Deletes those of these pages that are old, with every byte of their keys; to call again is harmless."""
        limit = time.time() - UNUSED_SECONDS
        drop = "delete from pages where page = ? and created_at < ?"
        try:
            with self._db:
                self._db.executemany(drop, [(page, limit) for page in pages])
            self._empty_log()
        except apsw.Error as error:
            raise Refusal("KEYSTORE_UNAVAILABLE", "the key store cannot be written", retry_after=1) from error

    def secret(self, name: str) -> bytes:
        """A 32-byte secret of the deployment, made when first asked for."""
        try:
            self._db.execute(
                "insert into secrets values (?, ?) on conflict do nothing", (name, os.urandom(32))
            )
            row = self._db.execute("select value from secrets where name = ?", (name,)).fetchone()
        except apsw.Error as error:
            raise Refusal("KEYSTORE_UNAVAILABLE", "the key store cannot be used", retry_after=1) from error
        assert row is not None
        return bytes(row[0])


@dataclass
class _OpenPage:
    page: int
    size: int
    used: int
    made: float


class Allocator:
    """Hands out slots. A page serves one author in one bank and one process for half a day; sizes double from 8 to 128."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store
        self._open: dict[tuple[str, str], _OpenPage] = {}

    def take(self, bank: str, author: str, count: int) -> list[Slot]:
        """`count` slots never given before, their pages durable."""
        slots: list[Slot] = []
        current = self._open.get((bank, author))
        # By the clock that dates pages, which also runs while the machine sleeps; one that was set back tells nothing.
        if current is not None and not 0 <= time.time() - current.made < PAGE_SECONDS:
            current = None
        while len(slots) < count:
            if current is None or current.used == current.size:
                size = FIRST_PAGE if current is None else min(current.size * 2, LARGEST_PAGE)
                while size < count - len(slots) and size < LARGEST_PAGE:
                    size *= 2
                made = time.time()
                current = _OpenPage(self._store.make_page(bank, author, size), size, 0, made)
                self._open[(bank, author)] = current
            slots.append(Slot(current.page, current.used))
            current.used += 1
        return slots


def _associated(bank: str, memory_id: str) -> bytes:
    return f"{bank}\0{memory_id}".encode()


def seal(key: bytes, bank: str, memory_id: str, plain: bytes) -> bytes:
    """Nonce and ciphertext of `plain`, bound to bank and id."""
    nonce = os.urandom(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plain, _associated(bank, memory_id))


def unseal(key: bytes, bank: str, memory_id: str, sealed: bytes) -> bytes:
    """The plain bytes. Raises KeyMissing when key, bank or id is not the one it was sealed with."""
    try:
        return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], _associated(bank, memory_id))
    except InvalidTag as error:
        raise KeyMissing("the key does not open what the row holds") from error


def open_rows(store: KeyStore, bank: str, rows: Sequence[tuple[str, Slot, bytes]]) -> list[bytes | None]:
    """The plain bytes of (id, slot, sealed) rows; None where there is no key."""
    result: list[bytes | None] = []
    for memory_id, slot, sealed in rows:
        try:
            result.append(unseal(store.key(slot), bank, memory_id, sealed))
        except KeyMissing:
            result.append(None)
    return result
