"""Where a team's services are: one URL of an edge, or one address a service on one machine."""

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from teamlore_client._memory import FieldInvalid

SERVICES = ("auth", "sync", "feed", "compliance")
_LARGEST = 65_536
_PORTS = {"https": 443, "http": 80}
_RULE = (
    "must be https://host, http://host:port, auth=host:port,sync=host:port,feed=host:port,"
    "compliance=host:port, or @ and the path of a stack.json"
)


@dataclass(frozen=True)
class Target:
    """Where one service answers."""

    host: str
    port: int
    tls: bool

    @property
    def authority(self) -> str:
        """`host:port`, as gRPC takes it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """True when nothing sent there leaves this machine."""
        return loopback(self.host)


@dataclass(frozen=True)
class Address:
    """A team's server."""

    text: str
    """As it is kept in the membership; parses to the same address from any folder."""
    targets: Mapping[str, Target]
    """The target of each name in SERVICES."""

    @property
    def in_clear(self) -> bool:
        """True when the token would cross a network unencrypted."""
        return any(not each.tls and not each.loopback for each in self.targets.values())


def loopback(host: str) -> bool:
    """Return whether a host's name or number can only be this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def parse_address(given: str) -> Address:
    """Read what a user typed, or what a membership keeps. Raises FieldInvalid naming `server`."""
    text = given.strip()
    if not text.isascii():
        raise FieldInvalid("server", _RULE)
    if text.startswith("@"):
        text = _of_stack(Path(text[1:]).expanduser())
    if "://" in text.partition(",")[0].partition("=")[0]:
        target = _target(text)
        return Address(text, dict.fromkeys(SERVICES, target))
    targets: dict[str, Target] = {}
    for part in text.split(","):
        name, equals, place = part.strip().partition("=")
        if name not in SERVICES or not equals or name in targets:
            raise FieldInvalid("server", _RULE)
        targets[name] = _target(place if "://" in place else f"http://{place}")
    if missing := [name for name in SERVICES if name not in targets]:
        raise FieldInvalid("server", f"names no address for {', '.join(missing)}")
    return Address(text, targets)


def _target(url: str) -> Target:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise FieldInvalid("server", _RULE) from None
    if parts.scheme not in _PORTS or not parts.hostname or any(c.isspace() for c in url):
        raise FieldInvalid("server", _RULE)
    if parts.username is not None or parts.password is not None:
        raise FieldInvalid("server", "must not carry a user or a password; the token goes in --token")
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise FieldInvalid("server", "must be a host and a port without a path")
    if port == 0:
        raise FieldInvalid("server", _RULE)
    return Target(parts.hostname, port or _PORTS[parts.scheme], parts.scheme == "https")


def _of_stack(path: Path) -> str:
    try:
        ports = json.loads(_read(path))["ports"]
        return ",".join(f"{name}=127.0.0.1:{int(ports[name])}" for name in SERVICES)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FieldInvalid("server", f"{path} is not the stack.json of a running stack") from error


def _read(path: Path) -> str:
    """Read a small file. Raises OSError for what is none: a device or a pipe may never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("not a regular file")
        data = file.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise OSError("too large")
    return data.decode()
