"""Where the command `teamlore` begins: before it has loaded what it is made of, Ctrl-C ends it without a word."""

import os
import signal
import sys
from types import FrameType

_INTERRUPTED = 130  # by which a shell tells that a command was ended by Ctrl-C


def main() -> None:
    """Run the command."""
    # Nothing is open yet that wants closing; an exception would be printed with its traceback.
    before = signal.signal(signal.SIGINT, _end)
    from teamlore_client.cli import app  # takes a third of a second

    signal.signal(signal.SIGINT, before)
    try:
        app()
    except KeyboardInterrupt:  # where the command line itself is not yet, or no longer, at work
        sys.exit(_INTERRUPTED)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
