"""Which bank a folder belongs to: derived from git's origin, so that every clone finds the same."""

import hashlib
import os
import re
import subprocess
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

_DEFAULT_PORTS = {"ssh": 22, "git+ssh": 22, "ssh+git": 22, "https": 443, "http": 80, "git": 9418}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
# host:path as scp writes it. A single letter before the colon is a Windows drive, not a host.
_SCP = re.compile(r"((?:[^/@]*@)?(?:\[[0-9A-Fa-f:.]+\]|[^/:@\\]{2,})):(.+)", re.DOTALL)
_AUTHORITY = re.compile(r"(\[[^\]]*\]|[^:]*)(?::(.*))?", re.DOTALL)
_NAME_LIMIT = 100
_GIT_SECONDS = 5.0


@dataclass(frozen=True)
class ProjectBank:
    """The bank of one project folder."""

    id: str
    """`project:<name>-<8 hex>`."""
    shareable: bool
    """True when a teammate's clone derives the same id; only such a bank can be joined."""
    why: str
    """What the id was derived from, or why it cannot be shared; never holds a credential."""


def bank_of(folder: Path) -> ProjectBank:
    """Return the bank of the project that holds `folder`; without a usable remote it is this machine's."""
    folder = folder.resolve()
    found, origin = _git(folder, "remote", "get-url", "origin")
    remote = normalised_remote(origin) if found else None
    if remote is not None:
        return ProjectBank(_bank_id(remote, remote), True, f"git origin {remote}")
    why = (
        "the git origin is a folder of this machine, which a teammate's clone cannot name"
        if found
        else "there is no git origin from which a teammate's clone could derive the same bank"
    )
    root = _root_of(folder)
    return ProjectBank(_bank_id(root.name, f"path\0{root}"), False, why)


def normalised_remote(url: str) -> str | None:
    """Return `host[:port]/path` for a git remote URL, or None when it names a place on this machine.

    ssh, https, git and scp forms of one remote give one result: scheme, user, default port, `.git`, doubled
    and trailing slashes and the letter case of the host do not count. The case of the path does.
    """
    url = url.strip()
    if with_scheme := _SCHEME.fullmatch(url):
        scheme, rest = with_scheme[1].lower(), with_scheme[2]
        authority, _, path = rest.partition("/")
        if scheme == "file":
            return None
    elif scp := _SCP.fullmatch(url):
        scheme, authority, path = "ssh", scp[1], "/" + scp[2]
    else:
        return None
    parts = _AUTHORITY.fullmatch(authority.rpartition("@")[2])
    if parts is None:
        return None
    host, port = parts[1].lower().rstrip("."), parts[2] or ""
    if port and not port.isdecimal():  # ssh://host:owner/repo, which git takes as well
        path, port = f"{port}/{path}", ""
    path = _normalised_path(path)
    if not host or not path:
        return None
    if port and int(port) != _DEFAULT_PORTS.get(scheme):
        host = f"{host}:{int(port)}"
    return f"{host}/{path}"


def _normalised_path(path: str) -> str:
    path = unicodedata.normalize("NFC", unquote(path))
    path = "/".join(part for part in path.split("/") if part)
    while path.endswith(".git"):
        path = path.removesuffix(".git").rstrip("/")
    return path


def _bank_id(called: str, hashed: str) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", called.rpartition("/")[2])[:_NAME_LIMIT].strip("-") or "project"
    return f"project:{name}-{hashlib.sha256(hashed.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"


def _root_of(folder: Path) -> Path:
    # Subfolders and linked worktrees of one repository are one project.
    found, common = _git(folder, "rev-parse", "--path-format=absolute", "--git-common-dir")
    if not found:
        return folder
    shared = Path(common)
    return shared.parent if shared.name == ".git" else shared


def _git(folder: Path, *arguments: str) -> tuple[bool, str]:
    # GIT_DIR and its kin are set inside git hooks and would answer for another repository than the folder's.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False, ""
    answer = done.stdout.decode("utf-8", "replace").removesuffix("\n")
    return done.returncode == 0 and bool(answer), answer
