"""The command `teamlore`.

Exit codes: 0 done; 1 failed; 2 wrong usage; 3 needs your decision, nothing changed; 4 refused by the server;
5 the server cannot be reached.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NoReturn

import typer
from typer.exceptions import TyperException

from teamlore_client._lazy import LazyGroup, LazyPart

_USAGE = 2


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

    def main(self, args: Sequence[str] | None = None, *rest: Any, **settings: Any) -> Any:
        """Run a command line. What is no text gets to no command, and with --json every end is one JSON object."""
        words = list(sys.argv[1:] if args is None else args)
        as_json = "--json" in (words[: words.index("--")] if "--" in words else words)
        for number, word in enumerate(words, start=1):
            if any("\ud800" <= each <= "\udfff" for each in word):
                _end("usage", f"word {number} of the command is not valid UTF-8", as_json, _USAGE)
        if not (as_json and settings.get("standalone_mode", True)):
            return super().main(words, *rest, **settings)
        try:
            code = super().main(words, *rest, **settings | {"standalone_mode": False})
        except TyperException as error:
            _end("usage", error.format_message(), as_json, error.exit_code)
        except typer.Abort:
            _end("aborted", "ended before it was done", as_json, 1)
        sys.exit(code if isinstance(code, int) else 0)


def _end(kind: str, message: str, as_json: bool, code: int) -> NoReturn:
    from teamlore_client._show import Output  # help need not wait for it

    Output(as_json).fail(kind, message)
    sys.exit(code)


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
