"""The story that shows the product: Alice's laptop and Bob's, as two HOMEs, speak to a running stack by the CLI."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from stack.errors import StackError
from stack.people import People
from stack.topology import Settings

DECISION = (
    "We use SQS for the order queue, because nobody here wants to run Kafka for forty messages a minute."
)
QUESTION = "which queue do we use"
ORIGIN = "https://git.example.com/acme/orders.git"
Say = Callable[[str], None]


class Laptop:
    """One person's HOME with a clone of the project; `run` is the `teamlore` command there."""

    def __init__(self, settings: Settings, people: People, name: str) -> None:
        self.name = name
        self.home = settings.data / "laptops" / name
        self.project = self.home / "orders"
        self._settings = settings
        self._token = people.tokens[name]

    def prepare(self) -> None:
        """Make HOME and clone where they are missing."""
        if not (self.project / ".git").exists():
            self.project.mkdir(parents=True, exist_ok=True, mode=0o700)
            for arguments in (("init", "-q"), ("remote", "add", "origin", ORIGIN)):
                subprocess.run(
                    ["git", *arguments], cwd=self.project, check=True, env=self._env(), capture_output=True
                )

    def _env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "LC_ALL")}
        return {**kept, "HOME": str(self.home)}

    async def run(self, *arguments: str, ok: tuple[int, ...] = (0,)) -> str:
        """Run `teamlore …` and return what it printed. Raises StackError with its last line when it fails."""
        process = await asyncio.create_subprocess_exec(
            self._settings.python, "-m", "teamlore_client.cli", *arguments,
            cwd=self.project, env=self._env(), stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        said, complained = await process.communicate()
        if process.returncode not in ok:
            last = (complained.decode().strip() or said.decode().strip()).splitlines()[-1:]
            raise StackError(f"{self.name}: `teamlore {' '.join(arguments[:2])}` failed: {''.join(last)}")
        return said.decode()

    async def join(self) -> None:
        """Join the team with the stack's own addresses. Raises StackError that says whose token is no longer good."""
        server = "@" + str(self._settings.data / "stack.json")
        try:
            await self.run("team", "join", "--server", server, "--token", self._token, "--yes")
        except StackError as error:
            raise StackError(f"{self.name}'s token in stack.json no longer works ({error})") from error


async def tell(settings: Settings, people: People, say: Say) -> str:
    """Let Alice save a decision and Bob recall it with her name; gives the memory's id. Harmless when repeated."""
    alice, bob = Laptop(settings, people, "alice"), Laptop(settings, people, "bob")
    for laptop in (alice, bob):
        laptop.prepare()
        await laptop.join()
    saved = [
        m
        for m in json.loads(await alice.run("memory", "list", "--json"))["memories"]
        if m["text"] == DECISION
    ]
    if saved:
        memory_id = str(saved[0]["id"])
        say(f"alice$ teamlore memory list\n  {DECISION}")
    else:
        say(f'alice$ teamlore memory add "{DECISION}"')
        memory_id = str(json.loads(await alice.run("memory", "add", DECISION, "--json"))["id"])
    say("alice$ teamlore team sync")
    await alice.run("team", "sync")
    say("bob$   teamlore team sync")
    await bob.run("team", "sync")
    await recall(bob, say)
    return memory_id


async def recall(bob: Laptop, say: Say) -> None:
    """Let Bob recall, from his own files. Raises StackError where Alice's decision does not come with her name."""
    say(f'bob$   teamlore memory recall "{QUESTION}"')
    found = await bob.run("memory", "recall", QUESTION)
    say("  " + found.strip().replace("\n", "\n  "))
    if "(alice)" not in found or "SQS" not in " ".join(found.split()):
        raise StackError("Bob's recall did not bring Alice's decision with her name")


async def erase(settings: Settings, people: People, memory_id: str, say: Say) -> None:
    """Let Alice erase the decision for the team and Bob's next sync purge it. Raises StackError where it stays."""
    alice, bob = Laptop(settings, people, "alice"), Laptop(settings, people, "bob")
    say(f"alice$ teamlore memory forget {memory_id} --team")
    say("  " + (await alice.run("memory", "forget", memory_id, "--team")).strip().replace("\n", "\n  "))
    say("bob$   teamlore team sync")
    await bob.run("team", "sync")
    say("bob$   teamlore memory list")
    listed = await bob.run("memory", "list", "--json")
    if any(m["id"] == memory_id for m in json.loads(listed)["memories"]):
        raise StackError("the erased memory is still on Bob's laptop")
    left = [
        path
        for path in Path(bob.home).rglob("*")
        if path.is_file() and b"forty messages" in path.read_bytes()
    ]
    if left:
        raise StackError(f"the erased text is still in {left[0]}")
    say("  nothing: the memory and its bytes are gone")
