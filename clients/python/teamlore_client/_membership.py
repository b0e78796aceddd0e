"""Which banks this laptop shares, with which server, and where the token of each is kept."""

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

TOKEN_VARIABLE = "TEAMLORE_TEAM_TOKEN"  # noqa: S105  # a name, not a token
_SERVICE = "teamlore"
_FILE = "team.json"


class MembershipUnreadable(Exception):
    """`team.json` is not what this program writes; nothing was changed."""


class Keychain(Protocol):
    """The part of the operating system's keychain that is used; `keyring`'s backends have it."""

    def get_password(self, service: str, username: str) -> str | None: ...
    def set_password(self, service: str, username: str, password: str) -> None: ...
    def delete_password(self, service: str, username: str) -> None: ...


@dataclass(frozen=True)
class Membership:
    """One project bank that this laptop shares."""

    bank: str
    url: str
    """Of the team's server."""
    device_id: str
    """This laptop's id, as registered there."""
    share_captured: bool = False
    """True when the project opted in to sharing captured turns."""
    key_id: str = ""
    """The public id of the personal key that `team join` minted for this laptop; empty for a token given."""


class Memberships:
    """The memberships in `team.json` of the config folder; every change replaces the file as a whole."""

    def __init__(self, folder: Path, keychain: Keychain | None = None) -> None:
        """`keychain` is the operating system's unless given."""
        self._path = folder / _FILE
        self._keychain = keychain

    def all(self) -> tuple[Membership, ...]:
        """Return every membership, by bank. Raises MembershipUnreadable."""
        return tuple(_membership(bank, entry) for bank, entry in sorted(self._banks().items()))

    def get(self, bank: str) -> Membership | None:
        """Return the bank's membership, or None when it is not shared. Raises MembershipUnreadable."""
        entry = self._banks().get(bank)
        return None if entry is None else _membership(bank, entry)

    def join(self, membership: Membership, token: str | None) -> str:
        """Keep a membership with its token and say where the token went: `keychain`, `file` or `environment`.

        A keychain counts only when it gives the token back. Without a token a membership that is joined
        again keeps the one it has; a new one relies on TEAMLORE_TEAM_TOKEN alone.
        """
        with self._changing() as banks:
            before = banks.get(membership.bank)
            entry: dict[str, Any] = {
                "url": membership.url,
                "device_id": membership.device_id,
                "share_captured": membership.share_captured,
            }
            if membership.key_id:
                entry["key_id"] = membership.key_id
            same = before is not None and _named(membership.bank, before) == _entry_name(membership)
            if token is not None:
                kept = self._kept(_entry_name(membership), token)
                entry |= {"in_keychain": True} if kept else {"token": token}
            elif before is not None and same:
                entry |= {key: before[key] for key in ("token", "in_keychain", "key_id") if key in before}
            if before is not None and not same:
                self._dropped(_named(membership.bank, before))
            banks[membership.bank] = entry
        return "file" if "token" in entry else "keychain" if "in_keychain" in entry else "environment"

    def leave(self, bank: str) -> bool:
        """Drop a membership and its token; False when there was none."""
        with self._changing() as banks:
            entry = banks.pop(bank, None)
            if entry is not None:
                self._dropped(_named(bank, entry))
        return entry is not None

    def token(self, bank: str) -> str | None:
        """Return the bank's token: TEAMLORE_TEAM_TOKEN, else from where `join` put it; None if nowhere."""
        if given := os.environ.get(TOKEN_VARIABLE, "").strip():
            return given
        return self.kept(bank)

    def kept(self, bank: str) -> str | None:
        """Return the token that `join` put away, whatever the environment says; None if it is nowhere."""
        entry = self._banks().get(bank)
        if entry is None:
            return None
        if "token" in entry:
            return str(entry["token"])
        store = self._usable() if entry.get("in_keychain") else None
        if store is None:
            return None
        try:
            return store.get_password(_SERVICE, _named(bank, entry))
        except Exception:  # a locked or broken keychain reads as no token; doctor tells the user
            return None

    def _usable(self) -> Keychain | None:
        if self._keychain is not None:
            return self._keychain
        import keyring  # looks through all installed packages, which most commands need not wait for
        from keyring.backends import chainer, fail, null

        try:
            found = keyring.get_keyring()
        except Exception:  # backends fail in their own ways while they look for a desktop session
            return None
        if isinstance(found, (fail.Keyring, null.Keyring)):
            return None
        if isinstance(found, chainer.ChainerBackend) and not found.backends:
            return None
        return found

    def _kept(self, name: str, token: str) -> bool:
        store = self._usable()
        if store is None:
            return False
        with contextlib.suppress(Exception):  # whatever a backend raises, the file is there
            store.set_password(_SERVICE, name, token)
            if store.get_password(_SERVICE, name) == token:
                return True
        self._dropped(name)
        return False

    def _dropped(self, name: str) -> None:
        if (store := self._usable()) is not None:
            with contextlib.suppress(Exception):  # not there, or the keychain is locked
                store.delete_password(_SERVICE, name)

    def _banks(self) -> dict[str, dict[str, Any]]:
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        try:
            banks = json.loads(text)["banks"]
            for bank, entry in banks.items():
                _membership(bank, entry)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MembershipUnreadable(f"{self._path} cannot be read; mend or remove it") from error
        return dict(banks)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, dict[str, Any]]]:
        lock = os.open(self._path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            banks = self._banks()
            yield banks
            _replace(self._path, json.dumps({"version": 1, "banks": banks}, indent=2, sort_keys=True) + "\n")
        finally:
            os.close(lock)


def _replace(path: Path, text: str) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".team-")  # made 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def _membership(bank: str, entry: dict[str, Any]) -> Membership:
    return Membership(
        bank,
        str(entry["url"]),
        str(entry["device_id"]),
        entry.get("share_captured") is True,
        str(entry.get("key_id", "")),
    )


def _entry_name(membership: Membership) -> str:
    # The keychain belongs to the user, a membership to a home: the device id keeps two homes apart.
    return f"{membership.bank} {membership.url} {membership.device_id}"


def _named(bank: str, entry: dict[str, Any]) -> str:
    return _entry_name(_membership(bank, entry))
