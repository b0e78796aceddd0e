"""A person's session: the terminal that signed in gets it, and nothing else does. Real processes on real ptys."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_access import FakeAccess, serving
from laptop import PACKAGE_ROOT, traces
from teamlore_client._terminal import standing
from terminal import TEAMLORE, Terminal, gone, holders, terminal

PERSON = "tlk_personpersonperson"
SESSION = f"{TEAMLORE} session --json"


ASKS = """
import os, socket, sys
os.chdir(sys.argv[1])
for name in os.listdir("."):
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(name)
    peer.sendall(sys.argv[2].encode() + b"\\n")
    print(peer.recv(999))
"""


@pytest.fixture
def fake() -> Iterator[FakeAccess]:
    with serving() as served:
        served.add(PERSON, "user:alice", "person")
        yield served


@pytest.fixture
def at(home: Path, fake: FakeAccess) -> Iterator[Terminal]:
    with terminal(home, TEAMLORE_SERVER=fake.server) as opened:
        yield opened
    assert gone(home)


def sign_in(at: Terminal) -> None:
    at.type(f"{TEAMLORE} login; echo __$?__")
    at.expect("Person token: ")
    at.type(PERSON)
    code, said = at.end()
    assert code == 0, said
    assert "signed in as user:alice" in said
    assert PERSON not in said


def has_it(at: Terminal, command: str = SESSION) -> bool:
    code, said = at.run(command)
    assert code in (0, 1), said
    assert ("user:alice" in said) == (code == 0)
    return code == 0


def test_the_terminal_that_signed_in_has_the_session_and_no_file_has(
    at: Terminal, home: Path, fake: FakeAccess
) -> None:
    assert not has_it(at)
    sign_in(at)
    assert has_it(at)
    assert has_it(at, f"{SESSION} | cat; (exit ${{PIPESTATUS[0]}})")
    code, said = at.run(f"{TEAMLORE} whoami --json")
    assert code == 0, said
    told = json.loads(said[said.index('{"bank"') : said.rindex("}") + 1])
    assert (told["person_present"], told["credential"]) == (True, "session")
    (secret,) = fake.sessions()
    for word in (secret, PERSON):
        assert traces(home, word) == {}
    folder = home / ".local/state/teamlore/sessions"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [each.stat().st_mode & 0o777 for each in folder.iterdir()] == [0o600]


def test_what_has_no_terminal_or_another_session_does_not_get_it(at: Terminal, home: Path) -> None:
    sign_in(at)
    assert not has_it(at, f"{SESSION} </dev/null")
    assert not has_it(at, f"echo | {SESSION}")
    assert not has_it(at, f"{SESSION} </dev/tty")
    assert not has_it(at, f"setsid --wait {SESSION}")
    assert not has_it(at, f"{SESSION} <{at.device} >{home}/out & wait $!")
    assert has_it(at)
    (home / "asks.py").write_text(ASKS)
    asks = f"{sys.executable} {home}/asks.py {home}/.local/state/teamlore/sessions get"
    assert "b'ok" in at.run(asks)[1]
    with terminal(home) as other:
        assert not has_it(other)
        assert not has_it(other, f"{SESSION} <{at.device}")
        for command in (asks, f"{asks} <{at.device}"):
            assert "b'no" in other.run(command)[1]
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    with Path(at.device).open("rb+", buffering=0) as stdin:
        done = subprocess.run(
            [*SESSION.split()], env=environment, stdin=stdin, capture_output=True, check=False
        )
    assert done.returncode == 1
    assert has_it(at)


TAKES = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
folder, *command = sys.argv[1:]
while not os.path.exists(folder + "/go"):
    time.sleep(0.05)
if os.path.exists(folder + "/alone") and os.fork():
    os._exit(0)  # whoever is left has no parent in this session
device = os.open(os.ttyname(9), os.O_RDWR | os.O_NOCTTY)
before = os.tcgetpgrp(device)
os.tcsetpgrp(device, os.getpgrp())
done = subprocess.run(command, stdin=device, capture_output=True, text=True)
os.tcsetpgrp(device, before)
with open(folder + "/told", "w") as told:
    told.write(done.stdout + done.stderr)
os.rename(folder + "/told", folder + "/seen")
"""


@pytest.mark.parametrize("alone", [False, True])
def test_a_job_that_takes_the_foreground_for_itself_gets_nothing(
    at: Terminal, tmp_path: Path, alone: bool
) -> None:
    (tmp_path / "takes.py").write_text(TAKES)
    if alone:
        (tmp_path / "alone").touch()
    job = f"{sys.executable} {tmp_path}/takes.py {tmp_path} {SESSION}"
    at.run(f"{{ {job} 9<&0 </dev/null >/dev/null 2>&1 & }}")
    sign_in(at)
    assert has_it(at)
    (tmp_path / "go").touch()
    end = time.monotonic() + 30
    while not (tmp_path / "seen").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    assert "user:alice" not in (tmp_path / "seen").read_text()
    assert has_it(at)
    assert has_it(at, f"({SESSION})"), "a subshell is the same shell"
    _, said = at.run(f"{sys.executable} -c 'import os; os.system(\"{SESSION}\")'")
    assert "user:alice" not in said, "an agent in the foreground starts it with a program in between"


