"""What is in flight is met by its terms and by its vector, and is bounded."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.index.flight import InFlight
from services.index.following import Seen
from services.index.terms import TermKeys, Terms, product

KEYS = TermKeys(b"k" * 32)
SEEN, OTHER = Seen(np.array([1, 0], dtype=np.float32), True), Seen(np.array([0, 1], dtype=np.float32), True)
WORDS = "postgres redis kafka queue deploy friday rollback pager checkout invoice".split()


def put(cache: InFlight, bank: str, memory_id: str, text: str, seen: Seen | None = SEEN) -> Terms:
    terms = KEYS.of(bank, text)
    cache.put(bank, memory_id, text, terms, seen)
    return terms


def test_what_is_held_belongs_to_bank_id_and_text() -> None:
    cache = InFlight()
    put(cache, "bank-a", "id", "words")
    assert cache.get("bank-a", "id", "words") is SEEN
    assert cache.get("bank-a", "id", "other words") is None
    assert cache.get("bank-b", "id", "words") is None
    assert cache.of_bank("bank-b") == ([], [])
    cache.drop("bank-b", ["id"])
    assert cache.of_bank("bank-a")[0] == ["id"]
    cache.drop("bank-a", ["id", "unknown"])
    assert (cache.get("bank-a", "id", "words"), len(cache)) == (None, 0)


def test_it_is_bounded_by_count_and_by_age() -> None:
    now = [0.0]
    cache = InFlight(capacity=2, seconds=10, clock=lambda: now[0])
    for name in "abac":
        put(cache, "bank", name, name)
    assert cache.of_bank("bank")[0] == ["a", "c"]
    assert cache.alike("bank", KEYS.of("bank", "b"), 0.5) == []
    now[0] = 10.0
    assert (cache.of_bank("bank"), len(cache)) == (([], []), 0)


def test_a_text_that_was_not_seen_whole_is_met_by_equal_words_only() -> None:
    cache = InFlight()
    put(cache, "bank", "cut", "ฉันชอบกาแฟ", Seen(SEEN.vector, False))
    put(cache, "bank", "whole", "words")
    assert cache.of_bank("bank")[0] == ["whole"]
    assert cache.equal("bank", " ฉันชอบกาแฟ\n") == ["cut"]
    assert cache.equal("bank", "ฐานข้อมูล") == cache.equal("other", "ฉันชอบกาแฟ") == []


def test_settled_terms_leave_and_a_vector_stays_until_it_is_dropped() -> None:
    cache = InFlight()
    terms = put(cache, "bank", "embedded", "postgres queue")
    put(cache, "bank", "unembedded", "postgres queue", None)
    assert {hit.id for hit in cache.alike("bank", terms, 0.9)} == {"embedded", "unembedded"}
    cache.settle("bank", ["embedded", "unembedded", "unknown"])
    assert cache.alike("bank", terms, 0.9) == []
    assert cache.get("bank", "embedded", "postgres queue") is SEEN and len(cache) == 1
    put(cache, "bank", "another", "postgres queue", None)
    # What the model makes of it later brings no terms back, and belongs to the text that it was asked about.
    cache.see("bank", "embedded", "postgres queue", OTHER)
    assert [hit.id for hit in cache.alike("bank", terms, 0.9)] == ["another"]
    assert cache.get("bank", "embedded", "postgres queue") is OTHER
    assert cache.terms("bank", "embedded", "postgres queue") is None
    assert cache.terms("bank", "another", "postgres queue") == terms
    assert cache.terms("bank", "another", "redis queue") is None
    cache.drop("bank", ["embedded"])
    assert [hit.id for hit in cache.alike("bank", terms, 0.9)] == ["another"] and len(cache) == 1


def test_a_text_that_is_asked_about_again_keeps_its_vector_and_another_does_not_get_it() -> None:
    cache = InFlight()
    put(cache, "bank", "id", "postgres queue")
    put(cache, "bank", "id", "postgres  queue", None)
    assert cache.get("bank", "id", "postgres queue") is SEEN
    put(cache, "bank", "id", "redis queue", None)
    assert cache.get("bank", "id", "redis queue") is None


texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), texts), max_size=12), st.sets(st.sampled_from("abcdef")), texts,
       st.floats(0.05, 1))  # fmt: skip
def test_by_terms_exactly_those_are_met_that_share_enough(
    puts: list[tuple[str, str]], dropped: set[str], asked: str, least: float
) -> None:
    cache, held = InFlight(), {}
    for memory_id, text in puts:
        held[memory_id] = put(cache, "bank", memory_id, text, None)
    cache.drop("bank", dropped)
    terms = KEYS.of("bank", asked)
    expected = {name: product(terms, of) for name, of in held.items() if name not in dropped}
    for bound in (least, *filter(None, expected.values())):
        found = {hit.id: hit.score for hit in cache.alike("bank", terms, bound)}
        assert found == {name: score for name, score in expected.items() if score >= bound}
