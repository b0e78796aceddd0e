"""A text's terms: alike where texts are, told by no one without the key, and there for every script."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from teamlore_embedder import vocabulary
from teamlore_embedder.polarity import Reading, differs

from services.index.terms import EQUAL, LEADING, MOST_TERMS, TermKeys, bound, leads, product, weigh

KEYS = TermKeys(b"k" * 32)


def shared(one: str, other: str) -> float:
    return product(KEYS.of("bank", one), KEYS.of("bank", other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("We use SQS for the order queue.", "We used SQS for order queues"),
        ("The worker is restarted.", "Please note: the worker is restarted."),
        ("The build cache lives in S3.", "Remember, our build cache is living in S3!"),
        ("我们使用消息队列", "我们使用消息队列。"),
        ("Der Dienst läuft in Zürich.", "Der Dienst lief in Zurich!"),
        ("Очередь заказов живёт в Kafka.", "Очередь заказа живет в Kafka"),
        ("我们使用消息队列处理订单", "我们用消息队列处理订单"),
        ("注文キューはSQSを使います", "注文キューはSQSを使う"),
        ("ราคากาแฟอยู่ที่สามสิบบาท", "ราคากาแฟอยู่ที่สี่สิบบาท"),
    ],
)
def test_nearly_equal_texts_share_most_of_their_terms_in_any_script(one: str, other: str) -> None:
    assert shared(one, other) >= bound(0.95)  # type: ignore[operator]
    if not differs(Reading(one), Reading(other)):
        assert set(leads(KEYS.of("bank", one))) & set(leads(KEYS.of("bank", other)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("We use SQS for the order queue.", "The design team meets on Tuesdays at ten."),
        ("我们使用消息队列处理订单", "设计团队每周二十点开会"),
        ("ฉันชอบกาแฟ", "ฐานข้อมูลอยู่ที่ไหน"),
        ("🙂", "🎉"),
        ("It is what it is.", "We use Kafka."),
    ],
)
def test_texts_of_other_words_share_next_to_nothing(one: str, other: str) -> None:
    assert shared(one, other) < 0.2


@given(st.text(min_size=1), st.sampled_from(["", " ", "\n\n "]))
def test_equal_texts_have_equal_terms_and_every_text_has_some(text: str, blank: str) -> None:
    terms = KEYS.of("bank", text)
    assert terms == KEYS.of("bank", blank + text + blank)
    if text.strip():
        assert math.isclose(product(terms, terms), 1, abs_tol=1e-6) and product(terms, terms) >= EQUAL
        assert len(terms) <= MOST_TERMS and all(0 <= number < 2**32 for number in terms)


def test_common_words_count_only_where_there_are_no_others() -> None:
    assert set(weigh("The queue is in the cloud")) == {"queue", "cloud"}
    assert set(weigh("It is what it is")) == {"it", "is", "what"}
    assert weigh("kubernetes queue")["kuber"] > weigh("kubernetes queue")["queue"]


def test_a_text_is_looked_up_by_each_two_of_its_heaviest_terms_and_a_short_one_by_each_alone() -> None:
    assert leads({1: 0.1, 0xAB: 0.5, 7: 0.7, 2: 0.5, 9: 0.1}) == [
        "0000000200000007", "00000007000000ab", "00000002000000ab",
    ]  # fmt: skip
    assert leads({7: 0.8, 2: 0.6}) == ["0000000200000007", "00000007", "00000002"]
    assert leads({7: 1.0}) == ["00000007"] and leads({}) == []


@given(st.dictionaries(st.integers(0, 2**32 - 1), st.floats(0.01, 1), min_size=LEADING), st.randoms())
def test_one_heavy_term_more_or_less_leaves_a_lead_in_common(
    terms: dict[int, float], rng: random.Random
) -> None:
    shuffled = list(terms.items())
    rng.shuffle(shuffled)
    assert leads(dict(shuffled)) == leads(terms), "the order of the terms says nothing"
    more = terms | {2**32: 2.0}
    assert set(leads(more)) & set(leads(terms))
    gone = rng.choice(list(terms))
    less = {number: part for number, part in terms.items() if number != gone}
    assert set(leads(less)) & set(leads(terms))


def test_of_a_long_text_the_heaviest_terms_count() -> None:
    words = " ".join(f"{number:05}" for number in range(3 * MOST_TERMS))
    assert len(KEYS.of("bank", words)) == MOST_TERMS
    lighter = " ".join(word for word in vocabulary()[2500:2700] if word.isascii() and word.isalpha())
    assert KEYS.of("bank", words) == KEYS.of("bank", f"{lighter} {words}")


def test_a_bank_has_numbers_of_its_own() -> None:
    assert product(KEYS.of("bank-a", "order queue"), KEYS.of("bank-b", "order queue")) == 0
    assert product(KEYS.of("bank-a", "order queue"), TermKeys(b"x" * 32).of("bank-a", "order queue")) == 0


def test_the_bound_grows_with_the_threshold_and_there_is_none_where_words_tell_too_little() -> None:
    assert bound(0.84) is None
    values = [bound(threshold / 100) or 0 for threshold in range(85, 101)]
    assert values == sorted(values) and 0 < values[0] < values[-1] < 1
