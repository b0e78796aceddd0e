"""Keys are used once, and a destroyed one is in no file."""

import stat
import time
from pathlib import Path

import pytest

from kit.sealing import (
    PAGE_SECONDS,
    UNUSED_SECONDS,
    Allocator,
    KeyMissing,
    KeyStore,
    Slot,
    open_rows,
    seal,
    unseal,
)


def files_of(path: Path) -> bytes:
    return b"".join(p.read_bytes() for p in path.parent.iterdir())


def test_a_destroyed_key_leaves_no_byte_and_no_other_is_touched(tmp_path: Path) -> None:
    path = tmp_path / "k" / "keystore.db"
    store, other = KeyStore(path), KeyStore(path)
    slots = Allocator(store).take("project:a", "user:alice", 20)
    keys = [store.key(slot) for slot in slots]
    assert other.key(slots[3]) == keys[3]
    assert keys[3] in files_of(path)
    assert store.destroy([slots[3]]) == 1
    assert keys[3] not in files_of(path)
    assert store.destroy([slots[3]]) == 0
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
    store = KeyStore(tmp_path / "keystore.db")
    allocator = Allocator(store)
    slots = [slot for count in (1, 7, 16, 100, 300, 1) for slot in allocator.take("b", "a", count)]
    assert len(set(slots)) == 425
    sizes: dict[int, int] = {}
    for slot in slots:
        sizes[slot.page] = sizes.get(slot.page, 0) + 1
    assert next(iter(sizes.values())) == 8 and max(sizes.values()) == 128
    assert {slot.page for slot in allocator.take("b", "other", 1)}.isdisjoint(sizes)
    assert len({store.key(slot) for slot in slots}) == 425


def test_only_an_old_page_is_dropped_and_leaves_no_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "k" / "keystore.db"
    store = KeyStore(path)
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now - UNUSED_SECONDS - 1)
    kept, old = store.make_page("b", "a", 8), store.make_page("b", "a", 8)
    monkeypatch.setattr("time.time", lambda: now)
    young = store.make_page("b", "a", 8)
    key = store.key(Slot(old, 7))
    assert sorted(store.old_pages()) == sorted([kept, old]) and key in files_of(path)
    store.drop_pages([old, young])
    assert key not in files_of(path)
    fresh = KeyStore(path)
    assert fresh.key(Slot(kept, 0)) and fresh.key(Slot(young, 0))
    assert open_rows(fresh, "b", [("x", Slot(old, 0), b"s" * 40)]) == [None]


@pytest.mark.parametrize("later", [PAGE_SECONDS, -3600.0])
def test_no_slot_comes_from_a_page_that_the_sweep_might_drop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: float
) -> None:
    allocator = Allocator(KeyStore(tmp_path / "keystore.db"))
    (first,) = allocator.take("b", "a", 1)
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now + PAGE_SECONDS - 60)
    assert allocator.take("b", "a", 1)[0].page == first.page
    monkeypatch.setattr("time.time", lambda: now + later)
    slots = allocator.take("b", "a", 8)
    assert first.page not in {slot.page for slot in slots} and len({slot.page for slot in slots}) == 1
    assert PAGE_SECONDS <= UNUSED_SECONDS / 2
