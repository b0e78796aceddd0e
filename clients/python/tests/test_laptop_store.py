"""The local store: what is stored, found, mirrored and refused."""

import dataclasses
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from laptop import BANK, EMBEDDER, START, child, memory, said, tell, vector
from teamlore_client._memory import AmbiguousId, FieldInvalid, Memory, Scope, UnknownId, scope_of
from teamlore_client._schema import load_vectors
from teamlore_client._sqlite import ReadTooLong, StoreTooNew, connect, reading
from teamlore_client._store import EmbedderIdentity, EmbedderMismatch, IdTaken, Store


def test_a_memory_comes_back_as_it_was(store: Store) -> None:
    kept = memory(
        "we use Kafka, not SQS ✓",
        tags=("decision", "ünï"),
        metadata={"_retain_id": "r1", "_chunk_index": 2, "ok": True, "weight": 0.5},
        fact_type="decision",
        occurred_at=START - timedelta(days=400, microseconds=1),
        author="user:alice",
    )
    store.add(kept, vector(1))
    assert store.get(kept.id) == kept
    assert store.count(BANK) == 1


def test_the_files_are_the_owner_s_alone(store: Store, file: Path) -> None:
    store.add(memory("a decision"), vector(1))
    for each in file.parent.iterdir():
        assert each.stat().st_mode & 0o077 == 0, each
    file.chmod(0o644)
    Store(file).close()
    assert file.stat().st_mode & 0o077 == 0


def test_ids_may_be_given_as_unique_prefixes(store: Store) -> None:
    for id_ in ("aaaa1111", "aaaa2222", "aaaa22223", "AAAA3333", "a_-aaaaa"):
        store.add(memory("x", id=id_), vector(1))
    assert store.get("aaaa1").id == "aaaa1111"
    assert store.get("aaaa2222").id == "aaaa2222"  # whole, though it also starts another
    assert store.get("AAA").id == "AAAA3333"
    assert store.get("a_").id == "a_-aaaaa"
    with pytest.raises(AmbiguousId) as caught:
        store.get("aaaa")
    assert caught.value.candidates == ("aaaa1111", "aaaa2222", "aaaa22223")
    for unknown in ("b", "", "%", "aaa_", "é", "\0", "a'b"):
        with pytest.raises(UnknownId):
            store.get(unknown)


def test_nothing_is_overwritten(store: Store) -> None:
    first = memory("first")
    store.add(first, vector(1))
    with pytest.raises(IdTaken):
        store.add(dataclasses.replace(first, text="second"), vector(2))
    assert store.get(first.id).text == "first"


def test_mirroring_twice_changes_nothing(store: Store) -> None:
    pages = [(memory(f"row {n}", n, author="user:bob"), vector(n)) for n in range(5)]
    ids = tuple(each.id for each, _ in pages)
    assert store.put_mirrored(pages).stored == ids
    again = store.put_mirrored([(dataclasses.replace(each, tags=("new",)), v) for each, v in pages])
    assert (again.stored, again.unchanged, again.refused) == ((), ids, ())
    assert store.get(ids[0]).tags == ()
    other = dataclasses.replace(pages[0][0], text="other")
    elsewhere = dataclasses.replace(pages[1][0], bank="project:x-00000000")
    assert store.put_mirrored([(other, vector(9)), (elsewhere, vector(9))]).refused == ids[:2]
    assert store.known([*ids, "missing0"]) == frozenset(ids)
    assert [hit.memory.id for hit in store.search(BANK, vector(0), limit=100)].count(ids[0]) == 1


def test_a_bad_memory_takes_its_page_with_it(store: Store) -> None:
    with pytest.raises(FieldInvalid):
        store.put_mirrored([(memory("good"), vector(1)), (memory(""), vector(2))])
    assert store.count(BANK) == 0


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"id": "short"}, "id"),
        ({"id": "has space"}, "id"),
        ({"id": "x" * 65}, "id"),
        ({"text": ""}, "text"),
        ({"text": "\ud800"}, "text"),
        ({"tags": ("\ud800",)}, "tags"),
        ({"metadata": {"a": [1]}}, "metadata"),
        ({"metadata": {"a": float("nan")}}, "metadata"),
        ({"metadata": {"a": 2**53 + 1}}, "metadata"),
        ({"derivation": "guess"}, "derivation"),
        ({"created_at": START.replace(tzinfo=None)}, "created_at"),
        ({"scope": Scope("team")}, "scope"),
        ({"scope": Scope("system", team_id="t")}, "scope"),
        ({"scope": Scope("client", team_id="t")}, "scope"),
        ({"scope": Scope("private")}, "scope"),
        ({"scope": Scope("private", client_id="c", user_id="u")}, "scope"),
        ({"scope": Scope("world")}, "scope"),
    ],
)
def test_fields_obey_their_rules(store: Store, fields: dict[str, Any], named: str) -> None:
    with pytest.raises(FieldInvalid) as caught:
        store.add(dataclasses.replace(memory("x"), **fields), vector(1))
    assert caught.value.field == named
    assert store.count(BANK) == 0


@pytest.mark.parametrize("bad", [[1.0] * 383, [0.0] * 384, [float("nan")] * 384, [float("inf")] * 384])
def test_vectors_obey_theirs(store: Store, bad: list[float]) -> None:
    with pytest.raises(FieldInvalid):
        store.add(memory("x"), bad)


def test_a_bank_implies_its_scope() -> None:
    assert scope_of("system:core") == Scope("system")
    assert scope_of(BANK) == Scope("team", team_id=BANK)
    assert scope_of("client:acme:shop") == Scope("client", team_id="acme", client_id="shop")
    assert scope_of("private:user:alice") == Scope("private", user_id="user:alice")
    for bad in ("client:acme", "other:x", "project:", "project:é", ""):
        with pytest.raises(FieldInvalid):
            scope_of(bad)


