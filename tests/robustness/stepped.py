"""The laptop's command with a clock that was stepped: `python -m tests.robustness.stepped SECONDS WORDS…`.

Wall clock and dates of this one process run on from now plus SECONDS; what measures spans of time is left alone, as on
a machine whose clock was set.
"""

import sys
import time

import time_machine


def main() -> None:
    """Runs the command in a clock that is off."""
    shift, sys.argv = float(sys.argv[1]), ["teamlore", *sys.argv[2:]]
    with time_machine.travel(time.time() + shift, tick=True):
        from teamlore_client.cli import main as command

        command()


if __name__ == "__main__":
    main()
