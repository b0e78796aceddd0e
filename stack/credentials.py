"""The secrets of one data folder: made once, kept in secrets.json, readable by its owner only."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from pathlib import Path

from stack.errors import StackError, disk_errors
from stack.jsonfile import load, save


def new_token() -> str:
    """Return a fresh opaque token: `tlk_` and 256 random bits in URL-safe base64."""
    return "tlk_" + secrets.token_urlsafe(32)


def token_hash(token: str) -> str:
    """Return the SHA-256 of `token` in lower-case hexadecimal, the only form auth is given."""
    return hashlib.sha256(token.encode()).hexdigest()


def service_tokens(path: Path, services: Iterable[str]) -> dict[str, str]:
    """Return the token of each of `services` from `path` (secrets.json, mode 0600), making those it lacks."""
    state = load(path)
    tokens = state.get("service_tokens", {})
    if not isinstance(tokens, dict) or not all(isinstance(token, str) for token in tokens.values()):
        raise StackError(f'{path}: "service_tokens" must map services to tokens')
    wanted = list(services)
    missing = [name for name in wanted if name not in tokens]
    if missing:
        tokens.update({name: new_token() for name in missing})
        save(path, {**state, "service_tokens": tokens}, mode=0o600)
    with disk_errors(path):
        path.chmod(0o600)
    return {name: tokens[name] for name in wanted}
