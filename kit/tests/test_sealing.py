"""Keys are used once, and a destroyed one is in no file."""

import os
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from kit.errors import Refusal
from kit.sealing import (
    NONCE_BYTES,
    PAGE_SECONDS,
    UNUSED_SECONDS,
    Allocator,
    Destruction,
    KeyMissing,
    KeyStore,
    Slot,
    open_many,
    open_rows,
    seal,
    seal_many,
    unseal,
)


def files_of(path: Path) -> bytes:
    return b"".join(p.read_bytes() for p in path.parent.iterdir())


def test_a_destroyed_key_leaves_no_byte_and_no_other_is_touched(tmp_path: Path) -> None:
    path = tmp_path / "k" / "keystore.db"
    path.parent.mkdir()
    store, other = KeyStore(path, make=True), KeyStore(path)
    slots = Allocator(store).take("project:a", "user:alice", 20)
    keys = [store.key(slot) for slot in slots]
    assert other.key(slots[3]) == keys[3]
    assert keys[3] in files_of(path)
    assert store.destroy([slots[3]]) == Destruction(1, ())
    assert keys[3] not in files_of(path)
    assert store.destroy([slots[3]]) == Destruction(0, ())
    with pytest.raises(KeyMissing):
        store.key(slots[3])
    assert [store.key(slot) for slot in slots if slot != slots[3]] == [k for k in keys if k != keys[3]]
    store.close()
    other.close()
    again = KeyStore(path)
    with pytest.raises(KeyMissing):
        again.key(slots[3])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_is_sealed_opens_only_in_its_place() -> None:
    key = b"k" * 32
    sealed = seal(key, "project:a", "aaaaaaaa", b"plain words")
    assert unseal(key, "project:a", "aaaaaaaa", sealed) == b"plain words"
    assert b"plain" not in sealed
    for bank, memory_id, other_key in (
        ("project:b", "aaaaaaaa", key),
        ("project:a", "bbbbbbbb", key),
        ("project:a", "aaaaaaaa", b"l" * 32),
    ):
        with pytest.raises(KeyMissing):
            unseal(other_key, bank, memory_id, sealed)


def test_pages_double_and_no_slot_is_given_twice(tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "keystore.db", make=True)
    allocator = Allocator(store)
    slots = [slot for count in (1, 7, 16, 100, 300, 1) for slot in allocator.take("b", "a", count)]
    assert len(set(slots)) == 425
    sizes: dict[int, int] = {}
    for slot in slots:
        sizes[slot.page] = sizes.get(slot.page, 0) + 1
    assert next(iter(sizes.values())) == 8 and max(sizes.values()) == 128
    assert {slot.page for slot in allocator.take("b", "other", 1)}.isdisjoint(sizes)
    assert len({store.key(slot) for slot in slots}) == 425


def test_who_writes_much_gets_many_pages_in_one_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, writes = KeyStore(tmp_path / "keystore.db", make=True), list[int]()
    make = store.make_pages

    def counted(bank: str, author: str, slots: int, count: int) -> list[int]:
        writes.append(count)
        return make(bank, author, slots, count)

    monkeypatch.setattr(store, "make_pages", counted)
    allocator = Allocator(store)
    slots = [slot for _ in range(50) for slot in allocator.take("b", "a", 100)]
    assert len({store.key(slot) for slot in slots}) == 5000
    assert writes == [1, 2, 4, 8, 8, 8, 8, 8][: len(writes)] and len(writes) <= 8


def test_many_are_sealed_as_each_would_be(tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "keystore.db", make=True)
    other = KeyStore(tmp_path / "keystore.db")
    slots = Allocator(other).take("b", "a", 12)
    # An older look at a page that was not there yet must not stand in the way of its first use.
    store._cache[slots[0].page] = (time.monotonic() + 60, b"")
    items = [(f"memory-{at:02}", slot, f"text {at}".encode()) for at, slot in enumerate(slots)]
    sealed = seal_many(store, "b", items)
    for (memory_id, slot, plain), each in zip(items, sealed, strict=True):
        assert unseal(other.key(slot), "b", memory_id, each) == plain
        with pytest.raises(KeyMissing):
            unseal(other.key(slot), "other", memory_id, each)
    assert len({each[:NONCE_BYTES] for each in sealed}) == len(items)


def test_only_an_old_page_is_dropped_and_leaves_no_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "k" / "keystore.db"
    path.parent.mkdir()
    store = KeyStore(path, make=True)
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now - UNUSED_SECONDS - 1)
    kept, old = store.make_pages("b", "a", 8, 1)[0], store.make_pages("b", "a", 8, 1)[0]
    monkeypatch.setattr("time.time", lambda: now)
    young = store.make_pages("b", "a", 8, 1)[0]
    key = store.key(Slot(old, 7))
    assert sorted(store.old_pages()) == sorted([kept, old]) and key in files_of(path)
    store.drop_pages([old, young])
    assert key not in files_of(path)
    fresh = KeyStore(path)
    assert fresh.key(Slot(kept, 0)) and fresh.key(Slot(young, 0))
    assert open_rows(fresh, "b", [("x", Slot(old, 0), b"s" * 40)]) == [None]


