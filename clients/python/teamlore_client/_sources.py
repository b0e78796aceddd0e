"""Which cited source counts as one: a teammate can open it from another machine, as far as its form tells.

The server holds the same rule, word for word: there it decides how far a claim may be trusted.
"""

import re
from ipaddress import ip_address
from urllib.parse import unquote

_ADDRESS = re.compile(r"https?://([A-Za-z0-9._-]+)(?::([0-9]{1,5}))?(?:[/?#]\S*)?")
_PATH = re.compile(r"repo:[^:#/~\s][^:#/\s]*(?:[#/]\S*)?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_NEAR = frozenset(
    "corp domain example fritz.box home home.arpa intern internal intra intranet invalid lan local localdomain localhost"
    " mail private test".split()
)
"""Ends of names that mean another machine, or none, elsewhere: reserved ones, and those that networks give themselves."""
_ESCAPES = 3
"""How often over a path may be written with `%`."""


def openable(uri: str) -> bool:
    """Return whether teammates can open a source: an address of the internet, or a path in the repository.

    One out of which a barrier took something holds a blank, as no source does, and leads nowhere.
    """
    address = _ADDRESS.fullmatch(uri)
    if address is None:
        return _PATH.fullmatch(uri) is not None and _in_repository(uri.removeprefix("repo:").partition("#")[0])
    port = address[2]
    if not _elsewhere(address[1].lower()) or not (port is None or 0 < int(port) < 65_536):
        return False
    return ".." not in _steps(re.split("[?#]", uri.partition("://")[2], maxsplit=1)[0])


def _in_repository(path: str) -> bool:
    """Whether a path names something below the repository's root, however it is written."""
    steps = _steps(path)
    return ".." not in steps and steps[0][:1] not in ("", "~") and ":" not in steps[0] and set(steps) - {"", "."} != set()


def _steps(path: str) -> list[str]:
    """What a path is of once nothing is written with `%`, without a revision or parameters; `..` for one that hides too much."""
    for _ in range(_ESCAPES):
        path = unquote(path)
    if unquote(path) != path:
        return [".."]
    return [re.split("[@;]", step)[0] if step[:1] != "@" else step for step in re.split(r"[/\\]", path)]


def _elsewhere(host: str) -> bool:
    """Whether a host is the same one from any machine."""
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):  # a number, however it is written, to whatever opens it
        try:
            number = ip_address(host)
        except ValueError:
            return False
        return number.is_global and not number.is_multicast
    return len(labels) > 1 and all(labels) and _NEAR.isdisjoint((labels[-1], ".".join(labels[-2:])))
