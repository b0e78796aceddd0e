"""Laptops as processes: `python -m tests.robustness.laptops PLAN BANK NAME` works as one person does with the real command.

Each has a home and a clone of its own. Its clock is stepped at random, and its syncs are killed in the middle.
"""

import json
import os
import random
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from tests.robustness.history import Recorder
from tests.robustness.verdict import Copy
from tests.robustness.work import Plan

ROOT = Path(__file__).resolve().parents[2]
STEPS = (0.0, 0.0, 90.0, -90.0, 3 * 86_400.0, -3 * 86_400.0, 400 * 86_400.0)
"""Seconds that a laptop's clock may be off."""
OFFLINE = 5


@dataclass
class Laptop:
    """One home with one clone of the project, on a clock that is `shift` seconds off."""

    folder: Path
    shift: float = 0.0

    @property
    def home(self) -> Path:
        """Its HOME."""
        return self.folder / "home"

    @property
    def clone(self) -> Path:
        """Its clone of the project."""
        return self.folder / "clone"

    @classmethod
    def made(cls, folder: Path, origin: str) -> "Laptop":
        """A fresh one."""
        laptop = cls(folder)
        laptop.home.mkdir(parents=True)
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
        store = _open(self.home / ".local/share/teamlore/memory.db")
        texts = {
            str(i): str(t) for i, t in store.execute("select id, text from memories where bank = ?", (bank,))
        }
        store.close()
        return Copy(0, count, total % 2**64, texts)

    def ledger(self, bank: str) -> dict[str, str]:
        """Id → the server's answer to all that it pushed or forgot."""
        state = _open(self.home / ".local/state/teamlore/sync.db")
        rows = state.execute("select id, answer from ledger where bank = ?", (bank,)).fetchall()
        state.close()
        return {str(memory_id): str(answer) for memory_id, answer in rows}


def _open(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    connection.set_busy_timeout(10_000)
    return connection


def told(
    laptop: Laptop, bank: str, lines: list[tuple[str, str, bool]]
) -> tuple[list[str], list[str], list[str]]:
    """Of what a laptop added and erased, (what, id, answered): ids surely stored, surely erased, and perhaps either."""
    ledger = laptop.ledger(bank)
    stored = [i for what, i, _ in lines if what == "add" and ledger.get(i) in ("stored", "unchanged")]
    erased = [i for what, i, answered in lines if what == "erase" and answered]
    perhaps = [i for what, i, _ in lines if what == "add" and i not in stored]
    perhaps += [i for what, i, answered in lines if what == "erase" and not answered]
    return stored, erased, perhaps


class Person:
    """Works on a laptop until the plan says stop."""

    def __init__(self, plan: Plan, name: str, laptop: Laptop, bank: str) -> None:
        self.plan, self.name, self.laptop, self.bank = plan, name, laptop, bank
        self.recorder = Recorder(Path(plan.folder) / f"{name}.jsonl", name)
        self.random = random.Random(f"{plan.seed}-{name}")
        self.mine: list[str] = []
        self.takes = 3.0
        """Seconds that a sync takes just now, so that kills fall into all of it."""

    def work(self) -> None:
        """One thing after the other, at a person's pace."""
        while not self.plan.stopped():
            chance = self.random.random()
            if chance < 0.4:
                self.add()
            elif chance < 0.5 and self.mine:
                self.erase()
            elif chance < 0.6:
                self.laptop.shift = self.random.choice(STEPS)
                self.recorder.write("fault", what="clock step", where=self.name, began=time.monotonic())
            else:
                self.sync()
            time.sleep(self.random.uniform(0, 0.5))

    def add(self) -> None:
        """Saves a memory; a number of its own keeps it from being anyone's near-duplicate."""
        text = f"Decision {self.random.randrange(10**12)}: {uuid.uuid4()} is what part {uuid.uuid4()} depends on."
        number = self.recorder.begin("add", self.bank, [])
        code, answer, complaint = self.laptop.run("memory", "add", text)
        if self.judged("add", code, answer, complaint, allowed=(0,)):
            self.recorder.end(number, id=answer["id"])
            self.mine.append(answer["id"])

    def erase(self) -> None:
        """Erases one of its own for everyone."""
        memory_id = self.mine.pop(self.random.randrange(len(self.mine)))
        number = self.recorder.begin("laptop erase", self.bank, [memory_id])
        code, answer, complaint = self.laptop.run("memory", "forget", memory_id, "--team")
        if self.judged("erase", code, answer, complaint, allowed=(0, OFFLINE)) and code == 0:
            self.recorder.end(number, erasure_id=answer.get("erasure_id") or "")

    def sync(self) -> None:
        """Syncs; one in three is killed on the way."""
        number = self.recorder.begin("sync", self.bank, [])
        if self.random.random() < 0.33:
            process = self.laptop.start("team", "sync")
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
        code, answer, complaint = self.laptop.run("team", "sync")
        self.takes = time.monotonic() - began if code == 0 else self.takes
        if self.judged("sync", code, answer, complaint, allowed=(0, OFFLINE)):
            self.recorder.end(
                number, code=code, seq=answer.get("seq", 0), verified=answer.get("verified", False)
            )

    def judged(self, what: str, code: int, answer: Any, complaint: str, allowed: tuple[int, ...]) -> bool:
        """Whether a command ended as it may; what it says of a server that is away is no fault."""
        error = answer.get("error", {}) if isinstance(answer, dict) else {}
        passing = error.get("reason") in ("DEPENDENCY_UNAVAILABLE", "KEYSTORE_UNAVAILABLE", "DRAINING")
        passing |= error.get("kind") == "not_shared"  # erased before it was ever sent
        if (code not in allowed and not passing) or "Traceback" in complaint:
            words = f"exit {code}: {json.dumps(error)[:300]} {complaint[-300:]}"
            self.recorder.write("refused", what=f"laptop {what}", bank=self.bank, code=str(code), words=words)
            return False
        return not passing


if __name__ == "__main__":
    _plan, _bank, _name = Plan.read(sys.argv[1]), sys.argv[2], sys.argv[3]
    _laptop = Laptop(Path(_plan.folder) / "laptops" / _name)
    Person(_plan, _name, _laptop, _bank).work()
