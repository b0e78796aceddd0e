"""Laptops as processes: `python -m tests.robustness.laptops PLAN NAME` works as one person does with the real command.

Each has a home with a clone of two projects: in one every text is the only one of its kind and no push is checked, in the
other people save the same words at the same time and the server tells them. A laptop's clock is stepped at random, its
syncs are killed in the middle, it leaves and joins again, and it tells the team how its memories stand.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
from teamlore.sync.v1 import sync_pb2, sync_pb2_grpc

from tests.robustness.calls import next_standing, own_connection, until_done
from tests.robustness.checker import Acknowledged
from tests.robustness.history import Operation, Recorder
from tests.robustness.keeping import Copy
from tests.robustness.work import Plan

ROOT = Path(__file__).resolve().parents[2]
STEPS = (0.0, 0.0, 90.0, -90.0, 3 * 86_400.0, -3 * 86_400.0, 400 * 86_400.0)
"""Seconds that a laptop's clock may be off."""
OFFLINE = 5
SAME_WORDS_SECONDS = 20
"""So long all laptops save the same words, where repetitions are told."""
STATUSES = ("current", "contradicted", "suspect")
"""How the first, second, third version of a memory stand, and so on in turn."""
HAND = {"add": 8, "sync": 6, "erase": 2, "status": 2, "step_clock": 2, "leave": 1, "lose_store": 1}
"""How often a person does what, of so many things in a row."""


