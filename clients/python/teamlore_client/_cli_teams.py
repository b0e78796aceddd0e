"""`teamlore admin team`: Teams, their members and their clients."""

import uuid
from pathlib import Path
from typing import Annotated, Any

import typer

from teamlore_client._ending import Exit, Json, Project, Stop
from teamlore_client._server import Server, asking

app = typer.Typer(help="Set Teams, their members and their clients.", no_args_is_help=True)

TeamId = Annotated[str, typer.Argument(metavar="TEAM_ID", help="The Team's id, a UUID.")]
Archived = Annotated[
    bool | None, typer.Option("--archive/--reopen", help="Stop its use, or take it up again.")
]


@app.command()
def put(
    name: Annotated[
        str, typer.Argument(help="The name that people see; that which stands if left out.")
    ] = "",
    team_id: Annotated[str, typer.Option("--id", help="The Team to change; a new one is made without.")] = "",
    archived: Archived = None,
    server: Server = "",
    project: Project = Path("."),
    json: Json = False,
) -> None:
    """Make a Team, or rename, archive or reopen one; what you do not name stays as it is."""
    with asking(server, project, json) as at:
        if not name and not team_id:
            raise Stop(Exit.USAGE, "usage", "name the new Team, or say which with --id")
        from teamlore_client._admin_rpc import access_pb2

        with at.connect() as client:
            before: dict[str, Any] = {}
            if team_id and (not name or archived is None):  # the call sets both, so the rest is read first
                teams = client.pages("ListTeams", access_pb2.ListTeamsRequest(), "teams")
                before = next((each for each in teams if each["team_id"] == team_id), {})
            if not (name := name or before.get("name", "")):
                raise Stop(Exit.FAILED, "unknown_id", f"there is no Team {team_id} yet; give its name")
            request = access_pb2.PutTeamRequest(
                team_id=team_id or str(uuid.uuid4()),
                name=name,
                archived=before.get("archived", False) if archived is None else archived,
            )
            done = client.ask("PutTeam", request)
        said = "set" if done["changed"] else "it stood so before"
        value = {"team_id": request.team_id, "name": name, "archived": request.archived} | done
        at.out.answer(value, [f"{said}: {request.team_id} {name}{' (archived)' if request.archived else ''}"])


@app.command("list")
def list_(server: Server = "", project: Project = Path("."), json: Json = False) -> None:
    """List the Teams with their members and clients."""
    with asking(server, project, json) as at, at.connect() as client:
        from teamlore_client._admin_rpc import access_pb2

        with at.out.busy("listing Teams"):
            found = list(client.pages("ListTeams", access_pb2.ListTeamsRequest(), "teams"))
        at.out.table({"teams": found}, ("ID", "NAME", "MEMBERS", "CLIENTS", "STATE"), map(_row, found))


@app.command()
def member(
    team_id: TeamId,
    principal: Annotated[str, typer.Argument(help="The person, user:….")],
    role: Annotated[str, typer.Option(help="owner, admin or member.")] = "member",
    status: Annotated[str, typer.Option(help="active, suspended or removed.")] = "active",
    server: Server = "",
    project: Project = Path("."),
    json: Json = False,
) -> None:
    """Set a person's role in a Team, suspend it or remove it."""
    with asking(server, project, json) as at, at.connect() as client:
        from teamlore_client._admin_rpc import access_pb2

        request = access_pb2.PutMembershipRequest(
            team_id=team_id, principal=principal, role=role, status=status
        )
        done = client.ask("PutMembership", request)
        said = "set" if done["changed"] else "it stood so before"
        at.out.answer(done, [f"{said}: {principal} is {role} of {team_id}, {status}"])


@app.command()
def client(
    team_id: TeamId,
    client_id: Annotated[str, typer.Argument(metavar="CLIENT_ID", help="The client's id in the Team.")],
    archive: Annotated[bool, typer.Option("--archive/--reopen", help="Stop its use, or take it up.")] = False,
    server: Server = "",
    project: Project = Path("."),
    json: Json = False,
) -> None:
    """Make a client of a Team, or archive or reopen it; its bank is client:<team>:<client>."""
    with asking(server, project, json) as at, at.connect() as connected:
        from teamlore_client._admin_rpc import access_pb2

        request = access_pb2.PutClientRequest(team_id=team_id, client_id=client_id, archived=archive)
        done = connected.ask("PutClient", request)
        said = "set" if done["changed"] else "it stood so before"
        at.out.answer(done, [f"{said}: {done['bank']}{' (archived)' if archive else ''}"])


def _row(team: dict[str, Any]) -> list[str]:
    members = "\n".join(
        f"{each['principal']} {each['role']}" + ("" if each["status"] == "active" else f" ({each['status']})")
        for each in team["members"]
    )
    clients = "\n".join(
        each["client_id"] + (" (archived)" if each["archived"] else "") for each in team["clients"]
    )
    state = "archived" if team["archived"] else "active"
    return [team["team_id"], team["name"], members or "-", clients or "-", state]
