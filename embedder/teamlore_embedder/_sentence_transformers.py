"""Any sentence-transformers model: for GPUs and for models other than MiniLM. Needs an extra (torch)."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from teamlore_embedder._protocol import (
    CHUNK,
    EmbedderUnavailable,
    Vectors,
    check_texts,
    embed_in_chunks,
    is_seen_whole,
    unit_length,
)


class SentenceTransformersEmbedder:
    """A model of the hub, or a folder in sentence-transformers' layout, on the best device there is."""

    def __init__(self, name: str) -> None:
        """Load the model. Raises EmbedderUnavailable when the extra or the model is missing."""
        os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # read when the hub's library is imported
        try:
            module = importlib.import_module("sentence_transformers")
        except ImportError as error:
            raise EmbedderUnavailable(
                f"{name!r} is not a path, and as a model name it needs sentence-transformers:"
                " pip install 'teamlore-embedder[sentence-transformers]'"
            ) from error
        try:
            self._encoder: Any = module.SentenceTransformer(name)
        except Exception as error:  # network, file and configuration errors of three libraries
            raise EmbedderUnavailable(f"sentence-transformers cannot load {name!r}: {error}") from error
        dimension = self._encoder.get_embedding_dimension()
        if dimension is None:
            raise EmbedderUnavailable(f"{name!r} does not say how long its vectors are")
        self.model = name
        self.in_caller = False  # torch has threads of its own, and its tokenizers are no good for two callers
        self.dimension = int(dimension)
        self.revision = _weights_sha256(self._encoder.state_dict())

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return unit rows of shape (len(texts), dimension), as `Embedder.embed` promises."""
        check_texts(texts)
        return embed_in_chunks(texts, self.dimension, self._run)

    def seen_whole(self, texts: Sequence[str]) -> list[bool]:
        """Tell for each text whether its vector tells of all of it, as `Embedder.seen_whole` promises."""
        check_texts(texts)
        return [self._is_seen_whole(text) for text in texts]

    def _is_seen_whole(self, text: str) -> bool:
        tokenizer, limit = self._encoder.tokenizer, self._encoder.max_seq_length
        # Only tokenizers in Rust tell where in the text a token stands; the others' unknown ones count as all of it.
        fast = bool(tokenizer.is_fast)
        encoded = tokenizer(text, truncation=False, return_offsets_mapping=fast, verbose=False)
        ids = encoded["input_ids"]
        spans = encoded["offset_mapping"] if fast else [(0, len(text))] * len(ids)
        unknown = [tuple(span) for token, span in zip(ids, spans, strict=True) if token == tokenizer.unk_token_id]
        return is_seen_whole(text, len(ids), limit or len(ids), unknown)

    def _run(self, texts: list[str]) -> Vectors:
        rows = self._encoder.encode(texts, batch_size=CHUNK, convert_to_numpy=True, show_progress_bar=False)
        return unit_length(np.asarray(rows))


def _weights_sha256(weights: Mapping[str, Any]) -> str:
    """sha256 over names, shapes and bytes of all weights: the files' layout and place do not matter."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        digest.update(tensor.flatten().view(_byte_type()).numpy().tobytes())
    return digest.hexdigest()


def _byte_type() -> Any:
    return importlib.import_module("torch").uint8
