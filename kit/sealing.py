"""Sealing: text is kept only as AES-256-GCM ciphertext, under a key that seals one memory, once.

Keys stand in pages in a `KeyStore` outside of the database and its backups. To erase a memory is to zero its slot.
"""

import logging
import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import apsw
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kit import telemetry
from kit.errors import Refusal

log = logging.getLogger("teamlore.sealing")
KEY_BYTES = 32
NONCE_BYTES = 12
FIRST_PAGE, LARGEST_PAGE, MOST_PAGES = 8, 128, 8
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

    @property
    def start(self) -> int:
        """Where its key begins within the page."""
        return self.index * KEY_BYTES

    @property
    def end(self) -> int:
        """Where its key ends within the page."""
        return self.start + KEY_BYTES


@dataclass(frozen=True)
class Destruction:
    """What `KeyStore.destroy` did: slots it zeroed now, and slots that it has no page of and never had dropped."""

    zeroed: int
    missing: tuple[Slot, ...]


_SCHEMA = """
create table if not exists pages (page integer primary key, bank text not null, author text not null,
                                  keys blob not null, created_at real not null);
create index if not exists pages_by_age on pages (created_at);
create table if not exists secrets (name text primary key, value blob not null);
create table if not exists identity (single integer primary key check (single = 1), id text not null);
create table if not exists dropped (page integer primary key, dropped_at real not null);
"""


