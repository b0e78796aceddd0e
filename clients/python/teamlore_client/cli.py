"""The command `teamlore`.

Exit codes: 0 done; 1 failed; 2 wrong usage; 3 needs your decision, nothing changed; 4 refused by the server;
5 the server cannot be reached.
"""

import typer

from teamlore_client._cli_memory import app as memory
from teamlore_client._cli_team import app as team

app = typer.Typer(
    name="teamlore",
    help="What your team decided and why, recalled on this laptop and offline.",
    epilog="Exit codes: 0 done · 1 failed · 2 wrong usage · 3 needs a decision, nothing changed ·"
    " 4 refused by the server · 5 server unreachable",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a traceback with local variables would show the token
)
app.add_typer(memory, name="memory")
app.add_typer(team, name="team")


def main() -> None:
    """Run the command."""
    app()


if __name__ == "__main__":
    main()
