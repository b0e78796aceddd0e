"""The one error a person running the stack sees."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class StackError(Exception):
    """The stack cannot go on; the message is one line: what is wrong and, where known, what to do."""

    def __init__(self, message: str) -> None:
        """Keep `message` on one line, whatever program it was quoted from."""
        super().__init__(" ".join(message.split()))


def no_space(path: Path) -> StackError:
    """Return the error for a full disk under `path`."""
    return StackError(f"no space left on the disk that holds {path}: free some and start again")


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an OSError about `path` or below into a StackError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise no_space(path) from error
        raise StackError(f"cannot use {error.filename or path}: {error.strerror or error}") from error
