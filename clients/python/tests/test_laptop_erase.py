"""Erased means that no file of the laptop holds the bytes, whatever else happens meanwhile."""

import struct
import time
from pathlib import Path

import pytest
from laptop import BANK, EMBEDDER, child, memory, said, tell, traces, vector
from teamlore_client._erase import PendingErasure
from teamlore_client._memory import DIMENSION, Memory
from teamlore_client._store import Store

CANARY = "Zqcanary7781"
READER = """
import sys
from pathlib import Path
from laptop import *
from teamlore_client._schema import load_vectors
from teamlore_client._sqlite import connect
connection = connect(Path(sys.argv[1]), load_vectors)
connection.execute('BEGIN'); connection.execute('SELECT count(*) FROM memories').fetchall()
print('reading', flush=True); sys.stdin.readline()
connection.execute('COMMIT'); print('done', flush=True); sys.stdin.readline()
"""


def filled(store: Store) -> Memory:
    """Put one memory full of canaries among others, so that its pages and chunks stay in use."""
    for number in range(150):
        store.add(memory(f"filler row {number} word{number}", number), vector(number))
    secret = memory(
        f"the secret is {CANARY} ok",
        75,
        tags=(CANARY,),
        metadata={"path": f"/{CANARY}/x", CANARY: 1},
        fact_type=CANARY,
        author=f"user:{CANARY}",
    )
    store.add(secret, vector(7781))
    for number in range(150, 300):
        store.add(memory(f"filler row {number} word{number}", number), vector(number))
    return secret


def vector_traces(folder: Path) -> int:
    whole = struct.pack(f"<{DIMENSION}f", *vector(7781))
    parts = [whole[start : start + 16] for start in range(0, len(whole), 16)]
    return sum(
        data.count(part) for file in folder.iterdir() for data in [file.read_bytes()] for part in parts
    )


def test_no_file_holds_an_erased_memory(store: Store, file: Path) -> None:
    secret = filled(store)
    assert traces(file.parent, CANARY)
    assert vector_traces(file.parent)
    result = store.erase([secret.id, "unknown0"])
    assert (result.erased, result.gone) == ((secret.id,), True)
    assert traces(file.parent, CANARY) == {}
    assert vector_traces(file.parent) == 0
    assert store.unacknowledged() == ()
    assert store.count(BANK) == 300
    assert all(hit.memory.id != secret.id for hit in store.search(BANK, vector(7781), CANARY, limit=100))


def test_a_whole_bank_leaves_nothing(store: Store, file: Path) -> None:
    secret = filled(store)
    ids = [each.id for each in store.list(BANK, 1000)]
    assert secret.id in ids
    assert store.erase(ids).gone
    for word in (CANARY, "filler", "word299"):
        assert traces(file.parent, word) == {}
    assert vector_traces(file.parent) == 0


def test_an_open_reader_delays_it_until_the_next_opener(store: Store, file: Path) -> None:
    secret = filled(store)
    with child(READER, str(file)) as reader:
        assert said(reader) == "reading"
        started = time.monotonic()
        result = store.erase([secret.id], seqs={secret.id: 42}, wait=0.3)
        assert time.monotonic() - started < 2
        assert (result.erased, result.gone) == ((secret.id,), False)
        assert store.unacknowledged(BANK) == (PendingErasure(BANK, secret.id, 42),)
        assert traces(file.parent, CANARY)
        assert store.known([secret.id]) == frozenset()  # out of every answer at once
        assert store.put_mirrored([(secret, vector(7781))]).refused == (secret.id,)
        with Store(file, EMBEDDER) as early:  # the reader still reads: nothing to be done, nothing lost
            assert early.unacknowledged() != ()
        tell(reader)
        assert said(reader) == "done"  # it keeps its connection open
        with Store(file) as late:
            assert late.unacknowledged() == ()
        assert traces(file.parent, CANARY) == {}
        assert vector_traces(file.parent) == 0
        assert store.unacknowledged() == ()


