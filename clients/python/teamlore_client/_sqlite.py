"""How every SQLite file of the laptop is opened: owner-only, in WAL mode, deleting by overwriting."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

BUSY_MS = 5_000
READ_SECONDS = 1.0
_STEPS_BETWEEN_LOOKS = 10_000

Row = tuple[Any, ...]


class StoreTooNew(Exception):
    """The file was written by a newer release of this program."""

    def __init__(self, path: Path, found: int, known: int) -> None:
        super().__init__(f"{path} has schema {found}; this release knows up to {known}: upgrade it")


class StoreUnreadable(Exception):
    """The file is no database of this program, or it is damaged."""

    def __init__(self, path: str) -> None:
        alone = "What you hid on this machine" if Path(path).name == "sync.db" else "What was never shared"
        super().__init__(
            f"{path} is no database or is damaged; nothing was changed. Move it away and a new one is made, or put a"
            f" copy of it back: the next `teamlore team sync` makes either right. {alone} is known to this file alone"
        )


class ReadTooLong(Exception):
    """A read was stopped because a transaction of over a second would keep erased bytes alive."""


def connect(path: Path, prepare: Callable[[apsw.Connection], None] | None = None) -> apsw.Connection:
    """Open (or create, 0600) the file; `prepare` loads what its schema needs before anything is read.

    secure_delete is a property of the connection, not of the file, so no file is ever opened another way.
    synchronous=FULL because two files depend on each other: a cursor must not outlive the rows it stands for.
    """
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)
    connection = apsw.Connection(str(path))
    with _naming(connection):
        connection.set_busy_timeout(BUSY_MS)
        if prepare is not None:
            prepare(connection)
        if connection.execute("PRAGMA secure_delete=ON").fetchall() != [(1,)]:
            raise RuntimeError("this SQLite cannot overwrite what it deletes")
        connection.execute("PRAGMA journal_mode=WAL").fetchall()
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA temp_store=MEMORY")  # sorted text must not spill into temporary files
        connection.execute("PRAGMA foreign_keys=ON")
    return connection


@contextmanager
def _naming(connection: apsw.Connection) -> Iterator[None]:
    """Say of a file that cannot be read which one it is."""
    try:
        yield
    except (apsw.NotADBError, apsw.CorruptError) as error:
        raise StoreUnreadable(connection.filename) from error


@contextmanager
def writing(connection: apsw.Connection) -> Iterator[None]:
    """One transaction that takes the write lock at once, so that what it reads is what it changes."""
    with _naming(connection):
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if connection.in_transaction:  # a damaged file ends its transaction itself
                connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")


def fetched(connection: apsw.Connection, sql: str, bindings: Row = ()) -> list[Row]:
    """Run one statement inside a transaction and return all its rows."""
    with _naming(connection):
        return connection.execute(sql, bindings).fetchall()


def reading(connection: apsw.Connection, sql: str, bindings: Row = ()) -> list[Row]:
    """Run one statement to its end and return its rows, so that no read transaction is left open behind it.

    Raises ReadTooLong after a second: an open reader keeps erased bytes in the write-ahead log.
    """
    end = time.monotonic() + READ_SECONDS
    connection.set_progress_handler(lambda: time.monotonic() > end, _STEPS_BETWEEN_LOOKS)
    try:
        with _naming(connection):
            return connection.execute(sql, bindings).fetchall()
    except apsw.InterruptError as error:
        raise ReadTooLong(f"stopped after {READ_SECONDS} s") from error
    finally:
        connection.set_progress_handler(None)


def apply_schema(connection: apsw.Connection, path: Path, version: int, steps: Mapping[int, str]) -> None:
    """Bring the file from its version to this release's, step by step; refuse a file of a newer release."""
    if _version(connection) < version:
        with writing(connection):
            for step in range(_version(connection) + 1, version + 1):  # another process may have been first
                connection.execute(steps[step])
                connection.execute(f"PRAGMA user_version={step}")
    if (found := _version(connection)) > version:
        raise StoreTooNew(path, found, version)


def _version(connection: apsw.Connection) -> int:
    return int(fetched(connection, "PRAGMA user_version")[0][0])
