"""Turns texts into unit vectors. Works offline by default.

The public surface is `Embedder` (what an embedder promises), `open_embedder` (the one way to get one),
`EmbedderUnavailable` (a model that cannot be opened) and `vocabulary` (which words are common). Vectors of
two embedders may be compared only when `model`, `revision` and `dimension` are equal: store the three beside
an index and check them.
"""

from __future__ import annotations

from pathlib import Path

from teamlore_embedder._onnx import PACKAGED_SHA256, OnnxEmbedder, packaged_model, vocabulary
from teamlore_embedder._protocol import Embedder, EmbedderUnavailable

__all__ = ["Embedder", "EmbedderUnavailable", "open_embedder", "vocabulary"]


def open_embedder(name: str = "", threads: int = 0) -> Embedder:
    """Open the embedder that `name` stands for; loading takes 0.5 s (ONNX) to 5 s (sentence-transformers).

    - "" is the packaged MiniLM on ONNX Runtime (384 dimensions), checked against its pinned sha256;
    - the path of a file or of a folder that holds `model.onnx` is that BERT-uncased model on ONNX Runtime;
    - any other name is a sentence-transformers model, fetched by that library when it is not cached.

    `threads` bounds the CPU threads of one run on ONNX Runtime; 0 takes one a core.
    Raises EmbedderUnavailable when the model, or the package that runs it, is missing or altered.
    """
    if not name:
        return OnnxEmbedder(packaged_model(), "all-MiniLM-L6-v2-onnx-int8", expected_sha256=PACKAGED_SHA256, threads=threads)
    path = Path(name).expanduser()
    if path.is_dir() and not (path / "model.onnx").is_file() and (path / "modules.json").is_file():
        pass  # a model folder in sentence-transformers' own layout
    elif path.exists():
        return OnnxEmbedder(path / "model.onnx" if path.is_dir() else path, path.resolve().name, threads=threads)
    elif path.is_absolute() or name.startswith((".", "~")) or path.suffix == ".onnx":
        raise EmbedderUnavailable(f"no ONNX model at {name}")
    from teamlore_embedder._sentence_transformers import SentenceTransformersEmbedder

    return SentenceTransformersEmbedder(name)