def test_each_row_of_many_is_opened_with_its_own_key(tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "keystore.db", make=True)
    one, other = store.make_pages("b", "a", 8, 2)
    rows: list[tuple[str, int, int, bytes | None]] = []
    for number, slot in enumerate((Slot(one, 0), Slot(other, 0), Slot(one, 1), Slot(one, 7), Slot(other, 3))):
        rows.append((f"{number}", slot.page, slot.index, seal(store.key(slot), "b", f"{number}", b"%d" % number)))
    store.destroy([Slot(one, 1)])
    rows.insert(1, ("nothing sealed", one, 0, None))
    rows.append(("x", one, 1, seal(bytes(32), "b", "x", b"by a destroyed key")))
    rows += [("another id", *rows[0][1:]), ("0", other, 8, rows[0][3]), ("0", 4711, 0, rows[0][3])]
    assert open_many(store, "b", rows) == [b"0", None, b"1", None, b"3", b"4", None, None, None, None]


@pytest.mark.parametrize("later", [PAGE_SECONDS, -3600.0])
def test_no_slot_comes_from_a_page_that_the_sweep_might_drop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: float
) -> None:
    allocator = Allocator(KeyStore(tmp_path / "keystore.db", make=True))
    (first,) = allocator.take("b", "a", 1)
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now + PAGE_SECONDS - 60)
    assert allocator.take("b", "a", 1)[0].page == first.page
    monkeypatch.setattr("time.time", lambda: now + later)
    slots = allocator.take("b", "a", 8)
    assert first.page not in {slot.page for slot in slots} and len({slot.page for slot in slots}) == 1
    assert PAGE_SECONDS <= UNUSED_SECONDS / 2


def test_a_missing_page_is_never_taken_for_a_destroyed_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keystore.db"
    store = KeyStore(path, make=True)
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now - UNUSED_SECONDS - 1)
    page, dropped = store.make_pages("b", "a", 8, 1)[0], store.make_pages("b", "a", 8, 1)[0]
    monkeypatch.setattr("time.time", lambda: now)
    store.drop_pages([dropped, 4711])
    unknown, beyond = Slot(4711, 0), Slot(page, 8)
    asked = [Slot(page, 0), Slot(dropped, 3), unknown, beyond]
    assert store.not_found(asked) == [unknown, beyond]
    assert store.destroy(asked) == Destruction(1, (unknown, beyond))
    assert KeyStore(path).destroy(asked) == Destruction(0, (unknown, beyond))


def test_only_who_may_makes_a_file_and_nobody_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "keystore.db", tmp_path / "no" / "keystore.db"):
        with pytest.raises(Refusal, match=str(path)):
            KeyStore(path)
    with pytest.raises(Refusal):
        KeyStore(tmp_path / "no" / "keystore.db", make=True)
    other = tmp_path / "other.db"
    with apsw.Connection(str(other)) as file:
        file.execute("create table notes (x)")
    with pytest.raises(Refusal, match="is not a key store"):
        KeyStore(other, make=True)
    (tmp_path / "empty.db").touch()
    with pytest.raises(Refusal, match="is not a key store"):
        KeyStore(tmp_path / "empty.db")
    assert sorted(found.name for found in tmp_path.iterdir()) == ["empty.db", "other.db"]


def test_a_store_whose_file_was_replaced_makes_and_destroys_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keystore.db"
    store = KeyStore(path, make=True)
    page = store.make_pages("b", "a", 8, 1)[0]
    path.rename(tmp_path / "aside.db")
    for replaced in (False, True):
        if replaced:
            assert KeyStore(path, make=True).identity() != store.identity()
        for write in (
            lambda: store.make_pages("b", "a", 8, 1)[0],
            lambda: store.destroy([Slot(page, 0)]),
            lambda: store.drop_pages([page]),
            lambda: store.key(Slot(page, 0)),
        ):
            with pytest.raises(Refusal, match="taken away or replaced"):
                write()


def test_a_secret_that_must_be_there_is_not_made_again(tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "keystore.db", make=True)
    with pytest.raises(KeyMissing):
        store.secret("s", make=False)
    assert store.secret("s") == store.secret("s", make=False)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of its own with 256 kB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("a disk of its own needs the right to mount one")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_claims_nothing_and_all_can_be_done_again(small_disk: Path) -> None:
    path = small_disk / "keystore.db"
    store = KeyStore(path, make=True)
    slots = [Slot(store.make_pages("b", "a", 128, 1)[0], n) for n in range(8)]
    keys = [store.key(slot) for slot in slots]
    (small_disk / "other").write_bytes(
        b"x" * (os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_bsize)
    )
    with pytest.raises(Refusal, match="cannot be written"):
        while True:
            store.make_pages("b", "a", 128, 1)[0]
    with pytest.raises(Refusal, match="cannot be written"):
        store.destroy(slots)
    reader = KeyStore(path)
    assert [reader.key(slot) for slot in slots] == keys
    (small_disk / "other").unlink()
    store.destroy(slots)
    assert store.destroy(slots) == Destruction(0, ())
    assert not any(key in files_of(path) for key in keys)
    assert store.key(Slot(store.make_pages("b", "a", 8, 1)[0], 0))
