"""The files below a folder, while the processes that write there go on."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def contents(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Each file with its bytes, by name. What goes while it is read is passed over: it holds nothing any more."""
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(place) / name
            with contextlib.suppress(FileNotFoundError):
                if path.is_file():
                    yield path, path.read_bytes()
