"""`teamlore admin grant` and `group`: permissions as data."""

from pathlib import Path
from typing import Annotated

import typer

from teamlore_client._ending import Exit, Json, Project, Stop
from teamlore_client._server import Server, asking
from teamlore_client._words import listed, split

grant_app = typer.Typer(help="Allow and deny permissions on banks.", no_args_is_help=True)
group_app = typer.Typer(help="Set and list groups.", no_args_is_help=True)

Subject = Annotated[str, typer.Argument(help="A principal, a group (team:…) or a pattern over principals.")]
Pattern = Annotated[str, typer.Argument(help="A pattern over banks, such as 'project:*'.")]
Deny = Annotated[bool, typer.Option("--deny", help="The deny instead of the allow; a deny beats all allows.")]


@grant_app.command("put")
def put_grant(
    subject: Subject,
    pattern: Pattern,
    permissions: Annotated[list[str], typer.Argument(help="read, write, forget, comply, admin.")],
    deny: Deny = False,
    server: Server = "",
    project: Project = Path("."),
    json: Json = False,
) -> None:
    """Set what a subject may do, or with --deny may not, on the banks that a pattern covers."""
    with asking(server, project, json) as at, at.connect() as client:
        from teamlore_client._admin_rpc import access_pb2

        words, effect = split(permissions), "deny" if deny else "allow"
        grant = access_pb2.AccessGrant(subject=subject, pattern=pattern, permissions=words, effect=effect)
        done = client.ask("PutGrant", access_pb2.PutGrantRequest(grant=grant))
        what = f"{effect} {subject} {pattern} {','.join(words)}"
        at.out.answer(done, [f"set: {what}" if done["changed"] else f"it stood so before: {what}"])


@grant_app.command("delete")
def delete_grant(
    subject: Subject,
    pattern: Pattern,
    deny: Deny = False,
    server: Server = "",
    project: Project = Path("."),
    json: Json = False,
) -> None:
    """Take a grant, or with --deny a deny, away."""
    with asking(server, project, json) as at, at.connect() as client:
        from teamlore_client._admin_rpc import access_pb2

        effect = "deny" if deny else "allow"
        request = access_pb2.DeleteGrantRequest(subject=subject, pattern=pattern, effect=effect)
        done = client.ask("DeleteGrant", request)
        what = f"{effect} {subject} {pattern}"
        at.out.answer(done, [f"gone: {what}" if done["deleted"] else f"there was none: {what}"])


@grant_app.command("list")
def list_grants(
    pattern: Annotated[str, typer.Argument(help="Only grants within this pattern of banks.")] = "*",
    subject: Annotated[str, typer.Option(help="Only grants of this subject.")] = "",
    server: Server = "",
    project: Project = Path("."),
    json: Json = False,
) -> None:
    """List grants and denies."""
    with asking(server, project, json) as at, at.connect() as client:
        from teamlore_client._admin_rpc import access_pb2

        with at.out.busy("listing grants"):
            request = access_pb2.ListGrantsRequest(pattern=pattern, subject=subject)
            found = list(client.pages("ListGrants", request, "grants"))
        rows = ([g["effect"], g["subject"], g["pattern"], listed(g["permissions"])] for g in found)
        at.out.table({"grants": found}, ("EFFECT", "SUBJECT", "BANKS", "PERMISSIONS"), rows)


@group_app.command("put")
def put_group(
    group: Annotated[str, typer.Argument(help="The group, team:….")],
    members: Annotated[list[str] | None, typer.Argument(help="All its members from now on.")] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Take all members out; the group is gone.")
    ] = False,
    server: Server = "",
    project: Project = Path("."),
    json: Json = False,
) -> None:
    """Set all members of a group; those whom an identity provider names stay."""
    with asking(server, project, json) as at:
        names = split(members)
        if bool(names) == remove:
            message = "name all members of the group, or none with --remove; nothing was changed"
            raise Stop(Exit.USAGE, "usage", message)
        from teamlore_client._admin_rpc import access_pb2

        with at.connect() as client:
            done = client.ask("PutGroup", access_pb2.PutGroupRequest(group=group, members=names))
        at.out.answer(done, [f"{group}: {done['added']} added, {done['removed']} removed"])


@group_app.command("list")
def list_groups(server: Server = "", project: Project = Path("."), json: Json = False) -> None:
    """List the groups and their members."""
    with asking(server, project, json) as at, at.connect() as client:
        from teamlore_client._admin_rpc import access_pb2

        with at.out.busy("listing groups"):
            found = list(client.pages("ListGroups", access_pb2.ListGroupsRequest(), "groups"))
        rows = ([each["group"], listed(each["members"])] for each in found)
        at.out.table({"groups": found}, ("GROUP", "MEMBERS"), rows)
