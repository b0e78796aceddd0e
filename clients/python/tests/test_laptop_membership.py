"""Memberships and the token of each: in a keychain that keeps what it is given, else in a private file."""

import json
from collections.abc import Callable
from pathlib import Path

import keyring
import keyring.errors
import pytest
from keyring.backends import fail, null
from laptop import BANK, child, said, tell
from teamlore_client._membership import Membership, Memberships, MembershipUnreadable

JOINED = Membership(BANK, "https://memory.example.com", "d" * 32)
TOKEN = "tlk_secretsecret"


class Memory:
    """A keychain in memory; `loses` keeps nothing, `locked` refuses."""

    def __init__(self, loses: bool = False, locked: bool = False) -> None:
        self.kept: dict[tuple[str, str], str] = {}
        self.loses, self.locked = loses, locked

    def get_password(self, service: str, username: str) -> str | None:
        if self.locked:
            raise keyring.errors.KeyringLocked
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        if self.locked:
            raise keyring.errors.KeyringLocked
        if not self.loses:
            self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        if (service, username) not in self.kept:
            raise keyring.errors.PasswordDeleteError
        del self.kept[service, username]


@pytest.fixture(autouse=True)
def _home(home: Path) -> None:
    """Every test has a home and an environment of its own."""


def test_a_working_keychain_has_the_token_and_the_file_has_not(tmp_path: Path) -> None:
    keychain = Memory()
    memberships = Memberships(tmp_path, keychain)
    assert memberships.join(JOINED, TOKEN) == "keychain"
    assert memberships.get(BANK) == JOINED
    assert memberships.all() == (JOINED,)
    assert memberships.token(BANK) == TOKEN
    assert TOKEN not in (tmp_path / "team.json").read_text()
    assert memberships.leave(BANK)
    assert keychain.kept == {}
    assert not memberships.leave(BANK)
    assert memberships.get(BANK) is None
    assert memberships.token(BANK) is None


@pytest.mark.parametrize("keychain", [Memory(loses=True), Memory(locked=True)])
def test_a_keychain_that_keeps_nothing_is_not_trusted(tmp_path: Path, keychain: Memory) -> None:
    memberships = Memberships(tmp_path, keychain)
    assert memberships.join(JOINED, TOKEN) == "file"
    assert memberships.token(BANK) == TOKEN
    assert (tmp_path / "team.json").stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.glob("*.*") if TOKEN in each.read_text()] == ["team.json"]
    memberships.leave(BANK)
    assert TOKEN not in (tmp_path / "team.json").read_text()


@pytest.mark.parametrize("backend", [fail.Keyring, null.Keyring])
def test_keyring_s_empty_backends_are_unusable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: Callable[[], object]
) -> None:
    monkeypatch.setattr(keyring, "get_keyring", backend)
    assert Memberships(tmp_path).join(JOINED, TOKEN) == "file"
    assert Memberships(tmp_path).token(BANK) == TOKEN


def test_the_environment_s_token_comes_first_and_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memberships = Memberships(tmp_path, Memory())
    monkeypatch.setenv("TEAMLORE_TEAM_TOKEN", "tlk_fromenvironment")
    assert memberships.join(JOINED, None) == "environment"
    assert memberships.token(BANK) == "tlk_fromenvironment"
    assert "tlk_" not in (tmp_path / "team.json").read_text()
    monkeypatch.delenv("TEAMLORE_TEAM_TOKEN")
    assert memberships.token(BANK) is None


@pytest.mark.parametrize("loses", [False, True])
def test_joining_again_keeps_the_token_and_another_server_drops_it(tmp_path: Path, loses: bool) -> None:
    keychain = Memory(loses)
    memberships = Memberships(tmp_path, keychain)
    place = memberships.join(JOINED, TOKEN)
    again = Membership(BANK, JOINED.url, JOINED.device_id, share_captured=True)
    assert memberships.join(again, None) == place
    assert memberships.get(BANK) == again
    assert memberships.token(BANK) == TOKEN
    elsewhere = Membership(BANK, "https://other.example.com", JOINED.device_id)
    assert memberships.join(elsewhere, None) == "environment"
    assert memberships.token(BANK) is None
    assert keychain.kept == {}


def test_two_homes_share_a_keychain_without_mixing(tmp_path: Path) -> None:
    keychain = Memory()
    homes = []
    for name in ("alice", "bob"):
        (tmp_path / name).mkdir()
        homes.append(Memberships(tmp_path / name, keychain))
        homes[-1].join(Membership(BANK, JOINED.url, name * 8), f"tlk_{name}")
    assert [each.token(BANK) for each in homes] == ["tlk_alice", "tlk_bob"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"banks": {"b": {}}}', '{"banks": {"b": 1}}', '{"banks": 1}']
)
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / "team.json").write_text(text)
    with pytest.raises(MembershipUnreadable):
        Memberships(tmp_path, Memory()).join(JOINED, TOKEN)
    assert (tmp_path / "team.json").read_text() == text


def test_processes_that_join_at_once_lose_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from test_laptop_membership import *\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "for n in range(100):\n"
        "    Memberships(Path(sys.argv[1]), Memory()).join(Membership(f'{sys.argv[2]}{n}', 'u', 'd'), None)\n"
        "print('done', flush=True)"
    )
    with child(code, str(tmp_path), "a") as one, child(code, str(tmp_path), "b") as two:
        assert [said(one), said(two)] == ["ready", "ready"]
        tell(one)
        tell(two)
        assert [said(one), said(two)] == ["done", "done"]
    assert len(json.loads((tmp_path / "team.json").read_text())["banks"]) == 200
