"""Pages of lists: opaque tokens that say where to go on, and how much fits into one answer."""

import base64
import hashlib
import json
from collections.abc import Sequence

from kit.errors import field_invalid

DEFAULT_SIZE = 100
# What gRPC takes in one message is 4 MiB; the rest is left to the frame around the items.
MOST_BYTES = 3 << 20


def wanted(page_size: int) -> int:
    """How many items to read for a page: one more than it shows tells whether there is another."""
    return (page_size or DEFAULT_SIZE) + 1


def write(listing: str, key: Sequence[str]) -> str:
    """The token that goes on after `key` in the listing, which names the call and its filters."""
    body = json.dumps([_mark(listing), *key], ensure_ascii=False).encode()
    return base64.urlsafe_b64encode(body).decode().rstrip("=")


def read(listing: str, token: str, parts: int) -> tuple[str, ...]:
    """The key to go on after; empty texts for the first page. Raises Refusal FIELD_INVALID for what no call gave."""
    if not token:
        return ("",) * parts
    try:
        body = json.loads(base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True))
        texts = [str(part) for part in body if isinstance(part, str) and "\0" not in part and part.encode()]
    except (ValueError, TypeError, RecursionError) as error:
        raise _unknown() from error
    if not isinstance(body, list) or len(texts) != len(body) or len(texts) != parts + 1:
        raise _unknown()
    if texts[0] != _mark(listing):
        raise _unknown()
    return tuple(texts[1:])


def fitting(sizes: Sequence[int], most: int) -> int:
    """How many of the items, of these sizes in bytes, make the page: one at least, `most` at most."""
    total = 0
    for count, size in enumerate(sizes[:most]):
        total += size
        if total > MOST_BYTES and count:
            return count
    return min(len(sizes), most)


def _mark(listing: str) -> str:
    return hashlib.sha256(listing.encode()).hexdigest()[:16]


def _unknown() -> Exception:
    return field_invalid("page_token", "is not one that this listing gave")
