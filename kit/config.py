"""Settings come from the environment into frozen dataclasses; a process with a wrong one does not start."""

import argparse
import dataclasses
import difflib
import os
import re
import sys
import types
import typing
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
OURS = "TEAMLORE_"


class ConfigError(Exception):
    """The environment is not usable; each line of the text names one variable and what is wrong with it."""


def address(raw: str, *, least: int = 1) -> bool:
    """Whether this is host:port, as `127.0.0.1:8080` or `[::1]:8080`, with a port from `least` to 65535."""
    host, _, port = raw.rpartition(":")
    return re.fullmatch(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", host) is not None and _port(port, least)


def _port(raw: str, least: int) -> bool:
    return re.fullmatch("[0-9]{1,5}", raw) is not None and least <= int(raw) <= 65535


def _http_url(raw: str) -> bool:
    scheme, _, rest = raw.partition("://")
    return scheme in ("http", "https") and address(rest.removesuffix("/"))


def _database_url(raw: str) -> bool:
    """What libpq takes: several hosts, none, or no port. What a password could be torn apart by is written in %XX."""
    scheme, _, rest = raw.partition("://")
    # `#`, a second `@` and brackets belong to no part but the one that they would end too early.
    if scheme not in ("postgres", "postgresql") or re.search(r"[^!-~]|#|@.*@|[\[\]].*@", rest):
        return False
    authority = re.split("[/?]", rest, maxsplit=1)[0]
    if "@" in rest and "@" not in authority:
        return False
    try:
        query = urllib.parse.urlsplit(f"x://h/?{rest.partition('?')[2]}").query
        ports = urllib.parse.parse_qs(query).get("port", [])
    except ValueError:
        return False
    for host in authority.rpartition("@")[2].split(","):
        if not re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:]*)(:[^\[\]:]*)?", host):
            return False
        tail = host.rpartition("]")[2]
        if ":" in tail:
            ports.append(tail.rpartition(":")[2])
    return all(_port(port, 1) for each in ports for port in each.split(","))


def principal(raw: str) -> str:
    """A principal as a command's argument. Raises argparse.ArgumentTypeError."""
    if re.fullmatch(r"(user|agent|service):[A-Za-z0-9._@-]{1,100}", raw) is None:
        raise argparse.ArgumentTypeError("a principal such as user:olga (also agent: or service:)")
    return raw


def bank(raw: str) -> str:
    """A bank as a command's argument: an empty one is a variable that was not set. Raises argparse.ArgumentTypeError."""
    if re.fullmatch(r"[A-Za-z0-9._:@-]{1,255}", raw) is None:
        raise argparse.ArgumentTypeError("a bank such as project:orders")
    return raw


@dataclasses.dataclass(frozen=True)
class Form:
    """What a text setting must look like, and how that is said."""

    words: str
    fits: Callable[[str], bool]


LISTEN = Form("host:port with a port from 0 to 65535", lambda raw: address(raw, least=0))
TARGET = Form("host:port with a port from 1 to 65535", address)
HTTP_URL = Form("http://host:port or https://host:port with a port from 1 to 65535", _http_url)
DATABASE_URL = Form("postgresql://… with ports from 1 to 65535, and # @ / ? [ ] of a password as %XX", _database_url)


def setting(
    name: str,
    default: Any = dataclasses.MISSING,
    choices: tuple[str, ...] = (),
    *,
    form: Form | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
) -> Any:
    """Declares a field that is read from the environment variable `name`; without a default it must be set.

    A number needs `minimum` and `maximum`, both of which it may be; an address or a URL needs its `form`.
    """
    metadata = {"env": name, "choices": choices, "form": form, "range": (minimum, maximum)}
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def load(cls: type[T], environ: Mapping[str, str] | None = None) -> T:
    """Reads `cls` (a frozen dataclass of `setting` fields of type str, int, float or bool) from the environment.

    Raises ConfigError that names every missing, malformed and unknown variable at once.
    """
    env = os.environ if environ is None else environ
    hints = typing.get_type_hints(cls)
    problems: list[str] = []
    values: dict[str, Any] = {}
    known = set()
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # T is a dataclass by contract
        name = field.metadata["env"]
        known.add(name)
        raw = env.get(name, "")
        if raw == "":
            if field.default is dataclasses.MISSING:
                problems.append(f"{name} is not set")
            continue
        kind = _kind(hints[field.name])
        try:
            values[field.name] = _parse(raw, kind)
        except ValueError:
            problems.append(f"{name} must be {_article(kind)}")
            continue
        if kind in (int, float):
            least, most = field.metadata["range"]
            # Not a number is in no range.
            if not least <= values[field.name] <= most:
                problems.append(f"{name} must be {_article(kind)} from {least} to {most}")
        form = field.metadata["form"]
        if form is not None and not form.fits(raw):
            problems.append(f"{name} must be {form.words}")
        choices = field.metadata["choices"]
        if choices and raw not in choices:
            problems.append(f"{name} must be one of {', '.join(choices)}")
    unknown = sorted(name for name in env if name.startswith(OURS) and name not in known)
    problems += [f"{name} is not a setting of this process" for name in unknown]
    problems += [
        f"{name} is not a setting; did you mean {meant}?" for name, meant in _slips(env, known - env.keys())
    ]
    if problems:
        raise ConfigError("\n".join(problems))
    return cls(**values)


def load_or_exit(cls: type[T]) -> T:
    """As `load`, but ends the process with the problems on standard error and exit code 2."""
    try:
        return load(cls)
    except ConfigError as error:
        print(f"wrong configuration:\n{error}", file=sys.stderr)
        sys.exit(2)


def _slips(env: Mapping[str, str], unset: set[str]) -> list[tuple[str, str]]:
    """Variables that are all but spelled like a setting which is not set. Of those with our prefix none is unknown."""
    found = []
    for name in sorted(env):
        close = difflib.get_close_matches(name, unset, 1, 0.9)
        if close and name not in unset and not name.startswith(OURS):
            found.append((name, close[0]))
    return found


def _kind(hint: Any) -> Any:
    """The type of a field that may also be None."""
    if isinstance(hint, types.UnionType):
        return next(arg for arg in typing.get_args(hint) if arg is not type(None))
    return hint


def _parse(raw: str, kind: Any) -> Any:
    if kind is bool:
        if raw.lower() not in ("true", "false"):
            raise ValueError(raw)
        return raw.lower() == "true"
    return kind(raw)


def _article(kind: Any) -> str:
    if isinstance(kind, types.UnionType):
        kind = next(arg for arg in typing.get_args(kind) if arg is not type(None))
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "text")