def test_pages_have_neither_gap_nor_repeat(store: Store) -> None:
    ids = set()
    for number in range(30):
        each = memory(f"row {number}", number // 10, tags=("captured",) if number % 2 else ())
        store.add(each, vector(number))
        ids.add(each.id)
    for oldest_first in (False, True):
        seen: list[Memory] = []
        last = None
        while page := store.list(BANK, 7, after=last, oldest_first=oldest_first):
            seen += page
            last = page[-1]
        assert len(seen) == 30
        assert {each.id for each in seen} == ids
        assert seen == sorted(seen, key=lambda each: (each.created_at, each.id), reverse=not oldest_first)
    assert len(store.list(BANK, tag="captured")) == 15
    assert store.list("project:other-00000000") == ()


def test_lists_narrow_by_derivation_and_metadata(store: Store) -> None:
    store.add(memory("a", metadata={"_retain_id": "r", "n": 1, "it's": True}), vector(1))
    store.add(memory("b", metadata={"_retain_id": "r"}, derivation="model"), vector(2))
    assert {each.text for each in store.list(BANK, metadata={"_retain_id": "r"})} == {"a", "b"}
    assert [each.text for each in store.list(BANK, metadata={"_retain_id": "r", "n": 1})] == ["a"]
    assert [each.text for each in store.list(BANK, metadata={"it's": True})] == ["a"]
    assert [each.text for each in store.list(BANK, derivation="fact")] == ["a"]


def test_search_joins_meaning_and_words(store: Store) -> None:
    for number in range(80):
        store.add(memory(f"filler {number}", number), vector(number))
    exact = memory("the retry budget is 4711 ms")
    store.add(exact, [-x for x in vector(7)])  # as far from the query as can be: found by its words alone
    near = store.search(BANK, vector(7), limit=3)
    assert near[0].memory.text == "filler 7"
    assert near[0].cosine == pytest.approx(1.0, abs=1e-5)
    hits = store.search(BANK, vector(7), "What was budget 4711?", limit=5)
    found = {hit.memory.text: hit for hit in hits}
    assert found[exact.text].cosine == pytest.approx(-1.0, abs=1e-5)
    both = memory("budget seven 4711")
    store.add(both, vector(7))
    assert store.search(BANK, vector(7), "budget 4711", limit=2)[0].memory == both
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert len(store.search(BANK, vector(7), "filler", limit=20)) == 20
    assert store.search(BANK, vector(7), "filler", limit=0) == ()


def test_search_stays_in_its_bank(store: Store) -> None:
    other = "private:user:alice"
    store.add(memory("shared word"), vector(1))
    store.add(memory("private word", bank=other), vector(1))
    assert [hit.memory.text for hit in store.search(BANK, vector(1), "private word")] == ["shared word"]
    assert [hit.memory.text for hit in store.search(other, vector(1), "shared")] == ["private word"]


def test_another_bank_s_nearer_memories_crowd_nothing_out(store: Store) -> None:
    for number in range(300):
        store.add(memory(f"crowd {number}", number, bank="space:crowd"), vector(1))
    mine = memory("mine")
    store.add(mine, vector(2))
    assert [hit.memory for hit in store.search(BANK, vector(1), "crowd", limit=1)] == [mine]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(st.one_of(st.text(), st.text("\"'*():^-+{}NEAR AND OR NOT\0_\ud800漢x", max_size=30)))
def test_any_text_may_be_searched(store: Store, text: str) -> None:
    store.search(BANK, vector(1), text)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_text_may_be_kept_and_erased(store: Store, text: str) -> None:
    kept = memory(text)
    store.add(kept, vector(1))
    assert store.get(kept.id) == kept
    assert store.erase([kept.id]).gone
    store._connection.execute("INSERT INTO words (words, rank) VALUES ('integrity-check', 1)")


def test_another_embedder_is_refused(store: Store, file: Path) -> None:
    for other in (("minilm", "r2", 384), ("bge", "r1", 384), ("minilm", "r1", 768)):
        with pytest.raises(EmbedderMismatch):
            Store(file, EmbedderIdentity(*other))
    Store(file, EMBEDDER).close()
    with Store(file) as without:
        assert without.count(BANK) == 0
        with pytest.raises(FieldInvalid):
            without.add(memory("x"), vector(1))


def test_a_newer_file_is_refused(store: Store, file: Path) -> None:
    store._connection.execute("PRAGMA user_version=99")
    with pytest.raises(StoreTooNew):
        Store(file)


def test_the_tables_keep_their_own_rules(store: Store) -> None:
    store.add(memory("x"), vector(1))
    for wrong in ("UPDATE memories SET text = 'y'", "UPDATE memories SET visibility = 'private'"):
        with pytest.raises(apsw.ConstraintError):
            store._connection.execute(wrong)


def test_a_read_ends_after_a_second(file: Path) -> None:
    connection = connect(file, load_vectors)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(ReadTooLong):
        reading(connection, endless)
    assert reading(connection, "SELECT 1") == [(1,)]


def test_many_processes_may_create_the_file_at_once(file: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from laptop import *\n"
        "from teamlore_client._store import Store\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "with Store(Path(sys.argv[1]), EMBEDDER) as store:\n"
        "    for n in range(20): store.add(memory(f'row {n}'), vector(n))\n"
        "print('done', flush=True)"
    )
    with ExitStack() as stack:
        children = [stack.enter_context(child(code, str(file))) for _ in range(6)]
        assert [said(each) for each in children] == ["ready"] * 6
        for each in children:
            tell(each)
        assert [said(each) for each in children] == ["done"] * 6
    with Store(file) as store:
        assert store.count(BANK) == 120