def test_a_kill_before_the_checkpoint_is_mended_at_the_next_opening(store: Store, file: Path) -> None:
    secret = filled(store)
    code = (
        "import os, sys; from pathlib import Path; from laptop import *\n"
        "from teamlore_client._store import Store\n"
        "from teamlore_client import _erase\n"
        "store = Store(Path(sys.argv[1]), EMBEDDER)\n"
        "_erase._emptied = lambda connection: os.kill(os.getpid(), 9)\n"
        "store.erase([sys.argv[2]])"
    )
    with child(code, str(file), secret.id) as doomed:
        assert doomed.wait(20) == -9
    assert [each.id for each in store.unacknowledged()] == [secret.id]
    assert traces(file.parent, CANARY)
    with Store(file) as opened:
        assert opened.unacknowledged() == ()
    assert traces(file.parent, CANARY) == {}
    assert vector_traces(file.parent) == 0


def test_a_kill_after_the_checkpoint_repeats_it(store: Store, file: Path) -> None:
    secret = filled(store)
    code = (
        "import os, sys; from pathlib import Path; from laptop import *\n"
        "from teamlore_client._store import Store\n"
        "from teamlore_client import _erase\n"
        "store = Store(Path(sys.argv[1]), EMBEDDER)\n"
        "real = _erase._emptied\n"
        "_erase._emptied = lambda connection: (real(connection), os.kill(os.getpid(), 9))\n"
        "store.erase([sys.argv[2]])"
    )
    with child(code, str(file), secret.id) as doomed:
        assert doomed.wait(20) == -9
    assert traces(file.parent, CANARY) == {}
    assert store.settle()
    assert store.unacknowledged() == ()


def test_busy_readers_and_writers_do_not_stop_it(store: Store, file: Path) -> None:
    secret = filled(store)
    busy = (
        "import sys, time; from pathlib import Path; from laptop import *\n"
        "from teamlore_client._store import Store\n"
        "store = Store(Path(sys.argv[1]), EMBEDDER); print('up', flush=True)\n"
        "end = time.monotonic() + 8; n = 0\n"
        "while time.monotonic() < end:\n"
        "    n += 1; store.list(BANK, 500); store.search(BANK, vector(n), 'filler row')\n"
        "    if n % 20 == 0: store.add(memory(f'later {n}', n), vector(n))\n"
    )
    with child(busy, str(file)) as one, child(busy, str(file)) as two:
        assert [said(one), said(two)] == ["up", "up"]
        assert store.erase([secret.id], wait=6).gone
        assert traces(file.parent, CANARY) == {}
        assert vector_traces(file.parent) == 0


def test_the_keys_of_the_word_index_keep_no_erased_word(store: Store, file: Path) -> None:
    # Neighbouring words that differ in their last letters only make the index's keys as long as the words.
    kept = [memory(f"note {CANARY}x{number:05d}", number) for number in range(3000)]
    for start in range(0, len(kept), 500):
        store.put_mirrored([(each, vector(1)) for each in kept[start : start + 500]])
    keys = store._connection.execute(
        "SELECT CAST(term AS BLOB) FROM words_idx WHERE length(term) > 9"
    ).fetchall()
    words = {bytes(key)[1:].decode() for (key,) in keys}  # type: ignore[arg-type]
    assert len(words) > 3
    doomed = [each for each in kept if any(each.text.lower().split()[1].startswith(word) for word in words)]
    assert store.erase([each.id for each in doomed]).gone
    live = {each.text.lower().split()[1] for each in kept if each not in doomed}
    data = file.read_bytes()
    for word in words:
        assert word.encode() not in data or any(each.startswith(word) for each in live), word
    everything = [each.id for each in kept]
    assert store.erase(everything).gone
    assert traces(file.parent, CANARY) == {}
    store._connection.execute("INSERT INTO words (words, rank) VALUES ('integrity-check', 1)")


@pytest.mark.parametrize("rounds", [3])
def test_erased_ids_do_not_come_back_from_reused_rows(store: Store, file: Path, rounds: int) -> None:
    for number in range(rounds):
        secret = filled(store)
        assert store.erase([secret.id]).gone
        store.add(memory(f"round {number}"), vector(7781 + number + 1))
        assert traces(file.parent, CANARY) == {}
