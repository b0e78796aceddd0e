"""The command `teamlore`.

Exit codes: 0 done; 1 failed; 2 wrong usage; 3 needs your decision, nothing changed; 4 refused by the server;
5 the server cannot be reached.
"""

from collections.abc import Mapping
from typing import ClassVar

import typer

from teamlore_client._lazy import LazyGroup, LazyPart


class _Teamlore(LazyGroup):
    parts: ClassVar[Mapping[str, LazyPart]] = {
        "memory": LazyPart("_cli_memory", "app", "Save, list, recall and forget this project's memories."),
        "team": LazyPart("_cli_team", "app", "Share this project's memories with a team."),
        "whoami": LazyPart("_cli_whoami", "app", "Tell who you are here, what you may do, and why."),
        "login": LazyPart("_cli_login", "login_app", "Sign in as a person on this terminal, for 15 minutes."),
        "logout": LazyPart("_cli_login", "logout_app", "End this terminal's sessions."),
        "session": LazyPart("_cli_login", "session_app", "Tell which sessions this terminal has."),
        "admin": LazyPart(
            "_cli_admin", "app", "Manage who may do what: tokens, grants, groups, Teams, banks."
        ),
    }


app = typer.Typer(
    name="teamlore",
    cls=_Teamlore,
    help="What your team decided and why, recalled on this laptop and offline.",
    epilog="Exit codes: 0 done · 1 failed · 2 wrong usage · 3 needs a decision, nothing changed ·"
    " 4 refused by the server · 5 server unreachable",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a traceback with local variables would show the token
)


@app.callback()
def _root() -> None:
    """Hold the parts together; Typer makes a group only of what has a callback."""


def main() -> None:
    """Run the command."""
    app()


if __name__ == "__main__":
    main()
