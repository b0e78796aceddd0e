"""`python -m stack`: run everything until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

from stack.errors import StackError
from stack.launch import launch
from stack.topology import Settings, address


async def run(settings: Settings) -> None:
    """Bring the stack up, print where it listens, stay until SIGINT or SIGTERM; StackError when it cannot."""
    async with launch(settings) as stack:
        if stack is None:
            return
        if stack.relocated is not None:
            print(f"postgres lies in {stack.relocated}: its user cannot reach {settings.data}")
        for name in stack.supervisor.names():
            print(f"{name:<12}{address(stack.facts, name)}")
        print("up; Ctrl-C stops all", flush=True)
        await stack.supervisor.wait()


def main() -> int:
    """Read the command line and the environment; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m stack", description="Run Teamlore on this machine.")
    parser.add_argument("--data", type=Path, default=Path(".data"), help="data folder (default: .data)")
    data = parser.parse_args().data.absolute()
    settings = Settings(
        data=data,
        database_url=os.environ.get("DATABASE_URL"),
        qdrant_url=os.environ.get("QDRANT_URL"),
    )
    try:
        asyncio.run(run(settings))
    except StackError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
