"""How every command is called and how it ends: shared options, exit codes, refusals in words."""

from enum import IntEnum
from pathlib import Path
from typing import Annotated

import typer

from teamlore_client._errors import Refused

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Project = Annotated[
    Path,
    typer.Option("--project", help="A folder of the project.", file_okay=False, exists=True),
]


class Exit(IntEnum):
    """The exit codes, as the help of the command tells them."""

    FAILED = 1
    USAGE = 2
    DECIDE = 3
    REFUSED = 4
    OFFLINE = 5


class Stop(Exception):
    """The command ends here, for a reason that its user can read."""

    def __init__(self, code: Exit, kind: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.kind = kind


def refusal(error: Refused) -> str:
    """Say a refusal in words that tell what to do about it; what a sync has done before it is told beside."""
    alone = error.synced is None
    if error.reason == "BANK_HELD":
        held = "this project is under a legal hold"
        return f"{held}; nothing was changed, neither on the server nor here" if alone else held
    if error.reason == "PERMISSION_DENIED" and error.permission:
        lacks = f"your token lacks the permission `{error.permission}` on this project"
        return f"{lacks}; nothing was changed" if alone else lacks
    if error.reason.startswith("CREDENTIAL_"):
        return f"the server does not accept the token ({error.message}); join again with a new one"
    return f"the server refused: {error.message} ({error.reason})"
