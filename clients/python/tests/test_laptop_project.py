"""Two clones of one repository find one bank, however each of them names the remote."""

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from teamlore_client._project import _bank_id, bank_of, normalised_remote

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
LABEL = st.text(LETTERS, min_size=2, max_size=12)
PART = st.text(LETTERS + "._-", min_size=1, max_size=15).filter(
    lambda part: not part.endswith(".git") and part.strip(".") != ""
)
HOSTS = st.lists(LABEL, min_size=1, max_size=3).map(".".join)
PATHS = st.lists(PART, min_size=1, max_size=4).map("/".join)


@st.composite
def spellings(draw: st.DrawFn, host: str, path: str) -> str:
    host = draw(st.sampled_from([host, host.upper(), host.lower(), host.swapcase()]))
    user = draw(st.sampled_from(["", "git@", "alice:p%40ss@", "alice:a@b@"]))
    tail = draw(st.sampled_from(["", "/", ".git", ".git/", "//"]))
    scheme, port = draw(
        st.sampled_from([("ssh", ":22"), ("https", ":443"), ("http", ":80"), ("git", ":9418"), ("scp", "")])
    )
    if scheme == "scp":
        return f"{'git@' if user else ''}{host}:{draw(st.sampled_from(['', '/']))}{path}{tail}"
    case = draw(st.sampled_from([scheme, scheme.upper()]))
    return f"{case}://{user}{host}{draw(st.sampled_from(['', port]))}/{path}{tail}"


@given(st.data(), HOSTS, PATHS)
def test_all_spellings_of_a_remote_are_one(data: st.DataObject, host: str, path: str) -> None:
    expected = f"{host.lower()}/{path}"
    assert normalised_remote(data.draw(spellings(host, path))) == expected


@given(st.data(), HOSTS, PATHS, HOSTS, PATHS)
def test_different_remotes_stay_apart(
    data: st.DataObject, host: str, path: str, other_host: str, other_path: str
) -> None:
    same = (host.lower(), path) == (other_host.lower(), other_path)
    one, other = data.draw(spellings(host, path)), data.draw(spellings(other_host, other_path))
    assert (normalised_remote(one) == normalised_remote(other)) is same


@given(st.text(max_size=60))
def test_no_text_breaks_it_and_the_form_is_stable(url: str) -> None:
    found = normalised_remote(url)
    assert found is None or "/" in found


@pytest.mark.parametrize(
    "url",
    [
        "/srv/git/api.git",
        "../api",
        "./a:b",
        "file:///srv/api.git",
        "C:/code/api",
        "C:\\code\\api",
        "",
        "api",
        "https://host/",
    ],
)
def test_places_on_this_machine_are_no_remote(url: str) -> None:
    assert normalised_remote(url) is None


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("ssh://git@host:2222/o/r", "host:2222/o/r"),
        ("ssh://git@host:02222/o/r", "host:2222/o/r"),
        ("https://host:8443/o/r.git", "host:8443/o/r"),
        ("https://host:22/o/r", "host:22/o/r"),
        ("ssh://git@host:owner/repo", "host/owner/repo"),
        ("git@host:22/repo", "host/22/repo"),
        ("https://[2001:DB8::1]:443/o/r", "[2001:db8::1]/o/r"),
        ("git@[2001:db8::1]:o/r", "[2001:db8::1]/o/r"),
        ("https://host./o/r", "host/o/r"),
        ("https://host/o/My%20Repo", "host/o/My Repo"),
        ("https://host/Owner/Repo", "host/Owner/Repo"),
    ],
)
def test_single_cases(url: str, expected: str) -> None:
    assert normalised_remote(url) == expected


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)


def repository(folder: Path, origin: str | None) -> Path:
    folder.mkdir(parents=True)
    git(folder, "init", "-q")
    if origin:
        git(folder, "remote", "add", "origin", origin)
    return folder


def test_two_clones_share_a_bank(tmp_path: Path, home: Path) -> None:
    alice = bank_of(repository(tmp_path / "alice/api", "git@Example.com:Acme/api.git"))
    bob = bank_of(repository(tmp_path / "bob/other-name", "https://bob:secret@example.com/Acme/api/"))
    assert alice.id == bob.id
    assert alice.shareable
    assert re.fullmatch(r"project:api-[0-9a-f]{8}", alice.id)
    assert "secret" not in bob.why


def test_subfolders_and_worktrees_belong_to_the_project(tmp_path: Path, home: Path) -> None:
    for name, origin in (("with", "https://example.com/a/b"), ("without", None)):
        root = repository(tmp_path / name, origin)
        (root / "src/deep").mkdir(parents=True)
        git(root, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x")
        git(root, "worktree", "add", "-q", str(tmp_path / f"{name}-tree"))
        assert bank_of(root / "src/deep") == bank_of(root) == bank_of(tmp_path / f"{name}-tree")


def test_without_a_remote_nothing_can_be_shared(tmp_path: Path, home: Path) -> None:
    one, two = tmp_path / "a/my project!", tmp_path / "b/my project!"
    two.mkdir(parents=True)
    banks = [
        bank_of(repository(one, None)),
        bank_of(two),
        bank_of(repository(tmp_path / "c", "/srv/git/x.git")),
    ]
    assert not any(bank.shareable for bank in banks)
    assert len({bank.id for bank in banks}) == 3
    assert re.fullmatch(r"project:my-project-[0-9a-f]{8}", banks[0].id)


def test_a_git_hook_s_environment_does_not_answer_for_another_folder(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = repository(tmp_path / "wanted", "https://example.com/o/wanted")
    other = repository(tmp_path / "other", "https://example.com/o/other")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert bank_of(wanted).id.startswith("project:wanted-")


def test_no_git_means_a_local_bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert not bank_of(tmp_path).shareable


@given(st.text(LETTERS + " /!é漢:@", min_size=1, max_size=300).filter(lambda path: path.strip("/ ") != ""))
def test_every_bank_id_may_travel(path: str) -> None:
    assert re.fullmatch(r"project:[A-Za-z0-9._-]{1,100}-[0-9a-f]{8}", _bank_id(path, path))
