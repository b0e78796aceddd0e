"""What all commands share: options, the project they act on, and one exit code for each kind of failure."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import typer

from teamlore_client._ending import Exit, Json, Project, Stop, refusal
from teamlore_client._errors import Refused, ServerUnreachable, TeamloreError
from teamlore_client._laptop import Laptop, NoEmbedder
from teamlore_client._membership import TOKEN_VARIABLE, Membership, MembershipUnreadable
from teamlore_client._memory import AmbiguousId, FieldInvalid, UnknownId
from teamlore_client._paths import data_dir, state_dir
from teamlore_client._project import ProjectBank, bank_of
from teamlore_client._show import Output
from teamlore_client._sqlite import ReadTooLong, StoreTooNew, StoreUnreadable
from teamlore_client._store import EmbedderMismatch, IdTaken

__all__ = ["Exit", "Here", "Json", "Project", "Stop", "agreed", "here", "refusal"]

if TYPE_CHECKING:
    from teamlore_client._rpc import TeamClient


@dataclass(frozen=True)
class Here:
    """What a command works with: this laptop, and the project of the folder it was called in."""

    laptop: Laptop
    project: ProjectBank
    out: Output

    @property
    def bank(self) -> str:
        """The project's bank."""
        return self.project.id

    def membership(self) -> Membership:
        """Return the project's membership; ends the command when it is not shared."""
        found = self.laptop.memberships.get(self.bank)
        if found is None:
            raise Stop(
                Exit.FAILED, "not_joined", "this project is not shared; `teamlore team join` shares it"
            )
        return found

    def dial(self, server: str, token: str) -> "TeamClient":
        """Return a connection to a server, as a token."""
        from teamlore_client._address import parse_address  # what works offline need not load the network
        from teamlore_client._rpc import TeamClient

        return TeamClient(parse_address(server), token)

    def server(self, membership: Membership) -> "TeamClient":
        """Return a connection to the membership's server, as the token kept with it."""
        token = self.laptop.memberships.token(membership.bank)
        if token is None:
            message = f"there is no token for this project; join again or set {TOKEN_VARIABLE}"
            raise Stop(Exit.FAILED, "no_token", message)
        return self.dial(membership.url, token)


@contextmanager
def here(project: Path, as_json: bool) -> Iterator[Here]:
    """Open what a command works with, and end it with the exit code of what goes wrong."""
    out = Output(as_json)
    try:
        with Laptop() as laptop:
            yield Here(laptop, bank_of(project), out)
    except Stop as error:
        out.fail(error.kind, str(error))
        raise typer.Exit(error.code) from None
    except FieldInvalid as error:
        out.fail("field_invalid", str(error), field=error.field)
        raise typer.Exit(Exit.USAGE) from None
    except (UnknownId, AmbiguousId) as error:
        out.fail("unknown_id" if isinstance(error, UnknownId) else "ambiguous_id", str(error))
        raise typer.Exit(Exit.FAILED) from None
    except ServerUnreachable as error:
        cannot = "serve this now" if error.reason else "be reached"
        said = f"the team's server cannot {cannot}: {error}"
        _fail(out, error, "server_unreachable", said, reason=error.reason)
        raise typer.Exit(Exit.OFFLINE) from None
    except Refused as error:
        more = {"reason": error.reason, "field": error.field, "permission": error.permission}
        _fail(out, error, "refused", refusal(error), **more)
        raise typer.Exit(Exit.REFUSED) from None
    except apsw.Error as error:  # a full disk, a file that another process holds: SQLite's words name no file
        out.fail("store_failed", f"{error}, in the files of {data_dir()} and {state_dir()}")
        raise typer.Exit(Exit.FAILED) from None
    except (
        TeamloreError,
        MembershipUnreadable,
        EmbedderMismatch,
        IdTaken,
        StoreTooNew,
        StoreUnreadable,
        ReadTooLong,
        NoEmbedder,
        OSError,
    ) as error:
        if isinstance(error, BrokenPipeError):  # whoever read the output has seen enough
            raise
        _fail(out, error, _snake(type(error).__name__), str(error))
        raise typer.Exit(Exit.FAILED) from None


def agreed(out: Output, question: str) -> bool | None:
    """Ask on the terminal; None where there is none, or its input ended without an answer."""
    if out.as_json or not sys.stdin.isatty():
        return None
    try:
        return typer.confirm(question, err=True)
    except typer.Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # which ends every command alike
            raise KeyboardInterrupt from None
        return None


def _fail(out: Output, error: Exception, kind: str, message: str, **more: str) -> None:
    """Say what went wrong; after what a sync has done all the same."""
    done = error.synced if isinstance(error, TeamloreError) else None
    if done is None:
        out.fail(kind, message, **more)
        return
    from teamlore_client._show_sync import failed_lines  # loads the network

    out.lines(failed_lines(done))
    if done.push_refused:
        message = f"what waits here was not pushed: {message}; all else was done"
    out.fail(kind, message, {"sync": asdict(done)}, **more)


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
