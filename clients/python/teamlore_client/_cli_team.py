"""`teamlore team`: share this project's memories with a team, and stop doing so."""

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from teamlore_client._cli import Exit, Here, Json, Project, Stop, here, refusal
from teamlore_client._errors import Refused, ServerUnreachable
from teamlore_client._membership import TOKEN_VARIABLE, Membership
from teamlore_client._memory import FieldInvalid, Memory
from teamlore_client._pull import Place
from teamlore_client._sharing import pages, queue
from teamlore_client._show import as_json, line, minute
from teamlore_client._sync import Preview, Synced, preview, sync

app = typer.Typer(help="Share this project's memories with a team.", no_args_is_help=True)


@app.command()
def join(
    server: Annotated[str, typer.Argument(metavar="[SERVER]", help="The team's server.")] = "",
    server_option: Annotated[
        str,
        typer.Option(
            "--server", help="The same: https://host, auth=…,sync=…,feed=…,compliance=…, or @stack.json."
        ),
    ] = "",
    token: Annotated[
        str, typer.Option("--token", help=f"Your token; else {TOKEN_VARIABLE}, else it is asked for.")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Share without asking once more.")] = False,
    share_captured: Annotated[
        bool, typer.Option("--share-captured", help="Share captured turns too.")
    ] = False,
    project: Project = Path("."),
    json: Json = False,
) -> None:
    """Share this project: probe the server, show what would be sent, and send nothing before you confirm."""
    with here(project, json) as at:
        from teamlore_client._address import parse_address

        if bool(server) == bool(server_option):
            raise Stop(Exit.USAGE, "usage", "give the team's server once, as an argument or with --server")
        if not at.project.shareable:
            raise Stop(Exit.FAILED, "not_shareable", f"this project cannot be shared: {at.project.why}")
        address = parse_address(server or server_option)
        if address.in_clear:
            at.out.note(
                "warning: this address is not encrypted; the token and all texts can be read on the way"
            )
        given = token or _asked_token(at)
        with at.dial(address.text, given) as client:
            who = client.who_am_i(at.bank)
            client.list_changes(at.bank, "", 1)
            waiting = list(queue(at.laptop.store, at.laptop.state, at.bank, share_captured=share_captured))
            if not yes:
                _confirm(at, who.principal, waiting)
            membership = Membership(at.bank, address.text, at.laptop.state.device_id(), share_captured)
            client.register_device(at.bank, membership.device_id)
            kept = at.laptop.memberships.join(membership, token or None)
            with at.out.busy("first sync"):
                done = sync(at.laptop, client, membership)
        value = {
            "bank": at.bank,
            "principal": who.principal,
            "permissions": list(who.permissions),
            "token_kept_in": kept,
            "previewed": len(waiting),
            "sync": _synced_json(done),
        }
        at.out.answer(
            value,
            [f"joined {at.bank} as {who.principal} ({', '.join(who.permissions)})", *_synced_lines(done)],
        )


@app.command()
def status(project: Project = Path("."), json: Json = False) -> None:
    """Tell how sharing stands: server, permissions, last sync, and what waits on either side."""
    with here(project, json) as at:
        membership = at.membership()
        kept = at.laptop.state.status(at.bank)
        waiting = _waiting(at, membership)
        value: dict[str, Any] = {
            "bank": at.bank,
            "server": membership.url,
            "share_captured": membership.share_captured,
            "last_sync": kept.last_sync.isoformat() if kept.last_sync else None,
            "last_error": kept.last_error,
            "pending_push": waiting,
            "pulled": len(at.laptop.state.pulled(at.bank)),
            "reachable": False,
            "principal": None,
            "permissions": [],
            "pending_pull": None,
        }
        problem = ""
        try:
            with at.server(membership) as server:
                who = server.who_am_i(at.bank)
                value |= {"reachable": True, "principal": who.principal, "permissions": list(who.permissions)}
                head = server.get_head(at.bank)
                value["pending_pull"] = max(0, head.seq - Place.read(kept.cursor).seq)
        except ServerUnreachable as error:
            problem = f"not reachable now: {error}"
        except Refused as error:
            problem = refusal(error)
        except Stop as error:
            problem = str(error)
        value["problem"] = problem or None
        at.out.answer(value, _status_lines(value, minute(kept.last_sync) if kept.last_sync else "never"))


@app.command("sync")
def sync_(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would move, and move nothing.")
    ] = False,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Compare with everything that is live on the server.")
    ] = False,
    project: Project = Path("."),
    json: Json = False,
) -> None:
    """Push what waits and pull what changed, now."""
    with here(project, json) as at:
        membership = at.membership()
        with at.server(membership) as client:
            if dry_run:
                with at.out.busy("looking"):
                    seen = preview(at.laptop, client, membership)
                at.out.answer(_preview_json(seen), _preview_lines(seen))
                return
            with at.out.busy("syncing"):
                done = sync(at.laptop, client, membership, from_start=from_start)
        at.out.answer({"bank": at.bank} | _synced_json(done), _synced_lines(done))


