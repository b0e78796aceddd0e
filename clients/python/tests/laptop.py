"""What the laptop's tests share: memories, vectors, other processes and a search through raw bytes."""

import base64
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from teamlore_client._memory import DIMENSION, Memory, new_id, scope_of
from teamlore_client._store import EmbedderIdentity

PACKAGE_ROOT = Path(__file__).parent.parent
BANK = "project:api-1a2b3c4d"
EMBEDDER = EmbedderIdentity("minilm", "r1", DIMENSION)
START = datetime(2026, 10, 5, 9, 30, tzinfo=UTC)


def vector(seed: int) -> list[float]:
    source = random.Random(seed)
    return [source.uniform(-1, 1) for _ in range(DIMENSION)]


def memory(text: str, number: int = 0, **fields: object) -> Memory:
    bank = str(fields.pop("bank", BANK))
    values: dict[str, object] = {
        "id": new_id(),
        "bank": bank,
        "scope": scope_of(bank),
        "text": text,
        "created_at": START + timedelta(minutes=number),
    }
    return Memory(**(values | fields))  # type: ignore[arg-type]


def traces(folder: Path, word: str) -> dict[str, int]:
    """Count a word's bytes in every file below the folder: as it is, in any case, UTF-16, base64 and hex."""
    plain = word.encode()
    needles = {plain.lower(), word.encode("utf-16-le").lower(), word.encode("utf-16-be").lower()}
    needles.add(plain.hex().encode())
    aligned = [plain[shift:] for shift in range(3)]  # base64 has three forms of a word, by where it starts
    exact = {base64.b64encode(part[: len(part) // 3 * 3]) for part in aligned if len(part) >= 6}
    found = {}
    for file in folder.rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            count = sum(data.lower().count(needle) for needle in needles) + sum(map(data.count, exact))
            if count:
                found[file.name] = count
    return found


@contextmanager
def child(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run Python code in another process that can import the client; it is killed when the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | {"PYTHONPATH": f"{PACKAGE_ROOT}{os.pathsep}{PACKAGE_ROOT / 'tests'}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    """Return the next line that a child prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str], line: str = "go") -> None:
    """Send a line to a child."""
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
