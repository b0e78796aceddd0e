"""`teamlore admin token`: tokens are shown once; after that only their public ids are."""

from pathlib import Path
from typing import Annotated, Any

import typer

from teamlore_client._ending import Exit, Json, Project, Stop
from teamlore_client._server import Server, asking
from teamlore_client._words import grants, listed, moment, span, split, standing_of, until

app = typer.Typer(help="Create, list, rotate and revoke tokens.", no_args_is_help=True)

TokenId = Annotated[str, typer.Argument(metavar="TOKEN_ID", help="The public id, as `list` shows it.")]
COLUMNS = ("ID", "PRINCIPAL", "KIND", "GRANTS", "GROUPS", "NOTE", "MADE BY", "LAST USED", "ENDS", "STATE")


@app.command()
def create(
    principal: Annotated[str, typer.Option(help="For whom: user:…, agent:… or service:….")],
    kind: Annotated[
        str, typer.Option(help="person, agent or service; service for service:…, else agent.")
    ] = "",
    banks: Annotated[
        list[str] | None, typer.Option(help="A pattern of banks that the token may use; may be repeated.")
    ] = None,
    permissions: Annotated[
        list[str] | None, typer.Option(help="What it may do there: read, write, forget, comply, admin.")
    ] = None,
    groups: Annotated[
        list[str] | None, typer.Option(help="A group that the token belongs to, team:…; may be repeated.")
    ] = None,
    expires: Annotated[str, typer.Option(help="When it ends: 90d, or a date; never unless given.")] = "",
    note: Annotated[str, typer.Option(help="What it is for, without secrets.")] = "",
    server: Server = "",
    project: Project = Path("."),
    json: Json = False,
) -> None:
    """Create a token; it is shown now and never again. Read and write on --banks unless you say otherwise."""
    with asking(server, project, json) as at:
        patterns, words = split(banks), split(permissions)
        if words and not patterns:
            raise Stop(Exit.USAGE, "usage", "--permissions needs --banks: on which banks?")
        from teamlore_client._admin_rpc import access_pb2

        request = access_pb2.CreateTokenRequest(
            principal=principal,
            kind=kind or ("service" if principal.startswith("service:") else "agent"),
            grants=[
                access_pb2.Grant(pattern=each, permissions=words or ["read", "write"]) for each in patterns
            ],
            groups=split(groups),
            note=note,
        )
        if expires:
            request.expires_at.FromDatetime(until(expires, "expires"))
        with at.connect() as client:
            made = client.once("CreateToken", request)
        at.out.answer(made, _shown_once(made))


@app.command("list")
def list_(
    principal: Annotated[str, typer.Option(help="Only the tokens of this principal.")] = "",
    server: Server = "",
    project: Project = Path("."),
    json: Json = False,
) -> None:
    """List tokens, the newest first: your own, or everybody's for an admin of the deployment."""
    with asking(server, project, json) as at, at.connect() as client:
        from teamlore_client._admin_rpc import access_pb2

        with at.out.busy("listing tokens"):
            request = access_pb2.ListTokensRequest(principal=principal)
            found = list(client.pages("ListTokens", request, "tokens"))
        at.out.table({"tokens": found}, COLUMNS, map(row, found))


@app.command()
def rotate(
    token_id: TokenId,
    overlap: Annotated[
        str, typer.Option(help="For how long the old one goes on: 1h, 7d at most; 0 ends it now.")
    ] = "1h",
    server: Server = "",
    project: Project = Path("."),
    json: Json = False,
) -> None:
    """Replace a token by a new one with the same rights; the new one is shown now and never again."""
    with asking(server, project, json) as at:
        from teamlore_client._admin_rpc import access_pb2

        seconds = 0 if overlap.strip() == "0" else int(span(overlap, "overlap").total_seconds())
        with at.connect() as client:
            request = access_pb2.RotateTokenRequest(token_id=token_id, overlap_seconds=seconds)
            made = client.once("RotateToken", request)
        goes_on = f"the old one goes on for {overlap}" if seconds else "the old one is refused from now on"
        at.out.answer(made, [*_shown_once(made), goes_on])


@app.command()
def revoke(token_id: TokenId, server: Server = "", project: Project = Path("."), json: Json = False) -> None:
    """Revoke a token: it is refused everywhere within about a second; its row stays."""
    with asking(server, project, json) as at, at.connect() as client:
        from teamlore_client._admin_rpc import access_pb2

        done = client.ask("RevokeToken", access_pb2.RevokeTokenRequest(token_id=token_id))
        said = f"revoked {token_id}" if done["revoked"] else f"{token_id} was revoked before"
        at.out.answer({"token_id": token_id} | done, [said])


def row(token: dict[str, Any]) -> list[str]:
    """Return a token's row under COLUMNS."""
    return [
        token["token_id"],
        token["principal"],
        token["kind"],
        grants(token["grants"]),
        listed(token["groups"]),
        token["note"] or "-",
        token["created_by"],
        moment(token.get("last_used_at"), "never"),
        moment(token.get("expires_at"), "never"),
        standing_of(token),
    ]


def _shown_once(made: dict[str, Any]) -> list[str]:
    return [
        f"id     {made['token_id']}",
        f"token  {made['token']}",
        "it is shown this once; hand it over on a safe way",
    ]
