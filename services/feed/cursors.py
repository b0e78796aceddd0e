"""Cursors: opaque, authenticated, bound to a bank and to one history."""

import hmac
import struct
from dataclasses import dataclass

from kit import opaque
from kit.errors import Refusal, field_invalid

_BODY = struct.Struct(">qqq")
_MAC_BYTES = 16


@dataclass(frozen=True)
class Cursor:
    """A place in a bank's history: the epoch, a seq, and the nonce of the change with that seq (0 at seq 0)."""

    epoch: int
    seq: int
    nonce: int


@dataclass(frozen=True)
class History:
    """What the server says of that place: its head, horizon, epoch, and the nonce at the cursor's seq."""

    head: int
    horizon: int
    epoch: int
    nonce: int | None


class CursorCodec:
    """Writes and reads cursors under a secret of the deployment (32 bytes)."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def _mac(self, kind: str, bank: str, body: bytes) -> bytes:
        return hmac.digest(self._secret, f"{kind}\0{bank}\0".encode() + body, "sha256")[:_MAC_BYTES]

    def _write(self, kind: str, bank: str, body: bytes) -> str:
        return opaque.written(self._mac(kind, bank, body) + body)

    def _read(self, kind: str, bank: str, text: str) -> bytes:
        try:
            raw = opaque.read(text)
        except ValueError as error:
            raise Refusal("CURSOR_INVALID", "the cursor is not one of this deployment") from error
        mac, body = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(kind, bank, body)):
            raise Refusal("CURSOR_INVALID", "the cursor is not one that this deployment gave for this bank")
        return body

    def write(self, bank: str, cursor: Cursor) -> str:
        """The opaque form."""
        return self._write("changes", bank, _BODY.pack(cursor.epoch, cursor.seq, cursor.nonce))

    def read(self, bank: str, text: str) -> Cursor:
        """The cursor. Raises Refusal CURSOR_INVALID for garbage, a flipped bit or another bank's."""
        body = self._read("changes", bank, text)
        if len(body) != _BODY.size:
            raise Refusal("CURSOR_INVALID", "the cursor is not one of this deployment")
        return Cursor(*_BODY.unpack(body))

    def write_page(self, bank: str, last_id: str, of: str = "live") -> str:
        """A page token of ListLive, or of another listing `of` the bank."""
        return self._write(of, bank, last_id.encode())

    def read_page(self, bank: str, text: str, of: str = "live") -> str:
        """The last id of the page before. Raises Refusal CURSOR_INVALID."""
        return self._read(of, bank, text).decode()


def judge(cursor: Cursor, history: History) -> None:
    """Raises Refusal CURSOR_DIVERGED or CURSOR_BEFORE_HORIZON where one cannot go on from the cursor. Never silence."""
    if cursor.epoch != history.epoch or cursor.seq > history.head:
        raise Refusal(
            "CURSOR_DIVERGED", "the history that this cursor belongs to is gone; reconcile with ListLive"
        )
    if cursor.seq < history.horizon:
        raise Refusal(
            "CURSOR_BEFORE_HORIZON",
            "the changes after this cursor were compacted away; reconcile with ListLive",
        )
    if cursor.seq > 0 and cursor.nonce != history.nonce:
        raise Refusal(
            "CURSOR_DIVERGED", "the history that this cursor belongs to is gone; reconcile with ListLive"
        )


def judge_as_of(as_of: int, head: int, horizon: int) -> None:
    """Raises Refusal FIELD_INVALID for a seq that is still to come, CURSOR_BEFORE_HORIZON for one that was compacted away."""
    if as_of > head:
        raise field_invalid("as_of", "the bank has not come that far")
    if as_of < horizon:
        raise Refusal("CURSOR_BEFORE_HORIZON", "what was live then was compacted away")
