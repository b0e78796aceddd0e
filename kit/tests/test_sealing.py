"""Keys are used once, and a destroyed one is in no file."""

import stat
from pathlib import Path

import pytest

from kit.sealing import Allocator, KeyMissing, KeyStore, Slot, open_rows, seal, unseal


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


def test_an_unused_page_is_swept_only_when_old(tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "keystore.db")
    kept, lost = store.make_page("b", "a", 8), store.make_page("b", "a", 8)
    assert store.drop_unused_pages({kept}) == 0
    assert store.drop_unused_pages({kept}, older_than_seconds=-1) == 1
    fresh = KeyStore(tmp_path / "keystore.db")
    assert fresh.key(Slot(kept, 0))
    assert open_rows(fresh, "b", [("x", Slot(lost, 0), b"s" * 40)]) == [None]
