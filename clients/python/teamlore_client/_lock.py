"""One sync of a bank at a time, across all processes of a laptop."""

import fcntl
import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import Self


class BankLock:
    """A lock that is held while it exists; the kernel drops it when its process dies, however it dies."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Let the next one in; safe to call twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def try_lock(folder: Path, bank: str) -> BankLock | None:
    """Take the bank's lock without waiting; None when another sync has it. The file stays, empty."""
    name = hashlib.sha256(bank.encode()).hexdigest()[:32]
    descriptor = os.open(folder / f"{name}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return BankLock(descriptor)
