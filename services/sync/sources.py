"""Which cited source counts as one: a teammate can open it from another machine, as far as its form tells.

Laptops hold the same rule, word for word, and tell who cites at once; here it decides how far a claim may be trusted.
"""

import re
from ipaddress import ip_address

_ADDRESS = re.compile(r"https?://([A-Za-z0-9._-]+)(?::([0-9]{1,5}))?(?:[/?#]\S*)?")
_PATH = re.compile(r"repo:[^:#/~\s][^:#/\s]*(?:[#/]\S*)?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_NEAR = frozenset(("localhost", "localdomain", "local", "lan", "home", "internal", "invalid", "test"))
"""Last words of names that mean another machine, or none, elsewhere."""


def openable(uri: str) -> bool:
    """Return whether teammates can open a source: an address of the internet, or a path in the repository.

    One out of which a barrier took something holds a blank, as no source does, and leads nowhere.
    """
    address = _ADDRESS.fullmatch(uri)
    if address is None:
        return _PATH.fullmatch(uri) is not None
    return _elsewhere(address[1].lower()) and (address[2] is None or 0 < int(address[2]) < 65_536)


def _elsewhere(host: str) -> bool:
    """Whether a host is the same one from any machine."""
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):  # a number, however it is written, to whatever opens it
        try:
            number = ip_address(host)
        except ValueError:
            return False
        return number.is_global and not number.is_multicast
    return len(labels) > 1 and all(labels) and labels[-1] not in _NEAR and labels[-2:] != ["home", "arpa"]
