"""The command line where it needs no server: what it prints, and with which code it ends."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fake_sync import save
from laptop import BANK, memory
from teamlore_client import _address, _cli_apply, _cli_memory
from teamlore_client._address import SERVICES, parse_address
from teamlore_client._errors import Refused, ServerUnreachable
from teamlore_client._laptop import Laptop
from teamlore_client._membership import Membership
from teamlore_client._memory import FieldInvalid
from teamlore_client._project import ProjectBank
from teamlore_client._show import day, details, label, line, shown, whole
from teamlore_client._state import Page, Pushed
from teamlore_client._wire import Doomed, Forgotten, Identity
from teamlore_client.cli import app
from typer.testing import CliRunner


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("teamlore_client._cli.bank_of", lambda folder: ProjectBank(BANK, True, "a test"))


def call(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(arguments))
    return done.exit_code, done.output


def child(home: Path, *arguments: str | bytes, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "teamlore_client.cli", *arguments],
        env={"HOME": str(home), "PATH": os.environ["PATH"], **environment},
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )


def test_a_list_loads_neither_the_model_nor_the_network(home: Path) -> None:
    code = (
        "import sys\nfrom teamlore_client.cli import app\n"
        "try: app(['memory', 'list'])\nexcept SystemExit as end: assert not end.code\n"
        "heavy = {'onnxruntime', 'grpc', 'teamlore_embedder'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"HOME": str(home), "PATH": os.environ["PATH"]},
        cwd=home,
        check=False,
    )
    assert done.returncode == 0


@pytest.mark.parametrize("command", [["--help"], ["admin", "--help"], ["admin", "token", "create", "--help"]])
def test_help_loads_only_what_it_tells(home: Path, command: list[str]) -> None:
    code = (
        "import sys\nfrom teamlore_client.cli import app\n"
        f"try: app({command!r})\nexcept SystemExit as end: assert not end.code\n"
        "heavy = {'apsw', 'grpc', 'keyring', 'yaml', 'google', 'urllib.request'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    environment = {"HOME": str(home), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=home, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    for name in ("memory", "team", "whoami", "login", "logout", "session", "admin"):
        assert name.encode() in done.stdout or command != ["--help"]


def test_a_misspelt_command_is_told_the_nearest() -> None:
    code, said = call("whoam")
    assert (code, "whoami" in said) == (2, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("memory", "add", b"bad \xff"),
        ("memory", "add", "good", "--tag", b"\xff"),
        ("memory", "list", b"--tag=\xff"),
        ("memory", "recall", b"\xff"),
        ("memory", "show", b"\xff"),
        ("memory", "forget", b"\xff"),
        ("team", "join", b"\xff", "--token", "x"),
        ("login", "--server", b"\xff"),
    ],
)
def test_bytes_that_are_no_text_get_to_no_command(home: Path, arguments: tuple[str | bytes, ...]) -> None:
    done = child(home, *arguments)
    word = 1 + next(place for place, each in enumerate(arguments) if isinstance(each, bytes))
    told = f"word {word} of the command is not valid UTF-8"
    assert (done.returncode, done.stdout, done.stderr.decode()) == (2, b"", f"error: {told}\n")
    done = child(home, *arguments, "--json")
    assert (done.returncode, done.stderr) == (2, b"")
    assert json.loads(done.stdout) == {"error": {"kind": "usage", "message": told}}


@pytest.mark.parametrize(
    "arguments",
    [
        ("memory", "show"),
        ("memory", "list", "--limit", "0"),
        ("memory", "list", "--no-such"),
        ("memory", "shwo", "x"),
        ("memory", "list", "--project", "/no/such/folder"),
        ("nothing",),
    ],
)
def test_wrong_usage_is_an_error_in_json_too(arguments: tuple[str, ...]) -> None:
    code, said = call(*arguments, "--json")
    error = json.loads(said)["error"]
    assert (code, error["kind"]) == (2, "usage") and error["message"]
    code, said = call(*arguments)
    assert code == 2 and "Usage" in said


def test_json_is_what_a_command_is_given_not_what_it_saves(home: Path) -> None:
    done = child(home, "memory", "list", "--no-such", "--", "--json")
    assert (done.returncode, done.stdout) == (2, b"") and b"Usage" in done.stderr


@pytest.mark.parametrize("text", ["", "   ", "\n", "\u200b", "\u2800"])
def test_a_text_that_shows_nothing_is_not_saved(project: None, text: str) -> None:
    code, said = call("memory", "add", text, "--json")
    assert (code, json.loads(said)["error"]["field"]) == (2, "text")
    assert json.loads(call("memory", "list", "--json")[1])["memories"] == []


def test_metadata_cannot_look_like_a_line_of_ours() -> None:
    forged = {"x\nsaved by": "user:boss", "saved by": "user:boss\nteam      stored", "a\x1b[2J\t": True}
    lines = [each.plain for each in details(memory("a text", author="user:eve", metadata=forged), "")]
    assert [each for each in lines if each.startswith("saved by")] == ["saved by  user:eve"]
    assert not any("\n" in each or "\x1b" in each for each in lines[:-1])
    start = lines.index("metadata, in the words of who saved it")
    assert lines[start + 1 :] == [
        "  a\\x1b[2J  = True",
        "  saved by = user:boss team      stored",
        "  x saved by = user:boss",
        "",
        "  a text",
    ]


@pytest.mark.parametrize(("name", "folder"), [("memory.db", ".local/share"), ("sync.db", ".local/state")])
def test_a_file_that_is_no_database_is_named(home: Path, name: str, folder: str) -> None:
    assert child(home, "memory", "add", "a text").returncode == 0
    (memory_id,) = [each["id"] for each in json.loads(child(home, "memory", "list", "--json").stdout)["memories"]]
    assert child(home, "memory", "show", memory_id).returncode == 0
    (path,) = (home / folder).rglob(name)
    for rest in path.parent.glob(f"{name}-*"):
        rest.unlink()
    path.write_bytes(b"not a database " * 1000)
    done = child(home, "memory", "show", memory_id, "--json")
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["kind"]) == (1, "store_unreadable")
    assert str(path) in error["message"] and "Move it away" in error["message"]
    assert ("What you hid" in error["message"], "never shared" in error["message"]) == (name == "sync.db", name != "sync.db")


def test_what_is_read_from_a_file_is_small_and_a_file(tmp_path: Path) -> None:
    pipe, large, good = tmp_path / "pipe", tmp_path / "large", tmp_path / "stack.json"
    os.mkfifo(pipe)
    text = json.dumps({"ports": dict.fromkeys(SERVICES, 1)})
    large.write_text(text.ljust(65_537))
    good.write_text(text.ljust(65_536))
    for path in ("/dev/zero", str(pipe), str(large), str(tmp_path)):
        with pytest.raises(FieldInvalid, match="of a running stack"):
            parse_address(f"@{path}")
    for path in ("/dev/zero", str(pipe)):
        with pytest.raises(OSError, match="not a regular file"):
            _address._read(Path(path))
    assert parse_address(f"@{good}").targets["auth"].port == 1
    with pytest.raises(FieldInvalid, match="at most"):
        _cli_apply._read("/dev/zero")


@pytest.mark.parametrize("zone", ["America/Los_Angeles", "Pacific/Kiritimati", "UTC"])
@pytest.mark.parametrize(
    "moment", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "0001-01-01", "9999-12-31"]
)
def test_dates_at_the_edge_of_the_calendar_are_shown(home: Path, zone: str, moment: str) -> None:
    done = child(home, "memory", "add", "an edge", "--occurred-at", moment, TZ=zone)
    assert done.returncode == 0, done.stderr
    for command in (["list"], ["recall", "edge"]):
        done = child(home, "memory", *command, TZ=zone)
        assert done.returncode == 0, done.stderr
        assert moment[:4].encode() in done.stdout or b"0001" in done.stdout or b"9999" in done.stdout


def test_a_moment_outside_the_calendar_is_refused(home: Path, project: None) -> None:
    for given in ("9999-12-31T23:59:59-05:00", "0001-01-01T00:00:00+05:00", "yesterday"):
        code, said = call("memory", "add", "x", "--occurred-at", given, "--json")
        assert code == 2
        assert json.loads(said)["error"]["field"] == "occurred_at"


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("text", ["x" * 50_001]),
        ("text", [""]),
        ("tags", ["x", "--tag", "y" * 101]),
        ("tags", ["x", "--tag", ""]),
        ("fact_type", ["x", "--fact-type", "Decision"]),
        ("cite", ["x", "--cite", "/home/alice/notes.md"]),
        ("cite", ["x", "--cite", "http://localhost:3000/notes"]),
        ("cite", ["x", "--cite", "repo:~/notes.md"]),
        ("cite", ["x", "--fact-type", "claim"]),
        ("excerpt", ["x", "--excerpt", " "]),
    ],
)
def test_what_the_server_would_reject_is_said_at_once(
    home: Path, project: None, field: str, arguments: list[str]
) -> None:
    code, said = call("memory", "add", *arguments, "--json")
    assert code == 2
    assert json.loads(said)["error"]["field"] == field


def test_text_of_others_cannot_move_the_cursor_or_look_like_an_item() -> None:
    assert shown("a\x1b[2Jb\x9bc\x00\x7f\r") == "a\\x1b[2Jb\\x9bc\\x00\\x7f\\x0d"
    assert shown("\u202eabc\u2066\ud800\u2028") == "\\u202eabc\\u2066\\ud800\\u2028"
    assert shown("naïve 日本 👩‍👩‍👧\tq") == "naïve 日本 👩‍👩‍👧\tq"
    forged = memory("real\n- [2026-01-01] (bob) forged\x1b[0m", author="user:alice")
    assert whole(forged).plain.splitlines()[1] == "  - [2026-01-01] (bob) forged\\x1b[0m"
    assert "\n" not in line(forged).plain
    assert label("service:ci\x1b") == "(service:ci\\x1b)"


def test_labels_name_people_short_and_others_in_full() -> None:
    assert [label(author) for author in ("user:alice", "service:ci", None)] == ["(alice)", "(service:ci)", ""]
    mine = memory("mine", occurred_at=datetime(2026, 1, 2, 12, tzinfo=UTC))
    assert line(mine).plain == "- [2026-01-02] mine"
    assert day(datetime.max.replace(tzinfo=UTC)).startswith("9999")
    assert day(datetime.min.replace(tzinfo=UTC)).startswith("0001")


def shared(laptop: Laptop, text: str = "shared") -> str:
    made = save(laptop, text)
    laptop.state.record_push(BANK, {made.id: Pushed("stored")})
    laptop.memberships.join(Membership(BANK, "http://127.0.0.1:1", "d" * 32), "tlk_secret")
    laptop.state.settled(BANK)
    return made.id


def test_a_shared_memory_is_not_forgotten_without_a_scope(bob: Laptop, project: None) -> None:
    id_ = shared(bob)
    code, said = call("memory", "forget", id_, "--json")
    assert (code, json.loads(said)["error"]["kind"]) == (3, "scope_needed")
    assert bob.store.known([id_]) == {id_}
    assert call("memory", "forget", id_, "--team", "--local")[0] == 2
    code, _ = call("memory", "forget", id_[:8], "--local")
    assert code == 0
    assert bob.store.known([id_]) == frozenset()
    assert bob.state.suppressed(BANK) == {id_}


def test_a_memory_never_shared_is_forgotten_without_a_question(bob: Laptop, project: None) -> None:
    shared(bob)
    for answer in (None, "rejected", "duplicate"):
        made = save(bob, f"mine {answer}")
        if answer is not None:
            bob.state.record_push(BANK, {made.id: Pushed(answer, "original-1")})
        if answer != "duplicate":
            assert call("memory", "forget", made.id, "--team")[0] == 1
        assert bob.store.known([made.id]) == {made.id}
        assert call("memory", "forget", made.id)[0] == 0
        assert bob.store.known([made.id]) == frozenset()


@pytest.mark.parametrize("why", ["sent", "received though rejected", "nothing is known yet"])
def test_what_the_team_may_have_asks_for_the_scope(
    bob: Laptop, project: None, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    shared(bob)
    ids = [save(bob, text).id for text in ("one", "another")]
    if why == "sent":
        bob.state.sending(BANK, ids)
    elif why.startswith("received"):
        bob.state.record_push(BANK, {id_: Pushed("rejected", "the barrier of today") for id_ in ids})
        bob.state.apply_page(BANK, Page("c", dict.fromkeys(ids, 1)))
    else:  # joined again, and the first sync did not get to its end
        bob.state.leave(BANK)
    if why != "received though rejected":
        assert json.loads(call("memory", "show", ids[0], "--json")[1])["team"] == "perhaps there"
    code, said = call("memory", "forget", ids[0], "--json")
    assert (code, json.loads(said)["error"]["kind"]) == (3, "scope_needed")
    assert "the team may have this memory" in json.loads(said)["error"]["message"]
    assert bob.store.known(ids) == set(ids)

    code, said = call("memory", "forget", ids[0], "--local")
    assert code == 0 and "the team may have it" in " ".join(said.split())
    assert bob.state.suppressed(BANK) == {ids[0]}
    sent: list[str] = []
    client = "teamlore_client._rpc.TeamClient."
    monkeypatch.setattr(client + "doomed", lambda *_: None)
    monkeypatch.setattr(client + "forget", lambda _, bank, ids: sent.extend(ids) or Forgotten(1, 0, ""))
    assert call("memory", "forget", ids[1], "--team")[0] == 0
    assert sent == [ids[1]], "the server buries an id that it never saw"
    assert bob.store.known(ids) == frozenset()
    assert bob.state.ledger(BANK, ids[1:])[ids[1]].answer == "forgotten"


def test_what_is_forgotten_here_is_bound_here(bob: Laptop, project: None) -> None:
    shared(bob)
    mine = save(bob, "mine")
    assert call("memory", "forget", mine.id)[0] == 0
    assert bob.state.suppressed(BANK) == {mine.id}


@pytest.mark.parametrize("author", ["user:alice", "user:bob", None])
def test_what_the_team_holds_in_its_place_goes_once_its_author_is_named(
    bob: Laptop, project: None, monkeypatch: pytest.MonkeyPatch, author: str | None
) -> None:
    shared(bob)
    made, mirrored = save(bob, "mine"), save(bob, "theirs", id="original-1")
    bob.state.record_push(BANK, {made.id: Pushed("duplicate", "original-1")})
    sent: list[str] = []

    def forget(_: object, bank: str, ids: list[str]) -> Forgotten:
        sent.extend(ids)
        return Forgotten(6, 6, "e" * 32)

    monkeypatch.setattr("teamlore_client._rpc.TeamClient.forget", forget)
    monkeypatch.setattr("teamlore_client._rpc.TeamClient.erasure_state", lambda *_: "server_done")
    text = "mine" if author == "user:bob" else "their own\x1b[2J\n  words"
    doomed = Doomed(author, 5, ("first\nsecond", "b", "c", "d"), text=text) if author else None
    monkeypatch.setattr("teamlore_client._rpc.TeamClient.doomed", lambda *_: doomed)
    monkeypatch.setattr(
        "teamlore_client._rpc.TeamClient.who_am_i", lambda *_: Identity("user:bob", ("read", "forget"))
    )
    code, said = call("memory", "forget", made.id, "--team")
    if author is None:
        assert code == 1 and "no longer has original-1" in said
        return
    assert code == 3 and f"saved by {'you' if author == 'user:bob' else 'alice'}" in said
    assert 'with it 5 that the same author saved at once: "first"; "b"; "c", and 2 more' in " ".join(said.split())
    told = 'it says "their own\\x1b[2J / words"' in " ".join(said.split())
    assert told is (author == "user:alice") and ("it says" in said) is told
    with monkeypatch.context() as asked:
        asked.setattr(_cli_memory, "agreed", lambda *_: False)
        assert call("memory", "forget", made.id, "--team")[0] == 3
    assert sent == [] and bob.store.known([made.id]) == {made.id}
    code, said = call("memory", "forget", made.id, "--team", "--yes", "--json")
    answer = json.loads(said.splitlines()[-1])
    assert code == 0 and (answer["duplicate_of"], answer["erased_count"]) == ("original-1", 6)
    assert sent == ["original-1"]
    assert bob.store.known([made.id, mirrored.id]) == frozenset()
    assert bob.state.ledger(BANK)[made.id].answer == "forgotten"
    assert bob.state.erased_by_user(BANK) == {"original-1", made.id}


@pytest.mark.parametrize("others", [0, 2])
def test_what_was_saved_at_once_goes_once_it_is_agreed(
    bob: Laptop, project: None, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    id_, sent = shared(bob), list[str]()

    def forget(_: object, bank: str, ids: list[str]) -> Forgotten:
        sent.extend(ids)
        return Forgotten(1 + others, 1 + others, "e" * 32)

    client = "teamlore_client._rpc.TeamClient."
    monkeypatch.setattr(client + "forget", forget)
    monkeypatch.setattr(client + "erasure_state", lambda *_: "server_done")
    monkeypatch.setattr(client + "doomed", lambda *_: Doomed("user:bob", others, ("one", "two")[:others]))
    code, said = call("memory", "forget", id_, "--team")
    if others:
        assert code == 3 and 'with it 2 that the same author saved at once: "one"; "two"' in " ".join(said.split())
        assert sent == [] and bob.store.known([id_]) == {id_}
        code, said = call("memory", "forget", id_, "--team", "--yes")
        assert "and 2 more that went with it" in " ".join(said.split())
    assert code == 0 and sent == [id_] and bob.store.known([id_]) == frozenset()
    assert bob.state.erased_by_user(BANK) == {id_}


def test_no_more_is_said_than_the_server_named(
    bob: Laptop, project: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_ = shared(bob)
    doomed = Doomed("user:bob", 999, ("one", "two", "three", "four"), perhaps_more=True)
    monkeypatch.setattr("teamlore_client._rpc.TeamClient.doomed", lambda *_: doomed)
    code, said = call("memory", "forget", id_, "--team")
    said = " ".join(said.split())
    assert code == 3 and "and with it at least 999 that" in said and "and at least 996 more" in said


def test_an_unknown_or_ambiguous_id_changes_nothing(bob: Laptop, project: None) -> None:
    save(bob, "one", id="abcdefgh1")
    save(bob, "two", id="abcdefgh2")
    assert json.loads(call("memory", "forget", "abcd", "--json")[1])["error"]["kind"] == "ambiguous_id"
    assert call("memory", "forget", "zzzz")[0] == 1
    assert bob.store.count(BANK) == 2


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (Refused("BANK_HELD", "held"), 4, "legal hold"),
        (Refused("PERMISSION_DENIED", "no", permission="forget"), 4, "`forget`"),
        (ServerUnreachable("connection refused"), 5, "cannot be reached"),
    ],
)
def test_a_refused_team_forget_changes_nothing(
    bob: Laptop, project: None, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, says: str
) -> None:
    id_ = shared(bob)

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr("teamlore_client._rpc.TeamClient.doomed", lambda *_: Doomed("user:bob", 0, ()))
    monkeypatch.setattr("teamlore_client._rpc.TeamClient.forget", refuse)
    ended, said = call("memory", "forget", id_, "--team")
    assert (ended, says in said) == (code, True)
    assert bob.store.known([id_]) == {id_}
    assert bob.state.ledger(BANK)[id_].answer == "stored"


def test_a_sync_under_way_keeps_forget_waiting(
    bob: Laptop, project: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_ = shared(bob)
    monkeypatch.setattr(_cli_memory, "_LOCK_SECONDS", 0.2)
    lock = bob.try_lock(BANK)
    assert lock is not None
    with lock:
        code, said = call("memory", "forget", id_, "--local", "--json")
        assert (code, json.loads(said)["error"]["kind"]) == (1, "busy")
        assert call("team", "leave")[0] == 1
    assert bob.store.known([id_]) == {id_}


def test_a_folder_without_a_remote_cannot_be_joined(home: Path) -> None:
    done = child(home, "team", "join", "http://127.0.0.1:1", "--token", "tlk_x", "--yes")
    assert done.returncode == 1
    assert b"cannot be shared" in done.stderr
