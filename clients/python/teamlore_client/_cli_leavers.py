"""`teamlore admin offboard`, `suspend` and `resume`: a principal goes, and all that it holds is shown."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from teamlore_client._cli_tokens import row
from teamlore_client._ending import Json, Project
from teamlore_client._server import Server, asking

offboard_app = typer.Typer()
suspend_app = typer.Typer()
resume_app = typer.Typer()

Principal = Annotated[str, typer.Argument(help="The principal, user:…, agent:… or service:….")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what it holds; change nothing.")]
UNKNOWN = 3
"""The exit code where the server knows nothing of the principal: a mistyped name must not look like success."""
_ORDER = ("tokens", "grants", "groups", "memberships", "banks", "devices", "made")
_HEADS = {"made": "working tokens that it made or rotated for others"}


@offboard_app.command()
def offboard(
    principal: Principal,
    dry_run: DryRun = False,
    server: Server = "",
    project: Project = Path("."),
    json: Json = False,
) -> None:
    """Suspend a leaver and revoke all its tokens for good; shows everything that the leaver holds."""
    _suspend(principal, server, project, json, verb="off-boarded", revoke_tokens=True, dry_run=dry_run)


@suspend_app.command()
def suspend(
    principal: Principal,
    dry_run: DryRun = False,
    server: Server = "",
    project: Project = Path("."),
    json: Json = False,
) -> None:
    """Refuse a principal everywhere within about a second; its tokens and grants stay for `resume`."""
    _suspend(principal, server, project, json, verb="suspended", dry_run=dry_run)


@resume_app.command()
def resume(
    principal: Principal,
    dry_run: DryRun = False,
    server: Server = "",
    project: Project = Path("."),
    json: Json = False,
) -> None:
    """Let a suspended principal back in; tokens that were revoked stay so."""
    _suspend(principal, server, project, json, verb="resumed", resume=True, dry_run=dry_run)


def _suspend(
    principal: str, server: str, project: Path, json: bool, *, verb: str, dry_run: bool, **how: bool
) -> None:
    with asking(server, project, json) as at, at.connect() as client:
        from teamlore_client._admin_rpc import access_pb2

        request = access_pb2.SuspendPrincipalRequest(principal=principal, dry_run=dry_run, **how)
        with at.out.busy("looking for all that it holds"):
            held = client.ask("SuspendPrincipal", request)
        said = f"would be {verb}: {principal}; nothing was changed" if dry_run else f"{verb} {principal}"
        at.out.answer({"principal": principal, "dry_run": dry_run} | held, [said, *_lines(held)])
        if not held["known"]:
            done = "nothing was changed" if dry_run else "it was done all the same"
            at.out.note(f"warning: nothing is known of {principal}; is the name right? {done}")
            raise typer.Exit(UNKNOWN)


def _lines(held: dict[str, Any]) -> Iterator[str]:
    yield f"suspended now: {'yes' if held['suspended'] else 'no'}"
    for name in _ORDER:
        items = held[name]
        head = _HEADS.get(name, name)
        yield f"{head} ({len(items)})" if items else f"{head}: none"
        for item in items:
            yield f"  {_line(name, item)}"
    yield from _next_steps(held)


def _next_steps(held: dict[str, Any]) -> Iterator[str]:
    if not held["made"]:
        return
    yield "it may know these and they go on working; for each that its principal can do without:"
    for token in held["made"]:
        yield f"  teamlore admin token revoke {token['token_id']}"
    yield "or `teamlore admin token rotate` it, and hand the new one over; off-board a principal that nobody knows"
    if held["made_left_out"]:
        yield f"{held['made_left_out']} more of them had no room here: end these and ask again"


def _line(name: str, item: Any) -> str:
    if name in ("tokens", "made"):
        token_id, principal, kind, grants, groups, note, _, used, ends, state = row(item)
        whose = f"{principal} " if name == "made" else ""
        rest = f"{state}; banks: {grants}; groups: {groups}; used: {used}; ends: {ends}; {note}"
        return f"{token_id} {whose}{kind}, {rest}"
    if name == "grants":
        return f"{item['effect']} {item['subject']} {item['pattern']} {','.join(item['permissions'])}"
    if name == "memberships":
        return f"{item['team_id']} {item['role']}, {item['status']}"
    return str(item)
