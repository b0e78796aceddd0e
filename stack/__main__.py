"""`python -m stack`: run everything until Ctrl-C. `python -m stack demo`: tell the story on a stack that then goes.
`python -m stack clean`: remove what a stack has written.

Exit codes: 0 all went well, 1 something failed (one line on standard error says what), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stack import story
from stack.errors import StackError
from stack.launch import Stack, clean, launch
from stack.people import People, ensure_people
from stack.topology import Settings, address


def _say(text: str) -> None:
    print(text, flush=True)


async def run(settings: Settings) -> None:
    """Bring the stack up, tell the story, stay until SIGINT or SIGTERM. Raises StackError when it cannot."""
    started = time.monotonic()
    async with launch(settings, _say) as stack:
        if stack is None:
            return
        if stack.relocated is not None:
            _say(f"postgres lies in {stack.relocated}: its user cannot reach {settings.data}")
        people = await ensure_people(settings, stack.facts)
        _say(f"up after {time.monotonic() - started:.0f} s; now the story\n")
        await _tell_if_it_can_be(settings, people)
        _say("\n" + _next_steps(settings, stack))
        await stack.supervisor.wait()


async def _tell_if_it_can_be(settings: Settings, people: People) -> None:
    """Tell the story, or say in one line why not: who tries out access may well have shut its people out for good."""
    try:
        await story.tell(settings, people, _say)
    except (StackError, OSError, subprocess.SubprocessError, LookupError, ValueError) as error:
        _say(f"The story cannot be told again: {error}. `make demo` tells it on a private stack.")


def _next_steps(settings: Settings, stack: Stack) -> str:
    bob = settings.data / "laptops" / "bob"
    lines = [
        f"  {name:<11}{address(stack.facts, name)}"
        for name in stack.supervisor.names()
        if name in stack.facts.ports
    ]
    return "\n".join(
        [
            "The stack is up; Ctrl-C stops it and keeps its data. Addresses and tokens: "
            + str(settings.data / "stack.json"),
            *lines,
            "Try next, in another terminal, as Bob on his laptop:",
            f'  cd {bob}/orders && HOME={bob} {Path(settings.python).parent}/teamlore memory recall "{story.QUESTION}"',
        ]
    )


async def demo() -> None:
    """Tell the whole story, the erasure too, on a private stack with two HOMEs. Raises StackError where it fails."""
    with tempfile.TemporaryDirectory(prefix="teamlore-demo-") as folder:
        os.chmod(folder, 0o755)  # Postgres runs as another user when we are root; each part is closed itself
        settings = Settings(Path(folder) / "data")
        _say(
            "1. A team starts its services: Postgres, the vector engine, auth, sync, feed, compliance, index."
        )
        async with launch(settings, lambda text: None) as stack:
            if stack is None:
                return
            people = await ensure_people(settings, stack.facts)
            _say(
                "2. On Monday Alice's agent saves a decision; it syncs, and Bob's agent recalls it with her name."
            )
            memory_id = await story.tell(settings, people, _say)
            _say("3. Alice erases it for everyone. The server destroys its key and signs a receipt.")
            await story.erase(settings, people, memory_id, _say)
            _say("4. She saves it again under a new id, Bob syncs, and then every server process stops.")
            await story.tell(settings, people, lambda text: None)
            await stack.supervisor.stop()
        _say("5. On a plane, with nothing to talk to, Bob recalls it all the same.")
        await story.recall(story.Laptop(settings, people, "bob"), _say)
        _say("The story holds.")


def main() -> int:
    """Read the command line and the environment; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m stack", description="Run Teamlore on this machine.")
    parser.add_argument("command", nargs="?", choices=("run", "demo", "clean"), default="run")
    parser.add_argument("--data", type=Path, default=Path(".data"), help="data folder (default: .data)")
    arguments = parser.parse_args()
    settings = Settings(
        data=arguments.data.absolute(),
        database_url=os.environ.get("DATABASE_URL"),
        qdrant_url=os.environ.get("QDRANT_URL"),
        environ=os.environ,
    )
    try:
        if arguments.command == "clean":
            clean(settings)
            return 0
        asyncio.run(demo() if arguments.command == "demo" else run(settings))
    except StackError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
