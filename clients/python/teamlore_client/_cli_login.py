"""`teamlore login`, `logout` and `session`: a person, for 15 minutes, on one terminal."""

from pathlib import Path
from typing import Annotated

import typer

from teamlore_client._ending import Exit, Json, Project, Stop
from teamlore_client._server import Server, asking
from teamlore_client._session import NoHolder, Session, all_held, end, hold, on_terminal, supported
from teamlore_client._show import minute, shown
from teamlore_client._terminal import close_memory

login_app = typer.Typer()
logout_app = typer.Typer()
session_app = typer.Typer()

_EACH_ASKS = (
    "this system cannot keep a session apart from other programs, so none is kept:"
    " each command that needs a person will ask for a person token instead"
)


@login_app.command()
def login(server: Server = "", project: Project = Path("."), json: Json = False) -> None:
    """Sign in as a person, in the browser or with a person token; this terminal has the session for 15 minutes."""
    with asking(server, project, json) as at:
        address = at.address()
        if not supported():
            raise Stop(Exit.FAILED, "not_supported", _EACH_ASKS)
        if not on_terminal():
            message = "sign in on a terminal: the session belongs to it, and nothing else gets it"
            raise Stop(Exit.USAGE, "no_terminal", message)
        from teamlore_client._signing import start_session

        close_memory()
        session = start_session(at.out, address)
        try:
            hold(session)
        except NoHolder as error:
            raise Stop(Exit.FAILED, "not_held", f"{error}; commands ask for a person token instead") from None
        said = f"signed in as {session.principal} until {minute(session.expires_at)}, on this terminal only"
        at.out.answer(_told(session), [said, "`teamlore logout` ends it sooner"])


@logout_app.command()
def logout(
    everywhere: Annotated[
        bool, typer.Option("--all", help="End the sessions of all your terminals on this machine.")
    ] = False,
    json: Json = False,
) -> None:
    """End this terminal's sessions."""
    with asking("", Path("."), json) as at:
        from teamlore_client._signing import revoke_session

        sessions = all_held()
        ended = end(everywhere)
        revoked = sum(revoke_session(each) for each in sessions)
        said = f"signed out; {ended} ended" if ended else "nobody was signed in here"
        at.out.answer({"ended": ended, "revoked": revoked}, [said])


@session_app.command()
def session(json: Json = False) -> None:
    """Tell which sessions this terminal has; exit 1 when it has none."""
    with asking("", Path("."), json) as at:
        found = all_held()
        lines = [f"{s.principal} at {s.server} until {minute(s.expires_at)}" for s in found]
        at.out.answer(
            {"sessions": list(map(_told, found))}, lines or ["nobody is signed in on this terminal"]
        )
        if not found:
            raise typer.Exit(Exit.FAILED)


def _told(session: Session) -> dict[str, str]:
    return {
        "server": session.server,
        "principal": shown(session.principal),
        "token_id": session.token_id,
        "expires_at": session.expires_at.isoformat(),
    }