@dataclass
class Laptop:
    """One home with one clone of the project, on a clock that is `shift` seconds off."""

    folder: Path
    shift: float = 0.0
    project: str = "clone"

    @property
    def home(self) -> Path:
        """Its HOME."""
        return self.folder / "home"

    @property
    def clone(self) -> Path:
        """Its clone of the project."""
        return self.folder / self.project

    @classmethod
    def made(cls, folder: Path, origin: str, project: str = "clone") -> "Laptop":
        """A fresh clone, in a home that may be there."""
        laptop = cls(folder, project=project)
        laptop.home.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "init", "-q", str(laptop.clone)], check=True)
        subprocess.run(["git", "-C", str(laptop.clone), "remote", "add", "origin", origin], check=True)
        return laptop

    def start(self, *words: str) -> "subprocess.Popen[str]":
        """Starts the command with these words, and --json."""
        return subprocess.Popen(
            [sys.executable, "-m", "tests.robustness.stepped", str(self.shift), *words, "--json"],
            cwd=self.clone,
            env={
                "HOME": str(self.home),
                "PATH": os.environ["PATH"],
                "PYTHONPATH": f"{ROOT}:{ROOT / 'clients/python'}",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, timeout: float = 300) -> tuple[int, Any, str]:
        """Exit code, what it printed, and what it complained of."""
        process = self.start(*words)
        out, complaint = process.communicate(timeout=timeout)
        return process.returncode, json.loads(out) if out.strip() else {}, complaint

    def answer(self, *words: str) -> Any:
        """What it printed. Raises AssertionError where it fails."""
        code, answer, complaint = self.run(*words)
        assert code == 0, (words, code, answer, complaint)
        return answer

    def copy(self, bank: str) -> Copy:
        """What its files hold of a bank, read beside the command: the received digest, and the texts in the store."""
        state = _open(self.home / ".local/state/teamlore/sync.db")
        row = state.execute(
            "select received_count, received_sum from banks where bank = ?", (bank,)
        ).fetchone()
        count, total = (int(str(row[0])), int(str(row[1]))) if row else (0, 0)
        state.close()
        rows = []
        if self.store.exists():  # else it was lost, and no command made it anew
            store = _open(self.store)
            sql = "select id, text, version, status, author is null from memories where bank = ?"
            rows = [
                (str(i), str(t), int(str(v)), str(s), bool(own))
                for i, t, v, s, own in store.execute(sql, (bank,))
            ]
            store.close()
        texts = {memory_id: text for memory_id, text, *_ in rows}
        standing = {memory_id: (version, status) for memory_id, _, version, status, _ in rows}
        own = frozenset(memory_id for memory_id, *_, mine in rows if mine)
        return Copy(0, count, total % 2**64, texts, standing, own, self.ledger(bank))

    @property
    def store(self) -> Path:
        """The file of its memories."""
        return self.home / ".local/share/teamlore/memory.db"

    def ledger(self, bank: str) -> dict[str, tuple[str, str]]:
        """Id → the server's answer to all that it pushed or forgot, with what it duplicates or why it was refused."""
        state = _open(self.home / ".local/state/teamlore/sync.db")
        rows = state.execute("select id, answer, detail from ledger where bank = ?", (bank,)).fetchall()
        state.close()
        return {str(memory_id): (str(answer), str(detail)) for memory_id, answer, detail in rows}

    def joined(self, bank: str) -> bool:
        """Whether it shares a bank."""
        path = self.home / ".config/teamlore/team.json"
        return path.exists() and bank in json.loads(path.read_text())["banks"]


def _open(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    connection.set_busy_timeout(10_000)
    return connection


def told(laptop: Copy, operations: Sequence[Operation], acknowledged: Acknowledged) -> None:
    """Adds what the commands of one laptop were told of one bank: what is surely stored, surely erased, and perhaps either.

    Perhaps stored is what was saved and then to be erased, or lost here; perhaps erased what no erasure was answered of.
    """
    asked = {i for each in operations if each.what in ("laptop erase", "store lost") for i in each.ids}
    # What left the team with its words lost is in no ledger any more, which began anew.
    before = {i for each in operations if each.what == "store lost" for i in each.answer.get("there", [])}
    for each in operations:
        if each.what == "add" and each.end is not None:
            memory_id = str(each.answer["id"])
            if memory_id in before or laptop.ledger.get(memory_id, ("",))[0] in ("stored", "unchanged"):
                acknowledged.stored.append(memory_id)
            elif memory_id in asked:
                acknowledged.maybe.append(memory_id)
        elif each.what == "laptop erase" and each.answer.get("erasure_id"):
            acknowledged.erased += each.ids
        elif each.what == "laptop erase":
            acknowledged.maybe += each.ids
            acknowledged.maybe_dead |= set(each.ids)


class Person:
    """Works on a laptop until the plan says stop."""

    def __init__(self, plan: Plan, name: str) -> None:
        self.plan, self.name = plan, name
        projects = ("clone", "repeating")
        folder = Path(plan.folder) / "laptops" / name
        self.clones = {
            bank: Laptop(folder, project=project) for bank, project in zip(plan.shared, projects, strict=True)
        }
        self.recorder = Recorder(Path(plan.folder) / f"{name}.jsonl", name)
        self.random = random.Random(f"{plan.seed}-{name}")
        self.mine: dict[str, dict[str, int]] = {bank: {} for bank in plan.shared}
        """Bank → id → version of what was saved here and may be worked on."""
        self.repeated: set[str] = set()
        """Ids of words that others save too."""
        self.heard: dict[str, dict[str, str]] = {bank: {} for bank in plan.shared}
        """Bank → id → what it was told to duplicate."""
        self.takes = 3.0
        """Seconds that a sync takes just now, so that kills fall into all of it."""

    def work(self) -> None:
        """One thing after the other, at a person's pace; everything early on, so that a short run has it too."""
        quiet, tells = sorted(self.plan.shared, key=lambda bank: self.plan.shared[bank])
        early = [
            ("add", tells),
            ("sync", tells),
            ("add", quiet),
            ("sync", quiet),
            ("status", quiet),
            ("leave", tells),
        ]
        hand = early[::-1]
        while not self.plan.stopped():
            if not hand:
                hand = [
                    (what, self.random.choice(list(self.plan.shared)))
                    for what in HAND
                    for _ in range(HAND[what])
                ]
                self.random.shuffle(hand)
            what, bank = hand.pop()
            if self.clones[bank].joined(bank) or what in ("add", "step_clock"):
                getattr(self, what)(bank)
            else:  # the server was away when it came back
                self.join(bank)
            time.sleep(self.random.uniform(0, 0.5))

    def add(self, bank: str) -> None:
        """Saves a memory: mostly one that all save just now, where repetitions are told; else the only one of its kind."""
        repeated = self.plan.shared[bank] == "on" and self.random.random() < 0.7
        same = random.Random(f"{self.plan.seed}-{int(time.monotonic() // SAME_WORDS_SECONDS)}")
        text = self.text(same if repeated else self.random, repeated)
        number = self.recorder.begin("add", bank, [], text=text)
        code, answer, complaint = self.clones[bank].run("memory", "add", text)
        if self.judged("add", bank, code, answer, complaint, allowed=(0,)):
            self.recorder.end(number, id=answer["id"])
            self.mine[bank][answer["id"]] = 1
            self.repeated |= {answer["id"]} if repeated else set()

    def text(self, chance: random.Random, repeated: bool) -> str:
        """A number of its own keeps it from being the near-duplicate of any other."""
        one, other = (uuid.UUID(int=chance.getrandbits(128)) for _ in range(2))
        number = chance.randrange(10**12)
        if repeated and chance.random() < 0.5:
            do = self.random.choice(("enable", "disable"))
            return f"Decision {number}: always {do} the query cache on the replicas of {one}."
        return f"Decision {number}: {one} is what part {other} depends on."

    def some(self, bank: str) -> str:
        """One of its own to work on."""
        here = self.clones[bank].copy(bank).texts  # of a lost file what the team has comes back with the next sync
        ids = [memory_id for memory_id in self.mine[bank] if memory_id in here]
        return self.random.choice(ids) if ids else ""

    def erase(self, bank: str) -> None:
        """Erases one of its own for everyone, and what the team holds in its place."""
        if not (memory_id := self.some(bank)):
            return
        del self.mine[bank][memory_id]
        answered, held = self.clones[bank].ledger(bank).get(memory_id, ("", ""))
        ids = [memory_id, *([held] if answered == "duplicate" else [])]
        number = self.recorder.begin("laptop erase", bank, ids)
        words = ("memory", "forget", memory_id, "--team", *(["--yes"] if len(ids) > 1 else []))
        code, answer, complaint = self.clones[bank].run(*words)
        if self.judged("erase", bank, code, answer, complaint, allowed=(0, OFFLINE)) and code == 0:
            self.recorder.end(number, erasure_id=answer.get("erasure_id") or "")

    def status(self, bank: str) -> None:
        """Says how a memory of its own stands that the team has; nobody else says so of it."""
        ledger = self.clones[bank].ledger(bank)
        memory_id = self.some(bank)
        if ledger.get(memory_id, ("",))[0] not in ("stored", "unchanged"):
            return
        version = self.mine[bank][memory_id]
        status = STATUSES[version % len(STATUSES)]  # never the one that it has, which would be no step
        number = self.recorder.begin("status", bank, [memory_id])
        wrong: list[str] = []
        request = sync_pb2.UpdateStatusRequest(bank=bank, id=memory_id, version=version, status=status)
        answer = asyncio.run(self._status(request, wrong))
        for each in wrong:
            code, _, rest = each.partition(": ")
            if code == "NOT_FOUND" and memory_id in self.repeated:
                continue  # who saved the same words erased them for everyone meanwhile
            self.recorder.write("refused", what="laptop status", bank=bank, code=code, words=rest)
        if answer is not None:
            self.mine[bank][memory_id] = answer.version
            self.recorder.end(number, version=answer.version, status=status)

    async def _status(self, request: sync_pb2.UpdateStatusRequest, wrong: list[str]) -> Any:
        async with own_connection(self.plan.addresses["sync"]) as channel:
            update = next_standing(sync_pb2_grpc.SyncServiceStub(channel), request.version)
            return await until_done(update, request, self.plan.metadata(self.name), wrong)

    def step_clock(self, bank: str) -> None:
        """Its clock is off from now on."""
        shift = self.random.choice(STEPS)
        for each in self.clones.values():
            each.shift = shift
        self.recorder.write("fault", what="clock step", where=self.name, began=time.monotonic())

    def leave(self, bank: str) -> None:
        """Shares no more for a while, now and then with the teammates' memories kept, and joins again."""
        number = self.recorder.begin("leave", bank, [])
        keep = ["--keep-mirror"] if self.random.random() < 0.5 else []
        code, answer, complaint = self.clones[bank].run("team", "leave", *keep)
        if self.judged("leave", bank, code, answer, complaint, allowed=(0,)):
            self.recorder.end(number)
            time.sleep(self.random.uniform(0, 3))
            self.join(bank)

    def join(self, bank: str) -> None:
        """Shares again; where the server is away, at the next thing that there is to do."""
        number = self.recorder.begin("join", bank, [])
        server = ",".join(f"{name}={address}" for name, address in self.plan.addresses.items())
        words = ("team", "join", "--server", server, "--token", self.plan.tokens[self.name], "--yes")
        code, answer, complaint = self.clones[bank].run(*words)
        if self.judged("join", bank, code, answer, complaint, allowed=(0, OFFLINE)) and code == 0:
            self.recorder.end(number, duplicates=self.news(bank))

    def sync(self, bank: str) -> None:
        """Syncs; one in three is killed on the way."""
        number = self.recorder.begin("sync", bank, [])
        if self.random.random() < 0.33:
            process = self.clones[bank].start("team", "sync")
            try:
                process.communicate(timeout=self.takes * self.random.uniform(0.3, 1.1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                self.recorder.write(
                    "fault", what="kill -9 of a sync", where=self.name, began=time.monotonic()
                )
            return
        began = time.monotonic()
        code, answer, complaint = self.clones[bank].run("team", "sync")
        self.takes = time.monotonic() - began if code == 0 else self.takes
        if self.judged("sync", bank, code, answer, complaint, allowed=(0, OFFLINE)):
            facts = {name: answer.get(name) for name in ("seq", "verified", "reconciled", "requeued")}
            self.recorder.end(number, code=code, duplicates=self.news(bank), **facts)

    def news(self, bank: str) -> dict[str, str]:
        """What it was told of since to be duplicates."""
        ledger = self.clones[bank].ledger(bank)
        now = {i: detail for i, (answer, detail) in ledger.items() if answer == "duplicate"}
        new = dict(now.items() - self.heard[bank].items())
        self.heard[bank] |= new
        return new

    def lose_store(self, bank: str) -> None:
        """The file of its memories is gone, as one that was damaged and moved away."""
        for each, mine in self.mine.items():
            ledger = self.clones[each].ledger(each)
            # Of one that the team holds by another's the words come back, as that one.
            there = {i for i in mine if ledger.get(i, ("",))[0] in ("stored", "unchanged")}
            gone = self.recorder.begin("store lost", each, sorted(mine.keys() - there))
            self.recorder.end(gone, there=sorted(there))
            self.mine[each] = {i: version for i, version in mine.items() if i in there}
        store = self.clones[bank].store
        for path in store.parent.glob(f"{store.name}*"):
            path.unlink()

    def judged(
        self, what: str, bank: str, code: int, answer: Any, complaint: str, allowed: tuple[int, ...]
    ) -> bool:
        """Whether a command ended as it may; what it says of a server that is away is no fault."""
        error = answer.get("error", {}) if isinstance(answer, dict) else {}
        passing = error.get("reason") in ("DEPENDENCY_UNAVAILABLE", "KEYSTORE_UNAVAILABLE", "DRAINING")
        passing |= error.get("kind") == "not_shared"  # erased before it was ever sent
        if (code not in allowed and not passing) or "Traceback" in complaint:
            words = f"exit {code}: {json.dumps(error)[:300]} {complaint[-300:]}"
            self.recorder.write("refused", what=f"laptop {what}", bank=bank, code=str(code), words=words)
            return False
        return not passing


if __name__ == "__main__":
    Person(Plan.read(sys.argv[1]), sys.argv[2]).work()
