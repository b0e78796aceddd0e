"""Pages of lists: opaque tokens that say where to go on, and how much fits into one answer."""

import json
import os
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kit import opaque
from kit.errors import field_invalid

DEFAULT_SIZE = 100
# What gRPC takes in one message is 4 MiB; the rest is left to the frame around the items.
MOST_BYTES = 3 << 20
SEAL_NAME = "auth.pages"
_NONCE_BYTES = 12
# Every key is filled up to this, so that the length of a token does not tell that of an id.
_PADDED_BYTES = 512


def wanted(page_size: int) -> int:
    """How many items to read for a page: one more than it shows tells whether there is another."""
    return (page_size or DEFAULT_SIZE) + 1


class PageTokens:
    """Page tokens, sealed under a secret of the deployment: what they go on after may be an id one may not read."""

    def __init__(self, secret: bytes) -> None:
        self._seal = AESGCM(secret)

    def write(self, listing: str, principal: str, key: Sequence[str]) -> str:
        """The principal's token that goes on after `key` in the listing, which names the call and its filters."""
        body = json.dumps(list(key), ensure_ascii=False).encode().ljust(_PADDED_BYTES)
        nonce = os.urandom(_NONCE_BYTES)
        sealed = self._seal.encrypt(nonce, body, _bound(listing, principal))
        return opaque.written(nonce + sealed)

    def read(self, listing: str, principal: str, token: str, parts: int) -> tuple[str, ...]:
        """The key to go on after; empty texts for the first page.

        Raises Refusal FIELD_INVALID for what this listing did not give to this principal.
        """
        if not token:
            return ("",) * parts
        try:
            raw = opaque.read(token)
            nonce, sealed = raw[:_NONCE_BYTES], raw[_NONCE_BYTES:]
            body = json.loads(self._seal.decrypt(nonce, sealed, _bound(listing, principal)))
        except (ValueError, InvalidTag) as error:
            raise _unknown() from error
        if len(body) != parts:
            raise _unknown()
        return tuple(body)


def fitting(sizes: Sequence[int], most: int) -> int:
    """How many of the items, of these sizes in bytes, make the page: one at least, `most` at most."""
    total = 0
    for count, size in enumerate(sizes[:most]):
        total += size
        if total > MOST_BYTES and count:
            return count
    return min(len(sizes), most)


def _bound(listing: str, principal: str) -> bytes:
    return json.dumps([listing, principal]).encode()


def _unknown() -> Exception:
    return field_invalid("page_token", "is not one that this listing gave you")
