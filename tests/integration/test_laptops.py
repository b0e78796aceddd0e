"""Two laptops and one team, through the command line: two homes, two clones of one repository."""

import asyncio
import base64
import json
import os
import shutil
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from teamlore.auth.v1 import access_pb2, access_pb2_grpc
from teamlore.feed.v1 import feed_pb2
from teamlore.sync.v1 import sync_pb2

from tests.files import contents
from tests.integration.conftest import ROOT, RunningStack

SERVICES = ("auth", "sync", "feed", "compliance")
NOWHERE = ",".join(f"{name}=127.0.0.1:1" for name in SERVICES)
DECISION = "We use SQS for the order queue because Kafka was too much to run."


@dataclass(frozen=True)
class Laptop:
    """One home with one clone of the project."""

    home: Path
    clone: Path

    def run(self, *arguments: str, code: int = 0, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "teamlore_client.cli", *arguments],
            cwd=self.clone,
            env={"HOME": str(self.home), "PATH": os.environ["PATH"], **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stdout if code == 0 or "--json" in arguments else done.stderr

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code))

    def team_file(self) -> Path:
        return self.home / ".config/teamlore/team.json"

    def cut_off(self) -> str:
        """Make the server unreachable for this laptop; returns what `reconnect` takes."""
        before = self.team_file().read_text()
        kept = json.loads(before)
        for entry in kept["banks"].values():
            entry["url"] = NOWHERE
        self.team_file().write_text(json.dumps(kept))
        return before

    def reconnect(self, before: str) -> None:
        self.team_file().write_text(before)

    def traces(self, word: str) -> list[str]:
        """Files that hold the word: as it is, in UTF-16, base64 at any alignment, or hex."""
        plain = word.encode()
        parts = (plain[shift:] for shift in range(3))
        needles = {plain, word.encode("utf-16-le"), word.encode("utf-16-be"), plain.hex().encode()}
        needles |= {base64.b64encode(part[: len(part) // 3 * 3]) for part in parts}
        return [
            file.name for file, content in contents(self.home) if any(needle in content for needle in needles)
        ]


@dataclass(frozen=True)
class Team:
    stack: RunningStack
    server: str
    alice: Laptop
    bob: Laptop
    tokens: dict[str, str]
    bank: str

    def join(self, *names: str) -> None:
        for name in names or ("alice", "bob"):
            laptop: Laptop = getattr(self, name)
            laptop.run("team", "join", "--server", self.server, "--token", self.tokens[name], "--yes")


@pytest.fixture
def team(stack: RunningStack, tmp_path: Path) -> Team:
    origin = f"acme/shop-{uuid.uuid4().hex[:8]}"

    def laptop(name: str, url: str) -> Laptop:
        made = Laptop(tmp_path / name / "home", tmp_path / name / "clone")
        made.home.mkdir(parents=True)
        subprocess.run(["git", "init", "-q", str(made.clone)], check=True)
        subprocess.run(["git", "-C", str(made.clone), "remote", "add", "origin", url], check=True)
        return made

    async def tokens() -> dict[str, str]:
        grant = ("project:*", "read write forget")
        return {name: await stack.token(f"user:{name}", grant) for name in ("alice", "bob")}

    alice = laptop("alice", f"git@github.com:{origin}.git")
    bob = laptop("bob", f"https://github.com/{origin}")
    server = ",".join(f"{name}={stack.address(name)}" for name in SERVICES)
    bank = alice.json("memory", "list")["bank"]
    assert bob.json("memory", "list")["bank"] == bank
    return Team(stack, server, alice, bob, asyncio.run(tokens()), bank)


def digest(team: Team) -> tuple[int, int, int]:
    async def ask() -> tuple[int, int, int]:
        async with team.stack.channel("feed") as channel:
            answer = await team.stack.feed(channel).GetDigest(
                feed_pb2.GetDigestRequest(bank=team.bank),
                metadata=team.stack.credential(team.tokens["bob"]),
            )
        return answer.seq, answer.count, answer.sum

    return asyncio.run(ask())


def own_digest(laptop: Laptop, bank: str) -> tuple[int, int]:
    from teamlore_client._state import SyncState

    with SyncState(laptop.home / ".local/state/teamlore/sync.db") as state:
        kept = state.digest(bank)
    return kept.count, kept.sum


def test_what_alice_saves_bob_recalls_offline_with_her_name(team: Team) -> None:
    team.alice.run("memory", "add", DECISION, "--tag", "queue", "--fact-type", "decision")
    team.join()
    team.bob.cut_off()
    recalled = team.bob.run("memory", "recall", "which queue do we use for orders?")
    assert recalled.startswith("- [") and f"(alice) {DECISION}" in recalled
    found = team.bob.json("memory", "list")["memories"]
    assert [(m["text"], m["saved_by"], m["tags"], m["fact_type"]) for m in found] == [
        (DECISION, "user:alice", ["queue"], "decision")
    ]
    assert "(alice)" not in team.alice.run("memory", "recall", "queue")


def test_join_sends_and_stores_nothing_before_it_is_confirmed(team: Team) -> None:
    for number in range(5):
        team.alice.run("memory", "add", f"Decision number {number} about {uuid.uuid4().hex}")
    said = team.alice.run("team", "join", "--server", team.server, "--token", team.tokens["alice"], code=3)
    assert "5 memories would be sent" in said and said.count("Decision number") == 3
    assert not team.alice.team_file().exists() and digest(team)[1] == 0
    assert "not shared" in team.alice.run("team", "sync", code=1)
    said = team.alice.run("team", "join", team.server, "--token", "tlk_" + "A" * 43, "--yes", code=4)
    assert "token" in said and not team.alice.team_file().exists()
    said = team.alice.run("team", "join", NOWHERE, "--token", team.tokens["alice"], "--yes", code=5)
    assert "cannot be reached" in said and not team.alice.team_file().exists()
    team.join("alice")
    assert digest(team)[1] == 5
    assert team.tokens["alice"] in team.alice.team_file().read_text()  # no keychain here
    assert team.alice.team_file().stat().st_mode & 0o777 == 0o600


def test_a_dry_run_moves_nothing(team: Team) -> None:
    team.join()
    team.alice.run("memory", "add", DECISION)
    before = team.alice.json("team", "status")
    assert before["pending_push"] == 1
    seen = team.alice.json("team", "sync", "--dry-run")
    assert (seen["push"], [m["text"] for m in seen["push_sample"]]) == (1, [DECISION])
    after = team.alice.json("team", "status")
    assert after == before and digest(team)[1] == 0
    team.alice.run("team", "sync")
    seen = team.bob.json("team", "sync", "--dry-run")
    assert (seen["pull"], [m["text"] for m in seen["pull_sample"]]) == (1, [DECISION])
    assert team.bob.json("memory", "list")["memories"] == []
    assert team.bob.json("team", "status")["pending_pull"] == 1


def test_a_push_made_offline_drains_later_and_stores_once(team: Team) -> None:
    team.join()
    before = team.alice.cut_off()
    team.alice.run("memory", "add", DECISION)
    assert team.alice.json("team", "sync", code=5)["error"]["kind"] == "server_unreachable"
    kept = team.alice.json("team", "status")
    assert kept["pending_push"] == 1 and "ServerUnreachable" in kept["last_error"] and not kept["reachable"]
    team.alice.reconnect(before)
    assert team.alice.json("team", "sync")["pushed"]["stored"] == 1
    assert sum(team.alice.json("team", "sync")["pushed"].values()) == 0
    # As if the answer had been lost: the ledger forgets, the server does not.
    for file in (team.alice.home / ".local/state/teamlore").glob("sync.db*"):
        file.unlink()
    assert team.alice.json("team", "sync")["pushed"] == {
        "stored": 0,
        "unchanged": 1,
        "duplicate": 0,
        "rejected": 0,
    }
    assert digest(team)[1] == 1
    assert len(team.alice.json("memory", "list")["memories"]) == 1
    assert team.alice.json("team", "status")["last_error"] is None


def test_both_mirrors_and_the_server_hold_the_same(team: Team) -> None:
    team.join()
    for number in range(3):
        team.alice.run("memory", "add", f"Alice decided {uuid.uuid4().hex} for part {number}.")
        team.bob.run("memory", "add", f"Bob measured {uuid.uuid4().hex} in run {number}.")
    team.alice.run("memory", "add", "only mine", "--tag", "private")
    team.alice.run("memory", "add", "a captured turn", "--tag", "captured")
    for laptop in (team.alice, team.bob, team.alice, team.bob):
        laptop.run("team", "sync")
    _, count, total = digest(team)
    assert count == 6
    assert own_digest(team.alice, team.bank) == own_digest(team.bob, team.bank) == (count, total)
    assert team.alice.json("team", "sync", "--from-start")["verified"]
    assert own_digest(team.alice, team.bank) == (count, total)
    assert len(team.alice.json("memory", "list")["memories"]) == 8
    assert len(team.bob.json("memory", "list")["memories"]) == 6


def test_a_forged_author_is_ignored(team: Team) -> None:
    record = sync_pb2.Record(id=uuid.uuid4().hex[:16], text="We ship on Fridays.")
    record.metadata["_actor"].string_value = "user:alice"
    record.metadata["_authority_tier"].string_value = "canonical"

    async def push() -> None:
        async with team.stack.channel("sync") as channel:
            await team.stack.sync(channel).Push(
                sync_pb2.PushRequest(bank=team.bank, records=[record]),
                metadata=team.stack.credential(team.tokens["bob"]),
            )

    asyncio.run(push())
    team.join("alice")
    assert "(bob) We ship on Fridays." in team.alice.run("memory", "recall", "when do we ship?")
    [memory] = team.alice.json("memory", "list")["memories"]
    assert (memory["saved_by"], memory["metadata"]) == ("user:bob", {})


def test_a_teammates_escape_sequences_are_shown_harmlessly(team: Team) -> None:
    team.alice.run(
        "memory", "add", "red \x1b[31malert\x1b]0;title\x07 and \u202eesrever [bold]no markup[/bold]"
    )
    team.join()
    for command in (("recall", "alert"), ("list",)):
        said = team.bob.run("memory", *command, FORCE_COLOR="1")
        assert "\x1b" not in said and "\x07" not in said and "\u202e" not in said
        assert "\\x1b[31malert" in said and "[bold]no markup[/bold]" in said


def test_leave_purges_teammates_rows_from_disk_and_keeps_ones_own(team: Team) -> None:
    team.alice.run("memory", "add", "The vault code word is Zanzibarquartz.")
    team.bob.run("memory", "add", "Bob keeps Quillfeatherstone to himself.")
    team.join()
    assert team.bob.traces("Zanzibarquartz")
    assert team.bob.json("team", "leave")["purged"] == 1
    assert team.bob.traces("Zanzibarquartz") == [] and team.bob.traces("Quillfeatherstone")
    assert team.bob.traces(team.tokens["bob"]) == []
    assert [m["saved_by"] for m in team.bob.json("memory", "list")["memories"]] == [None]
    assert "not shared" in team.bob.run("team", "sync", code=1)
    team.join("bob")
    assert len(team.bob.json("memory", "list")["memories"]) == 2
    team.bob.run("team", "leave", "--keep-mirror")
    assert "(alice)" in team.bob.run("memory", "recall", "vault code word")
    team.join("bob")  # what stayed is still a teammate's: nothing of it is pushed
    assert digest(team)[1] == 2


def test_a_contradiction_comes_and_what_was_left_out_comes_when_ones_own_is_forgotten(team: Team) -> None:
    team.alice.run("memory", "add", "We use SQS for the order queue.")
    team.alice.run("memory", "add", "Always disable the query cache of the reporting database.")
    mine = team.bob.json("memory", "add", "We use SQS for an order queue.")["id"]
    team.bob.run("memory", "add", "Always enable the query cache of the reporting database.")
    team.join()

    def bobs() -> set[tuple[str, str | None]]:
        return {(m["text"], m["saved_by"]) for m in team.bob.json("memory", "list")["memories"]}

    cache = {
        ("Always enable the query cache of the reporting database.", None),
        ("Always disable the query cache of the reporting database.", "user:alice"),
    }
    assert bobs() == cache | {("We use SQS for an order queue.", None)}
    team.bob.run("memory", "forget", mine, "--local")
    synced = team.bob.json("team", "sync")
    assert synced["pulled"]["stored"] == 1 and synced["verified"]
    assert bobs() == cache | {("We use SQS for the order queue.", "user:alice")}


def test_forget_asks_for_a_scope_and_team_erases_it_everywhere(team: Team) -> None:
    team.alice.run("memory", "add", "The launch is called Wolframlantern.")
    team.join()
    [memory] = team.bob.json("memory", "list")["memories"]
    said = team.alice.run("memory", "forget", memory["id"], code=3)
    assert "--team" in said and "--local" in said
    assert "saved by alice" in team.bob.run("memory", "forget", memory["id"], code=3)
    assert len(team.alice.json("memory", "list")["memories"]) == 1
    done = team.alice.json("memory", "forget", memory["id"][:10], "--team")
    assert done["erasure_id"]
    if "compliance" in team.stack.facts.ports and (ROOT / "services/compliance/main.py").exists():
        assert done["state"] == "server_done"
    assert team.alice.traces("Wolframlantern") == []
    synced = team.bob.json("team", "sync")
    assert synced["pulled"]["erased"] == 1 and synced["erasures_confirmed"] and synced["verified"]
    assert team.bob.traces("Wolframlantern") == []
    assert team.alice.json("team", "sync")["verified"] and digest(team)[1] == 0


def test_older_and_lost_memories_are_made_right_by_the_next_sync(team: Team, tmp_path: Path) -> None:
    team.bob.run("memory", "add", "Bob measured the queue.")
    team.alice.run("memory", "add", DECISION)
    erased = team.alice.json("memory", "add", "The launch is called Wolframlantern.")["id"]
    hidden = team.alice.json("memory", "add", "The mascot is a Pomegranatefox.")["id"]
    team.join()
    files = team.bob.home / ".local/share/teamlore"
    shutil.copy(files / "memory.db", tmp_path / "copy.db")
    team.bob.run("memory", "forget", hidden, "--local")
    team.alice.run("memory", "forget", erased, "--team")
    assert team.bob.json("team", "sync")["erasures_confirmed"]
    shutil.copy(tmp_path / "copy.db", files / "memory.db")
    assert team.bob.traces("Wolframlantern") and team.bob.traces("Pomegranatefox")
    synced = team.bob.json("team", "sync")
    assert (synced["reconciled"], synced["gone_again"], synced["verified"]) == (
        "this laptop's memories are not those it knew", 2, True,
    )  # fmt: skip
    assert team.bob.traces("Wolframlantern") == team.bob.traces("Pomegranatefox") == []
    for file in files.glob("memory.db*"):
        file.write_bytes(b"garbage" * 1000)
    assert "Move it away" in " ".join(team.bob.run("team", "sync", code=1).split())
    for file in files.glob("memory.db*"):
        file.rename(tmp_path / file.name)
    synced = team.bob.json("team", "sync")
    assert (synced["pulled"]["restored"], synced["pulled"]["stored"], synced["verified"]) == (1, 1, True)
    memories = team.bob.json("memory", "list")["memories"]
    assert {(m["text"], m["saved_by"]) for m in memories} == {
        ("Bob measured the queue.", None), (DECISION, "user:alice"),
    }  # fmt: skip
    synced = team.bob.json("team", "sync")
    assert (synced["reconciled"], synced["verified"], sum(synced["pushed"].values())) == ("", True, 0)


KILLED = (
    "import os, signal\nfrom teamlore_client._state import SyncState\nfrom teamlore_client.cli import app\n"
    "SyncState.record_push = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\napp(['team', 'sync'])\n"
)
"""A sync that is killed when the server has committed its push and the answer is not written down yet."""


def test_a_sync_killed_before_it_heard_the_answer_makes_no_forget_lie(team: Team) -> None:
    team.join()
    ids = [
        team.alice.json("memory", "add", f"{word} is what Eve earns.")["id"]
        for word in ("Quartzlantern", "Pomegranate")
    ]
    environment = {"HOME": str(team.alice.home), "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-c", KILLED], cwd=team.alice.clone, env=environment, timeout=120)
    assert (done.returncode, digest(team)[1]) == (-9, 2)
    assert "the team may have this memory" in team.alice.run("memory", "forget", ids[0], code=3)
    assert team.alice.json("memory", "forget", ids[0], "--team")["state"] == "server_done"
    assert digest(team)[1] == 1 and team.alice.traces("Quartzlantern") == []
    team.alice.run("memory", "forget", ids[1], "--local")
    synced = team.alice.json("team", "sync")
    assert synced["verified"] and sum(synced["pushed"].values()) == 0 and synced["pulled"]["suppressed"] == 1
    assert team.alice.json("memory", "list")["memories"] == []
    team.bob.run("team", "sync")
    assert [m["id"] for m in team.bob.json("memory", "list")["memories"]] == ids[1:]


def test_forget_local_keeps_it_off_this_machine_even_from_the_start_and_when_joined_again(team: Team) -> None:
    team.alice.run("memory", "add", "The mascot is Pomegranatefox.")
    team.join()
    [memory] = team.bob.json("memory", "list")["memories"]
    team.bob.run("memory", "forget", memory["id"], "--local")
    assert team.bob.traces("Pomegranatefox") == []
    synced = team.bob.json("team", "sync", "--from-start")
    assert synced["pulled"]["suppressed"] == 1 and synced["verified"]
    assert team.bob.json("memory", "list")["memories"] == []
    team.bob.run("team", "leave")
    team.join("bob")
    assert team.bob.json("memory", "list")["memories"] == [] and team.bob.traces("Pomegranatefox") == []
    assert len(team.alice.json("memory", "list")["memories"]) == 1
    # Nor what is forgotten while the project is not shared, one's own too.
    team.alice.run("team", "leave")
    team.alice.run("memory", "forget", memory["id"])
    team.join("alice")
    assert team.alice.json("memory", "list")["memories"] == [] and digest(team)[1] == 1


def test_a_token_without_forget_changes_nothing_and_a_reader_still_pulls(team: Team) -> None:
    team.alice.run("memory", "add", DECISION)
    team.join("alice")
    team.tokens["bob"] = asyncio.run(team.stack.token("user:carol", ("project:*", "read")))
    team.join("bob")
    [memory] = team.bob.json("memory", "list")["memories"]
    error = team.bob.json("memory", "forget", memory["id"], "--team", code=4)["error"]
    assert (error["reason"], error["permission"]) == ("PERMISSION_DENIED", "forget")
    assert len(team.bob.json("memory", "list")["memories"]) == 1
    team.bob.run("memory", "add", "A reader's own note about something else entirely.")
    team.alice.run("memory", "add", "Deploys happen on Tuesdays.")
    team.alice.run("team", "sync")
    error = team.bob.json("team", "sync", code=4)["error"]
    assert (error["reason"], error["permission"]) == ("PERMISSION_DENIED", "write")
    assert len(team.bob.json("memory", "list")["memories"]) == 3


def test_an_archived_project_takes_nothing_and_what_is_erased_there_leaves_every_laptop(team: Team) -> None:
    team.alice.run("memory", "add", "The salaries are in the Zanzibarquartz folder.")
    team.join()
    [memory] = team.bob.json("memory", "list")["memories"]
    team.bob.run("memory", "add", "A note of Bob's that waits.")

    async def archive() -> None:
        async with team.stack.channel("auth") as channel:
            await access_pb2_grpc.AccessServiceStub(channel).ArchiveBank(
                access_pb2.ArchiveBankRequest(bank=team.bank), metadata=team.stack.credential(team.stack.admin)
            )

    asyncio.run(archive())
    team.alice.run("memory", "forget", memory["id"], "--team", "--yes")
    said = team.bob.run("team", "sync", code=4)
    assert "what waits here was not pushed" in said and "(BANK_ARCHIVED)" in said
    assert team.bob.traces("Zanzibarquartz") == []
    assert team.bob.json("team", "status")["pending_push"] == 1
    told = team.bob.json("team", "sync", "--from-start", code=4)
    assert (told["error"]["reason"], told["sync"]["push_refused"]) == ("BANK_ARCHIVED", "BANK_ARCHIVED")
    assert told["sync"]["verified"] and told["sync"]["pushed"]["stored"] == 0


def test_a_held_project_is_left_as_it_is(team: Team) -> None:
    from teamlore.compliance.v1 import compliance_pb2, compliance_pb2_grpc

    team.alice.run("memory", "add", DECISION)
    team.join("alice")
    [memory] = team.alice.json("memory", "list")["memories"]

    async def hold() -> None:
        officer = await team.stack.token("user:olive", ("project:*", "comply"), kind="person")
        async with team.stack.channel("compliance") as channel:
            await compliance_pb2_grpc.ComplianceServiceStub(channel).PlaceHold(
                compliance_pb2.PlaceHoldRequest(bank=team.bank, matter="M-1"),
                metadata=team.stack.credential(officer),
            )

    asyncio.run(hold())
    said = team.alice.run("memory", "forget", memory["id"], "--team", code=4)
    assert "legal hold" in said and "nothing was changed" in said
    assert len(team.alice.json("memory", "list")["memories"]) == 1 and digest(team)[1] == 1
