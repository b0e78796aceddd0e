"""`teamlore admin`: who may do what, for those who decide it."""

from collections.abc import Mapping
from typing import ClassVar

import typer

from teamlore_client._lazy import LazyGroup, LazyPart


class _Admin(LazyGroup):
    parts: ClassVar[Mapping[str, LazyPart]] = {
        "token": LazyPart("_cli_tokens", "app", "Create, list, rotate and revoke tokens."),
        "grant": LazyPart("_cli_grants", "grant_app", "Allow and deny permissions on banks."),
        "group": LazyPart("_cli_grants", "group_app", "Set and list groups."),
        "team": LazyPart("_cli_teams", "app", "Set Teams, their members and their clients."),
        "bank": LazyPart("_cli_banks", "bank_app", "Make, show, list, archive and reopen banks."),
        "policy": LazyPart(
            "_cli_banks", "policy_app", "Set and show how a bank treats what is written to it."
        ),
        "apply": LazyPart(
            "_cli_apply", "app", "Make access what a YAML document says, or show the difference."
        ),
        "offboard": LazyPart("_cli_leavers", "offboard_app", "Suspend a leaver and revoke all its tokens."),
        "suspend": LazyPart("_cli_leavers", "suspend_app", "Refuse a principal everywhere; its tokens stay."),
        "resume": LazyPart("_cli_leavers", "resume_app", "Let a suspended principal back in."),
    }


app = typer.Typer(
    cls=_Admin,
    help="Manage who may do what. The server: --server, TEAMLORE_SERVER, or this project's. The credential:"
    " the session of `teamlore login`, TEAMLORE_TOKEN, or a prompt.",
    epilog="Exit codes: 0 done · 1 failed · 2 wrong usage · 4 refused by the server, or, with"
    " `apply --dry-run`, that something would change · 5 server unreachable",
    no_args_is_help=True,
)


@app.callback()
def _root() -> None:
    """Hold the parts together; Typer makes a group only of what has a callback."""
