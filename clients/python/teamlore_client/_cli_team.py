"""`teamlore team`: share this project's memories with a team, and stop doing so."""

import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from teamlore_client._address import Address, parse_address
from teamlore_client._cli import Exit, Here, Json, Project, Stop, agreed, here, refusal
from teamlore_client._errors import Refused, ServerUnreachable, TeamloreError
from teamlore_client._membership import TOKEN_VARIABLE, Membership
from teamlore_client._memory import FieldInvalid, Memory
from teamlore_client._pull import Place
from teamlore_client._server import SERVER_VARIABLE, asked_secret, place_of
from teamlore_client._session import held
from teamlore_client._sharing import kept_here, pages, queue
from teamlore_client._show import line, minute
from teamlore_client._show_sync import preview_json, preview_lines, status_lines, synced_lines
from teamlore_client._sync import preview, sync
from teamlore_client._wire import Identity

if TYPE_CHECKING:
    from teamlore_client._signing import PersonalKey

app = typer.Typer(help="Share this project's memories with a team.", no_args_is_help=True)


@app.command()
def join(
    server: Annotated[
        str, typer.Argument(metavar="[SERVER]", help=f"The team's server; else {SERVER_VARIABLE}.")
    ] = "",
    server_option: Annotated[
        str,
        typer.Option(
            "--server", help="The same: https://host, auth=…,sync=…,feed=…,compliance=…, or @stack.json."
        ),
    ] = "",
    token: Annotated[
        str,
        typer.Option(
            "--token",
            help=f"A token of an agent, never of a person; else {TOKEN_VARIABLE}, the session of `teamlore login`,"
            " or a prompt, for both of which agents get a personal key.",
        ),
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
        if server and server_option:
            raise Stop(Exit.USAGE, "usage", "give the team's server once, as an argument or with --server")
        named = server or server_option or os.environ.get(SERVER_VARIABLE, "").strip()
        if not named:
            message = f"which server? Give it as an argument or with --server, or set {SERVER_VARIABLE}"
            raise Stop(Exit.USAGE, "no_server", message)
        if not at.project.shareable:
            raise Stop(Exit.FAILED, "not_shareable", f"this project cannot be shared: {at.project.why}")
        address = parse_address(named)
        if address.in_clear:
            at.out.note(
                "warning: this address is not encrypted; the token and all texts can be read on the way"
            )
        given = _given_token(at, address, token)
        with at.dial(address.text, given.text) as client:
            who = client.who_am_i(at.bank)
            _refuse_bare_person(given, who)
            client.get_head(at.bank)
            waiting = list(queue(at.laptop.store, at.laptop.state, at.bank, share_captured=share_captured))
            if not yes:
                _confirm(at, who.principal, waiting)
        # Agents get a key of their own from a person: what a file holds must never be the person.
        key = _key_of(at, address, given, who) if who.kind == "person" else None
        credential = key.token if key else given.text
        before = at.laptop.memberships.get(at.bank)
        with at.dial(address.text, credential) as client:
            membership = Membership(
                at.bank,
                address.text,
                at.laptop.state.device_id(),
                share_captured,
                key.token_id if key else "",
            )
            try:
                client.register_device(at.bank, membership.device_id)
                held = at.laptop.memberships.kept(at.bank)
                kept = at.laptop.memberships.join(membership, credential if key or given.keep else None)
            except BaseException:
                if key is not None:
                    _revoke(address.text, credential, key.token_id)
                raise
            if before is not None and before.key_id and held and held != credential:
                _revoke(before.url, held, before.key_id)  # by itself: no server is shown another one's token
            lines = [f"joined {at.bank} as {who.principal} ({', '.join(who.permissions)})"]
            if key is not None:
                until = f" until {minute(key.expires_at)}" if key.expires_at else ""
                lines.append(f"agents here use the personal key {key.token_id}{until}; join again to renew it")
            at.out.lines(lines)  # this stands, whatever becomes of the first sync
            with at.out.busy("first sync"):
                done = sync(at.laptop, client, membership)
        value = {
            "bank": at.bank,
            "principal": who.principal,
            "permissions": list(who.permissions),
            "token_kept_in": kept,
            "personal_key": key.token_id if key else None,
            "personal_key_ends": key.expires_at.isoformat() if key and key.expires_at else None,
            "previewed": len(waiting),
            "sync": asdict(done),
        }
        at.out.answer(value, synced_lines(done))


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
            "kept_here": len(kept_here(at.laptop.store, at.laptop.state, at.bank)),
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
        at.out.answer(value, status_lines(value, minute(kept.last_sync) if kept.last_sync else "never"))


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
                at.out.answer(preview_json(seen), preview_lines(seen))
                return
            with at.out.busy("syncing"):
                done = sync(at.laptop, client, membership, from_start=from_start)
        at.out.answer({"bank": at.bank} | asdict(done), synced_lines(done))


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
        membership = at.membership()
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
            retired = _retire(at, membership)
            revoked = _revoke_own(at, membership)
            at.laptop.memberships.leave(at.bank)
            at.laptop.state.leave(at.bank)
        lines = [f"left {at.bank}; {purged} of your teammates' memories are gone from here"]
        if keep_mirror:
            lines = [f"left {at.bank}; {len(theirs)} of your teammates' memories stay here"]
        if not gone:
            lines.append("another process is reading; their bytes leave the disk at the next command")
        if revoked is False:
            lines.append(
                f"the server did not hear of it: the key {membership.key_id} still works until it ends;"
                f" revoke it with `teamlore admin token revoke {membership.key_id}`"
            )
        if not retired:
            lines.append(
                f"the server did not hear that this laptop left: receipts go on naming {membership.device_id}"
                " as unconfirmed until an admin of the bank retires it"
            )
        value = {
            "bank": at.bank,
            "purged": purged,
            "gone": gone,
            "device_retired": retired,
            "key_revoked": revoked,
        }
        at.out.answer(value, lines)


@dataclass(frozen=True)
class _Given:
    """The credential that a join begins with."""

    text: str
    keep: bool
    """False for what is kept already, or is not ours to keep."""
    lies_in: str = ""
    """Where others can read it: the option or the variable that it came by; empty for what was typed or is held."""


def _given_token(at: Here, address: Address, option: str) -> _Given:
    if option:
        return _Given(option, keep=True, lies_in="--token")
    if given := os.environ.get(TOKEN_VARIABLE, "").strip():
        return _Given(given, keep=True, lies_in=TOKEN_VARIABLE)
    session = held(place_of(address))
    if kept := _kept_there(at, address):
        joined = at.laptop.memberships.get(at.bank)
        own = joined is not None and joined.key_id
        # Joined again, to change a setting; who is signed in renews the laptop's own key by it.
        if session is None or (not own and _accepted(at, address, kept)):
            return _Given(kept, keep=False)
    if session is not None:
        return _Given(session.secret, keep=False)
    if not _asks():
        raise FieldInvalid("token", f"give --token, set {TOKEN_VARIABLE}, or run `teamlore login` first")
    return _Given(asked_secret("Token: "), keep=True)


def _asks() -> bool:
    return sys.stdin.isatty()


def _kept_there(at: Here, address: Address) -> str | None:
    # Only for the server that it was given for: another one must not see it.
    joined = at.laptop.memberships.get(at.bank)
    if joined is None or place_of(parse_address(joined.url)) != place_of(address):
        return None
    return at.laptop.memberships.kept(at.bank)


def _accepted(at: Here, address: Address, token: str) -> bool:
    try:
        with at.dial(address.text, token) as client:
            client.who_am_i(at.bank)
    except Refused:
        return False
    return True


def _refuse_bare_person(given: _Given, who: Identity) -> None:
    """End the command for a person's credential that lies where agents can read it: only theirs may."""
    if who.kind == "person" and given.lies_in:
        message = (
            f"{given.lies_in} holds a person's token, which the shell's history, other programs and agents can read;"
            " nothing was stored or sent. Run `teamlore login` and join again without it, or type the token when you"
            " are asked: agents here then get a key of their own"
        )
        raise Stop(Exit.USAGE, "person_token", message)


def _key_of(at: Here, address: Address, given: _Given, who: Identity) -> "PersonalKey":
    from teamlore_client._signing import mint_key, revoke_session, start_session

    if who.person_present:
        return mint_key(address, given.text, at.bank)
    session = start_session(at.out, address, given.text)
    try:
        return mint_key(address, session.secret, at.bank)
    finally:
        revoke_session(session)


def _retire(at: Here, membership: Membership) -> bool:
    """Tell the server that this laptop is no mirror any more; False where it did not hear."""
    token = at.laptop.memberships.token(at.bank)
    if token is None:
        return False
    try:
        with at.dial(membership.url, token) as client:
            client.retire_device(at.bank, membership.device_id)
    except TeamloreError:
        return False
    return True


def _revoke_own(at: Here, membership: Membership) -> bool | None:
    """Revoke the personal key of this laptop; None where it has none, False where the server did not hear."""
    kept = at.laptop.memberships.kept(at.bank) if membership.key_id else None
    if not membership.key_id:
        return None
    return kept is not None and _revoke(membership.url, kept, membership.key_id)


def _revoke(server: str, credential: str, token_id: str) -> bool:
    from teamlore_client._signing import revoke

    return revoke(parse_address(server), credential, token_id)


def _confirm(at: Here, principal: str, waiting: list[Memory]) -> None:
    at.out.note(f"{at.bank} as {principal}: {len(waiting)} memories would be sent")
    for memory in waiting[:3]:
        at.out.note(line(memory).plain)
    answer = agreed(at.out, "Share them with the team?")
    if not answer:
        how = "; confirm on a terminal or with --yes" if answer is None else ""
        raise Stop(Exit.DECIDE, "not_confirmed", f"nothing was stored or sent{how}")


def _waiting(at: Here, membership: Membership) -> int:
    share_captured = membership.share_captured
    return sum(1 for _ in queue(at.laptop.store, at.laptop.state, at.bank, share_captured=share_captured))