class KeyStore:
    """Key pages and named secrets in one SQLite file. One durable write makes a page; zeroed slots leave no byte.

    Services open it through `kit.keystore`, which sees to it that it is the one that goes with the database.
    """

    def __init__(self, path: Path, *, make: bool = False) -> None:
        """Opens the file; only with `make` it is made (mode 0600) where it is missing or empty, in a folder that exists.

        Raises Refusal KEYSTORE_UNAVAILABLE when it cannot, or when the file is no key store.
        """
        try:
            if make:
                os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            self._db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
            self._db.set_busy_timeout(5000)
            tables = {
                name for (name,) in self._db.execute("select name from sqlite_master where type = 'table'")
            }
            if (tables and not {"pages", "secrets"} <= tables) or (not tables and not make):
                raise Refusal("KEYSTORE_UNAVAILABLE", f"{path} is not a key store")
            for pragma in ("journal_mode=wal", "secure_delete=on", "synchronous=full"):
                self._db.execute(f"pragma {pragma}").fetchall()
            with self._db:
                self._db.execute(_SCHEMA)
                if not tables:
                    self._db.execute("insert or ignore into identity values (1, ?)", (os.urandom(16).hex(),))
            self._place = _place(path)
        except (apsw.Error, OSError) as error:
            raise Refusal(
                "KEYSTORE_UNAVAILABLE", f"the key store {path} cannot be opened: {error}"
            ) from error
        self.path = path
        self._cache: dict[int, tuple[float, bytes]] = {}

    def close(self) -> None:
        """Closes the file."""
        self._db.close()

    def identity(self) -> str:
        """The random id that tells this key store from every other; empty for one of an older version."""
        row = self._db.execute("select id from identity").fetchone()
        return str(row[0]) if row else ""

    def adopt(self, identity: str) -> None:
        """Gives an identity to a key store that has none."""
        self._db.execute("insert into identity values (1, ?)", (identity,))

    def pages(self) -> Iterator[list[int]]:
        """The ids of all pages, by the thousand."""
        last = -1
        after = "select page from pages where page > ? order by page limit 1000"
        while rows := [page for (page,) in self._db.execute(after, (last,)) if isinstance(page, int)]:
            yield rows
            last = rows[-1]

    def _check_place(self) -> None:
        """Keys that are written to or destroyed in a file which no longer stands in its place would be elsewhere."""
        if _place(self.path) != self._place:
            log.critical("ALARM: the file of the key store was taken away or replaced; restart this process")
            raise Refusal("KEYSTORE_UNAVAILABLE", "the file of the key store was taken away or replaced")

    def make_pages(self, bank: str, author: str, slots: int, count: int) -> list[int]:
        """Writes pages of `slots` fresh keys in one durable write, which is what takes the time; gives their ids."""
        pages = [int.from_bytes(os.urandom(8), "big") >> 2 for _ in range(count)]
        now = time.time()
        rows = [(page, bank, author, os.urandom(KEY_BYTES * slots), now) for page in pages]
        self._check_place()
        try:
            with self._db:
                self._db.executemany("insert into pages values (?, ?, ?, ?, ?)", rows)
        except apsw.Error as error:
            raise Refusal("KEYSTORE_UNAVAILABLE", "the key store cannot be written", retry_after=1) from error
        return pages

    def key(self, slot: Slot) -> bytes:
        """The 32 bytes of a slot; cached for at most 5 s. Raises KeyMissing when zeroed or unknown."""
        key = self.keys_of(slot.page)[slot.start : slot.end]
        if len(key) != KEY_BYTES or key == _ZERO:
            raise KeyMissing(f"page {slot.page} slot {slot.index}")
        return key

    def keys_of(self, page: int) -> bytes:
        """All keys of a page, one after the other; cached for at most 5 s; empty for an unknown page."""
        now = time.monotonic()
        held = self._cache.get(page)
        if held is None or held[0] < now:
            self._check_place()
            try:
                row = self._db.execute("select keys from pages where page = ?", (page,)).fetchone()
            except apsw.Error as error:
                raise Refusal(
                    "KEYSTORE_UNAVAILABLE", "the key store cannot be read", retry_after=1
                ) from error
            if len(self._cache) > 4096:
                self._cache = {other: entry for other, entry in self._cache.items() if entry[0] >= now}
            held = (now + CACHE_SECONDS, row[0] if row else b"")
            self._cache[page] = held
        return held[1]

    def fresh_key(self, slot: Slot) -> bytes:
        """The key of a slot just taken from an Allocator over this store, looking past an older cached page."""
        try:
            return self.key(slot)
        except KeyMissing:
            self._cache.pop(slot.page, None)
            return self.key(slot)

    def destroy(self, slots: Iterable[Slot]) -> Destruction:
        """Zeroes slots and returns only when no byte of their keys is left in the file or its log.

        A slot whose page is not here counts as destroyed only where the page was dropped on purpose; else it is named
        as missing. Raises Refusal KEYSTORE_UNAVAILABLE when that cannot be had within 10 s; to call again is harmless.
        """
        zeroed, missing = 0, []
        self._check_place()
        try:
            with self._db:
                for slot in slots:
                    keys = self._page_of(slot)
                    if keys is None:
                        missing.append(slot)
                    elif keys[slot.start : slot.end] not in (_ZERO, b""):
                        keys[slot.start : slot.end] = _ZERO
                        self._db.execute("update pages set keys = ? where page = ?", (bytes(keys), slot.page))
                        zeroed += 1
                    self._cache.pop(slot.page, None)
            self._empty_log()
        except apsw.Error as error:
            raise Refusal("KEYSTORE_UNAVAILABLE", "the key store cannot be written", retry_after=1) from error
        return Destruction(zeroed, tuple(missing))

    def not_found(self, slots: Iterable[Slot]) -> list[Slot]:
        """Those slots that `destroy` would name as missing."""
        try:
            return [slot for slot in slots if self._page_of(slot) is None]
        except apsw.Error as error:
            raise Refusal("KEYSTORE_UNAVAILABLE", "the key store cannot be read", retry_after=1) from error

    def _page_of(self, slot: Slot) -> bytearray | None:
        """The keys of a slot's page, none for one that was dropped; None where the slot was never here."""
        row = self._db.execute("select keys from pages where page = ?", (slot.page,)).fetchone()
        if row is not None:
            return bytearray(row[0]) if len(row[0]) >= slot.end else None
        dropped = self._db.execute("select 1 from dropped where page = ?", (slot.page,)).fetchone()
        return bytearray() if dropped else None

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
        """Deletes those of these pages that are old, with every byte of their keys, and remembers that it did."""
        limit = time.time() - UNUSED_SECONDS
        self._check_place()
        try:
            with self._db:
                for page in pages:
                    self._db.execute("delete from pages where page = ? and created_at < ?", (page, limit))
                    if self._db.changes():
                        self._db.execute("insert or ignore into dropped values (?, ?)", (page, time.time()))
            self._empty_log()
        except apsw.Error as error:
            raise Refusal("KEYSTORE_UNAVAILABLE", "the key store cannot be written", retry_after=1) from error

    def secret(self, name: str, *, make: bool = True) -> bytes:
        """A 32-byte secret of the deployment, made when first asked for. Raises KeyMissing where it may not be made."""
        try:
            if make:
                self._db.execute(
                    "insert into secrets values (?, ?) on conflict do nothing", (name, os.urandom(32))
                )
            row = self._db.execute("select value from secrets where name = ?", (name,)).fetchone()
        except apsw.Error as error:
            raise Refusal("KEYSTORE_UNAVAILABLE", "the key store cannot be used", retry_after=1) from error
        if row is None:
            raise KeyMissing(f"secret {name}")
        return bytes(row[0])