@app.command()
def leave(
    keep_mirror: Annotated[
        bool, typer.Option("--keep-mirror", help="Keep teammates' memories here.")
    ] = False,
    project: Project = Path("."),
    json: Json = False,
) -> None:
    """Stop sharing this project and purge teammates' memories from disk. Your own stay, here and there."""
    with here(project, json) as at:
        at.membership()
        lock = at.laptop.try_lock(at.bank)
        if lock is None:
            raise Stop(
                Exit.FAILED, "busy", "a sync of this project is running; nothing was changed, try again"
            )
        with lock:
            theirs = [
                each.id
                for page in pages(at.laptop.store, at.bank)
                for each in page
                if each.author is not None
            ]
            purged, gone = 0, True
            if not keep_mirror:
                done = at.laptop.store.erase(theirs)
                purged, gone = len(done.erased), done.gone
            at.laptop.memberships.leave(at.bank)
            at.laptop.state.leave(at.bank)
        lines = [f"left {at.bank}; {purged} of your teammates' memories are gone from here"]
        if keep_mirror:
            lines = [f"left {at.bank}; {len(theirs)} of your teammates' memories stay here"]
        if not gone:
            lines.append("another process is reading; their bytes leave the disk at the next command")
        at.out.answer({"bank": at.bank, "purged": purged, "gone": gone}, lines)


def _asked_token(at: Here) -> str:
    if given := os.environ.get(TOKEN_VARIABLE, "").strip():
        return given
    if found := at.laptop.memberships.token(at.bank):  # joined again, to change a setting
        return found
    if not sys.stdin.isatty():
        raise FieldInvalid("token", f"give --token or set {TOKEN_VARIABLE}")
    return str(typer.prompt("Token", hide_input=True, err=True)).strip()


def _confirm(at: Here, principal: str, waiting: list[Memory]) -> None:
    at.out.note(f"{at.bank} as {principal}: {len(waiting)} memories would be sent")
    for memory in waiting[:3]:
        at.out.note(line(memory).plain)
    if not sys.stdin.isatty():
        raise Stop(
            Exit.FAILED, "not_confirmed", "nothing was stored or sent; confirm on a terminal or with --yes"
        )
    if not typer.confirm("Share them with the team?", err=True):
        raise Stop(Exit.FAILED, "not_confirmed", "nothing was stored or sent")


def _waiting(at: Here, membership: Membership) -> int:
    share_captured = membership.share_captured
    return sum(1 for _ in queue(at.laptop.store, at.laptop.state, at.bank, share_captured=share_captured))


def _synced_json(done: Synced) -> dict[str, Any]:
    return asdict(done)


def _synced_lines(done: Synced) -> list[str]:
    pulled = done.pulled
    pushed = ", ".join(f"{count} {answer}" for answer, count in done.pushed.items() if count) or "nothing"
    lines = [f"pushed: {pushed}", f"pulled: {pulled.stored} new, {pulled.erased} erased"]
    skipped = {
        "nearly the same as one of yours": pulled.near_duplicates,
        "hidden on this machine": pulled.suppressed,
        "could not be taken": pulled.unreadable,
    }
    lines += [f"skipped: {count} {why}" for why, count in skipped.items() if count]
    if done.reconciled:
        lines.append(
            f"compared with everything on the server ({done.reconciled}); {done.requeued} sent again"
        )
    return [
        *lines,
        "verified: both sides hold the same" if done.verified else "not verified: others are writing",
    ]


def _preview_json(seen: Preview) -> dict[str, Any]:
    return {
        "push": seen.push,
        "pull": seen.pull,
        "erase": seen.erase,
        "reconcile": seen.reconcile or None,
        "push_sample": [as_json(memory) for memory in seen.push_sample],
        "pull_sample": [as_json(memory) for memory in seen.pull_sample],
    }


def _preview_lines(seen: Preview) -> list[Any]:
    lines: list[Any] = [f"would push {seen.push}", *map(line, seen.push_sample)]
    if seen.reconcile:
        return [*lines, f"would compare with everything on the server ({seen.reconcile})"]
    return [*lines, f"would pull {seen.pull} and erase {seen.erase}", *map(line, seen.pull_sample)]


def _status_lines(value: dict[str, Any], last_sync: str) -> list[str]:
    lines = [
        f"project    {value['bank']}",
        f"server     {value['server']}",
        f"last sync  {last_sync}",
        f"to push    {value['pending_push']}",
    ]
    if value["principal"]:
        lines.insert(2, f"you are    {value['principal']} ({', '.join(value['permissions'])})")
    if value["pending_pull"] is not None:
        lines.append(f"to pull    {value['pending_pull']}")
    if value["last_error"]:
        lines.append(f"last error {value['last_error']}")
    return [*lines, f"problem    {value['problem']}"] if value["problem"] else lines
