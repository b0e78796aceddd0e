"""Which server an admin's or a person's command talks to, and as whom; ends the command when that fails."""

import getpass
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from teamlore_client._address import SERVICES, Address, parse_address
from teamlore_client._ending import Exit, Stop
from teamlore_client._errors import AnswerWrong, Refused, ServerUnreachable, TeamloreError
from teamlore_client._membership import Membership, Memberships, MembershipUnreadable
from teamlore_client._memory import FieldInvalid
from teamlore_client._paths import config_dir
from teamlore_client._project import bank_of
from teamlore_client._show import Output

if TYPE_CHECKING:
    from teamlore_client._admin_rpc import AdminClient

SERVER_VARIABLE = "TEAMLORE_SERVER"
TOKEN_VARIABLE = "TEAMLORE_TOKEN"  # noqa: S105  # a name, not a token
Server = Annotated[
    str,
    typer.Option("--server", help=f"The team's server; else {SERVER_VARIABLE}, else the one joined here."),
]


@dataclass(frozen=True)
class Credential:
    """What a command calls as."""

    token: str
    source: str
    """`session`, `environment`, `membership` or `prompt`."""


@dataclass
class Asking:
    """A command that asks a server: where, for which project, and where its answer goes."""

    out: Output
    project: Path
    server: str

    def membership(self) -> Membership | None:
        """Return the membership of the project's bank, if it is joined."""
        return Memberships(config_dir()).get(self.bank())

    def bank(self) -> str:
        """Return the project's bank."""
        return bank_of(self.project).id

    def address(self) -> Address:
        """Return the server: the option's, the environment's, or that of the joined project."""
        given = self.server or os.environ.get(SERVER_VARIABLE, "").strip()
        if not given and (joined := self.membership()) is not None:
            given = joined.url
        if not given:
            message = f"which server? Give --server, set {SERVER_VARIABLE}, or call it in a joined project"
            raise Stop(Exit.USAGE, "no_server", message)
        address = parse_address(given)
        if address.in_clear:
            self.out.note("warning: this address is not encrypted; the token can be read on the way")
        return address

    def credential(self, address: Address, *, joined: bool = False) -> Credential:
        """Return this terminal's session, else the environment's token, else what is typed at a prompt.

        With `joined` the credential that `team join` stored comes before the prompt.
        """
        from teamlore_client._session import held

        if (session := held(place_of(address))) is not None:
            return Credential(session.secret, "session")
        if given := os.environ.get(TOKEN_VARIABLE, "").strip():
            return Credential(given, "environment")
        if joined and (kept := self._kept(address)) is not None:
            return Credential(kept, "membership")
        if not sys.stdin.isatty():
            message = f"no credential: run `teamlore login` on this terminal, or set {TOKEN_VARIABLE}"
            raise Stop(Exit.USAGE, "no_credential", message)
        return Credential(asked_secret("Token: "), "prompt")

    def connect(self) -> "AdminClient":
        """Return a connection to the server, as whom `credential` finds."""
        from teamlore_client._admin_rpc import AdminClient

        address = self.address()
        return AdminClient(address, self.credential(address).token)

    def _kept(self, address: Address) -> str | None:
        joined = self.membership()
        if joined is None or place_of(parse_address(joined.url)) != place_of(address):
            return None
        return Memberships(config_dir()).token(joined.bank)


@contextmanager
def asking(server: str, project: Path, as_json: bool) -> Iterator[Asking]:
    """Run a command that asks a server, and end it with the exit code of what goes wrong."""
    out = Output(as_json)
    try:
        yield Asking(out, project, server)
    except Stop as error:
        out.fail(error.kind, str(error))
        raise typer.Exit(error.code) from None
    except FieldInvalid as error:
        out.fail("field_invalid", str(error), field=error.field)
        raise typer.Exit(Exit.USAGE) from None
    except ServerUnreachable as error:
        out.fail("server_unreachable", f"the team's server cannot be reached: {error}")
        raise typer.Exit(Exit.OFFLINE) from None
    except Refused as error:
        out.fail(
            "refused", refused(error), reason=error.reason, field=error.field, permission=error.permission
        )
        bad = error.reason in ("FIELD_INVALID", "INVALID_ARGUMENT")
        raise typer.Exit(Exit.USAGE if bad else Exit.REFUSED) from None
    except (AnswerWrong, TeamloreError, MembershipUnreadable, OSError) as error:
        if isinstance(error, BrokenPipeError):  # whoever read the output has seen enough
            raise
        out.fail("failed", str(error))
        raise typer.Exit(Exit.FAILED) from None


def refused(error: Refused) -> str:
    """Say a refusal in words that tell what to do about it."""
    if error.reason == "PERSON_REQUIRED":
        return "this needs a person; run `teamlore login` on this terminal, then try again"
    if error.reason == "PERMISSION_DENIED":
        lacks = f"the permission `{error.permission}`" if error.permission else "the permission"
        return f"you lack {lacks} for this, and nothing was changed; `teamlore whoami --explain` tells why"
    if error.reason.startswith("CREDENTIAL_"):
        return (
            f"the server does not accept the credential ({error.message}); run `teamlore login` again,"
            f" or set another {TOKEN_VARIABLE}"
        )
    if error.reason == "UNIMPLEMENTED":
        return "the server does not know this call; it is older than this command"
    return f"the server refused: {error.message} ({error.reason})"


def asked_secret(prompt: str) -> str:
    """Ask for a secret on the terminal, without echo. Raises FieldInvalid for nothing typed."""
    try:
        given = getpass.getpass(prompt, stream=None).strip()
    except EOFError:
        given = ""
    if not given:
        raise FieldInvalid("token", "must not be empty")
    return given


def place_of(address: Address) -> str:
    """Return where an address leads, in one form however it was typed: a session goes nowhere else."""
    places = {
        name: f"{'https' if each.tls else 'http'}://{each.authority}"
        for name, each in address.targets.items()
    }
    if len(set(places.values())) == 1:
        return places[SERVICES[0]]
    return ",".join(f"{name}={places[name]}" for name in SERVICES)