def _place(path: Path) -> tuple[int, int] | None:
    """Which file stands at a path; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


@dataclass
class _OpenPage:
    page: int
    size: int
    used: int
    made: float
    together: int = 1
    """How many pages one write made."""
    spare: list[int] = field(default_factory=list)


class Allocator:
    """Hands out slots. A page serves one author in one bank and one process for half a day; sizes double from 8 to 128,
    then 2, 4 and 8 such pages are made in one write."""

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
                if current is not None and current.spare:
                    current.page, current.used = current.spare.pop(), 0
                else:
                    busy = current is not None and current.size == LARGEST_PAGE
                    together = min(current.together * 2, MOST_PAGES) if busy and current is not None else 1
                    made = time.time()
                    page, *spare = self._store.make_pages(bank, author, size, together)
                    current = _OpenPage(page, size, 0, made, together, spare)
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


def seal_many(store: KeyStore, bank: str, items: Sequence[tuple[str, Slot, bytes]]) -> list[bytes]:
    """What `seal` makes of each (id, slot, plain), under slots just taken from an Allocator over this store."""
    # One call for all: each costs as much as the sealing.
    random = os.urandom(NONCE_BYTES * len(items))
    pages: dict[int, bytes] = {}
    prefix, result = _associated(bank, ""), []
    for at, (memory_id, slot, plain) in enumerate(items):
        keys = pages.get(slot.page)
        if keys is None:
            keys = pages[slot.page] = store.keys_of(slot.page)
        start = slot.index * KEY_BYTES
        key = keys[start : start + KEY_BYTES]
        if len(key) != KEY_BYTES or key == _ZERO:
            key = store.fresh_key(slot)
        nonce = random[at * NONCE_BYTES : (at + 1) * NONCE_BYTES]
        result.append(nonce + AESGCM(key).encrypt(nonce, plain, prefix + memory_id.encode()))
    return result


def unseal(key: bytes, bank: str, memory_id: str, sealed: bytes) -> bytes:
    """The plain bytes. Raises KeyMissing when key, bank or id is not the one it was sealed with."""
    try:
        return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], _associated(bank, memory_id))
    except InvalidTag as error:
        raise KeyMissing("the key does not open what the row holds") from error


def open_rows(store: KeyStore, bank: str, rows: Sequence[tuple[str, Slot, bytes]]) -> list[bytes | None]:
    """The plain bytes of (id, slot, sealed) rows; None where there is no key."""
    return open_many(
        store, bank, [(memory_id, slot.page, slot.index, sealed) for memory_id, slot, sealed in rows]
    )


def open_many(
    store: KeyStore, bank: str, rows: Sequence[tuple[str, int, int, bytes | None]]
) -> list[bytes | None]:
    """The plain bytes of (id, key page, slot, sealed) rows; None where there is no key, or nothing sealed.

    Made for many rows at once, as they were pushed: those of one key page mostly follow each other.
    """
    result: list[bytes | None] = [None] * len(rows)
    prefix, held, keys = _associated(bank, ""), None, b""
    for place, (memory_id, page, index, sealed) in enumerate(rows):
        if sealed is None:
            continue
        if page != held:
            held, keys = page, store.keys_of(page)
        key = keys[index * KEY_BYTES : index * KEY_BYTES + KEY_BYTES]
        if key == _ZERO or len(key) != KEY_BYTES:
            continue
        associated = prefix + memory_id.encode()
        try:
            result[place] = AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], associated)
        except InvalidTag:
            pass  # it stays None
    return result


def key_alarm(what: str, bank: str, slots: Sequence[tuple[str, Slot]]) -> Refusal:
    """Raises the alarm that keys are not there, by ids alone; gives the refusal that names the first memory.

    `what` says in which case; the name of a PRIVATE bank is its owner's and stays out of the log.
    """
    shown = "a private bank" if bank.startswith("private:") else f"bank {bank}"
    telemetry.keys_missing.add(len(slots))
    log.critical(
        "ALARM: %s; %s, memories and key pages: %s",
        what,
        shown,
        ", ".join(f"{memory_id} in {slot.page}" for memory_id, slot in slots[:100]),
    )
    memory_id = slots[0][0]
    return Refusal(
        "KEY_MISSING",
        f"{what}: memory {memory_id}; an operator has to act, see the platform guide",
        metadata={"memory_id": memory_id},
    )