@pytest.mark.parametrize("word", ["get", "go", "give", ""])
def test_an_agent_that_speaks_the_protocol_itself_gets_nothing(
    at: Terminal, home: Path, fake: FakeAccess, word: str
) -> None:
    sign_in(at)
    folder = str(home / ".local/state/teamlore/sessions")
    done = subprocess.run(
        [sys.executable, "-c", ASKS, folder, word], stdin=subprocess.DEVNULL, capture_output=True, check=True
    )
    assert done.stdout.strip() in (b"b'no\\n'", b"b''")
    assert fake.sessions()[0].encode() not in done.stdout
    assert has_it(at)


PROBES = """
import os, sys
for name in ("environ", "mem", "fd/0", "cwd"):
    path = f"/proc/{sys.argv[1]}/{name}"
    try:
        if name in ("fd/0", "cwd"): os.readlink(path)
        else: open(path, "rb")
        print("open", name)
    except PermissionError:
        print("closed", name)
"""


def test_the_holder_s_memory_is_closed_and_its_arguments_hold_nothing(home: Path, fake: FakeAccess) -> None:
    # Root reads everything; without capabilities it is a user like others.
    user = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []

    def probe(target: int) -> list[str]:
        command = [*user, sys.executable, "-c", PROBES, str(target)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return [line.split()[0] for line in done.stdout.splitlines()]

    with terminal(home, user, TEAMLORE_SERVER=fake.server) as at:
        sign_in(at)
        (pid,) = holders(home)
        (secret,) = fake.sessions()
        for name in ("environ", "cmdline", "stat", "status"):  # root may
            with contextlib.suppress(PermissionError):
                said = Path(f"/proc/{pid}/{name}").read_bytes()
                assert secret.encode() not in said
                assert PERSON.encode() not in said
        assert probe(pid) == ["closed"] * 4
        assert probe(at.shell.pid)[0] == "open"  # as it is for any other process of the user
        assert has_it(at)


def test_signing_out_ends_it_here_and_at_the_server(at: Terminal, home: Path, fake: FakeAccess) -> None:
    sign_in(at)
    code, said = at.run(f"{TEAMLORE} logout")
    assert (code, "signed out" in said) == (0, True)
    assert gone(home)
    assert not has_it(at)
    assert [fake.tokens[each].revoked for each in fake.sessions()] == [True]
    assert list((home / ".local/state/teamlore/sessions").iterdir()) == []


def test_it_ends_by_itself(at: Terminal, home: Path, fake: FakeAccess) -> None:
    fake.session_seconds = 4
    sign_in(at)
    assert gone(home, 8)
    assert not has_it(at)


def test_a_second_sign_in_replaces_the_first(at: Terminal, home: Path, fake: FakeAccess) -> None:
    sign_in(at)
    (before,) = holders(home)
    sign_in(at)
    (after,) = holders(home)
    assert before != after
    assert standing(before) is None
    assert has_it(at)
    os.kill(after, signal.SIGKILL)
    assert gone(home)
    assert not has_it(at)  # its socket is still there, and nobody answers
    sign_in(at)
    assert has_it(at)


def test_the_holder_ends_with_the_terminal_s_shell(home: Path, fake: FakeAccess) -> None:
    with terminal(home, TEAMLORE_SERVER=fake.server) as at:
        sign_in(at)
        assert len(holders(home)) == 1
    assert gone(home, 5)


def test_a_session_goes_to_no_other_server(at: Terminal, fake: FakeAccess) -> None:
    sign_in(at)
    with serving() as other:
        at.type(f"{TEAMLORE} whoami --server {other.server} --bank project:x-1; echo __$?__")
        at.expect("Token: ")
        at.type("tlk_typed")
        assert at.end()[0] == 4
        assert other.credentials == ["tlk_typed"]
    assert has_it(at)


def test_without_a_terminal_nobody_signs_in(home: Path, fake: FakeAccess) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "teamlore_client.cli", "login", "--server", fake.server],
        env={"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": str(PACKAGE_ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, b"on a terminal" in done.stderr) == (2, True)
    assert fake.calls == []


def test_where_the_system_cannot_keep_it_apart_login_says_that_commands_ask(
    home: Path, fake: FakeAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    from teamlore_client.cli import app
    from typer.testing import CliRunner

    monkeypatch.setattr("teamlore_client._cli_login.supported", lambda: False)
    done = CliRunner().invoke(app, ["login", "--server", fake.server])
    assert done.exit_code == 1
    assert "will ask for a person token" in done.output
    assert fake.calls == []
