"""`teamlore whoami`: who is calling, what it may do on this project's bank, and why."""

from pathlib import Path
from typing import Annotated, Any

import typer

from teamlore_client._ending import Json, Project
from teamlore_client._server import Asking, Server, asking
from teamlore_client._words import listed, moment

app = typer.Typer()

_SOURCES = {
    "session": "the session of this terminal",
    "environment": "TEAMLORE_TOKEN",
    "membership": "what `team join` stored; agents use it too",
    "prompt": "typed just now",
}


@app.command()
def whoami(
    bank: Annotated[
        str, typer.Option("--bank", help="The bank to tell about; this project's if left out.")
    ] = "",
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Tell which grant gives each permission, and which deny takes it."),
    ] = False,
    server: Server = "",
    project: Project = Path("."),
    json: Json = False,
) -> None:
    """Tell who you are to the server, what you may do on this project's bank, and, with --explain, why."""
    with asking(server, project, json) as at:
        bank = bank or at.bank()
        value = _asked(at, bank, explain)
        at.out.answer(value, [*_who(value), *_why(value)])


def _asked(at: Asking, bank: str, explain: bool) -> dict[str, Any]:
    from teamlore_client._admin_rpc import AdminClient, auth_pb2

    address = at.address()
    credential = at.credential(address, joined=True)
    with AdminClient(address, credential.token) as client:
        who = client.ask("WhoAmI", auth_pb2.WhoAmIRequest(bank=bank))
        value = {"bank": bank, "credential": credential.source} | who
        if explain:
            told = client.ask("ExplainAccess", auth_pb2.ExplainAccessRequest(bank=bank))
            value["explanation"] = told["permissions"]
    return value


def _who(value: dict[str, Any]) -> list[str]:
    def group(name: str) -> str:
        return f"{name} (of the token itself)" if name in value.get("token_groups", ()) else name

    person = "present" if value["person_present"] else "not present; `teamlore login` signs in"
    return [
        f"you are      {value['principal']}",
        f"credential   {value['kind']} {value['token_id']}, {_SOURCES[value['credential']]}",
        f"ends         {moment(value.get('expires_at'), 'never')}",
        f"person       {person}",
        f"groups       {listed(map(group, value['groups']))}",
        f"bank         {value['bank']}",
        f"you may      {listed(value['permissions'])}",
    ]


def _why(value: dict[str, Any]) -> list[str]:
    lines = []
    for each in value.get("explanation", ()):
        given, taken = listed(each["given_by"]), listed(each["taken_by"])
        why = "nothing gives it" if not each["given_by"] else f"given by {given}"
        if each["taken_by"]:
            why += f"; taken by {taken}"
        lines.append(f"  {each['permission']:<8} {'yes' if each['held'] else 'no ':<4} {why}")
    return lines
