"""`teamlore memory`: save, list, recall and forget. All but `forget --team` works without a network."""

import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from teamlore_client import _sources
from teamlore_client._cli import Exit, Here, Json, Project, Stop, agreed, here
from teamlore_client._errors import Refused, ServerUnreachable
from teamlore_client._lock import BankLock
from teamlore_client._memory import CLAIM, Citation, FieldInvalid, Memory, check, new_id, scope_of, visible
from teamlore_client._show import as_json, details, label, line, shown, whole

if TYPE_CHECKING:
    from teamlore_client._wire import Doomed, Forgotten, Team

app = typer.Typer(help="Save, list, recall and forget this project's memories.", no_args_is_help=True)

_FACT_TYPE = re.compile(r"[a-z][a-z0-9_]{0,31}")
# The rule of the wire, word for word: what a source is, and what none is: a way out of the repository, a blank, what shows
# nothing or turns writing around.
OPENABLE = re.compile(
    r"^(https?://[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?(:[0-9]{1,5})?([/?#].*)?|repo:[^:#/]+([#/].*)?)$"
)
NOT_OPENABLE = re.compile(
    r"^repo:(.*/)?\.\.([/@#?]|$)|[\\\x00-\x20\x7f-\xa0"
    "\u00ad\u061c\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
_TEXT, _TAGS, _TAG, _CITATIONS, _CITED = 50_000, 50, 100, 20, 2_000
_NAMED, _BEGINS = 3, 60
_DONE_SECONDS = 30.0
_LOCK_SECONDS = 10.0


@app.command()
def add(
    text: Annotated[str, typer.Argument(help="What was decided, and why.")],
    tag: Annotated[list[str] | None, typer.Option(help="A tag; may be given more than once.")] = None,
    fact_type: Annotated[str, typer.Option(help="The kind of fact, such as `decision`.")] = "",
    occurred_at: Annotated[str, typer.Option(help="When it happened, in ISO 8601.")] = "",
    cite: Annotated[
        list[str] | None,
        typer.Option(help="A source that teammates can open: https://…, or repo:<path in the repository>."),
    ] = None,
    excerpt: Annotated[
        list[str] | None, typer.Option(help="Words of a source that only you can open.")
    ] = None,
    project: Project = Path("."),
    json: Json = False,
) -> None:
    """Save a memory. It is shared at the next sync when the project is joined."""
    with here(project, json) as at:
        memory = Memory(
            id=new_id(),
            bank=at.bank,
            scope=scope_of(at.bank),
            text=text,
            created_at=datetime.now(UTC),
            occurred_at=_moment(occurred_at),
            tags=tuple(tag or ()),
            fact_type=fact_type or None,
            citations=(
                *(Citation(uri=each) for each in cite or ()),
                *(Citation(excerpt=each) for each in excerpt or ()),
            ),
        )
        check(memory)
        _check_for_team(memory)
        with at.out.busy("saving"):
            at.laptop.vectors.add(memory, at.laptop.embed([text])[0])
        at.out.answer(as_json(memory), [f"saved {memory.id}"])


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many, the newest first.")] = 50,
    tag: Annotated[str | None, typer.Option(help="Only those with this tag.")] = None,
    project: Project = Path("."),
    json: Json = False,
) -> None:
    """List the project's memories, the newest first, each with its id."""
    with here(project, json) as at:
        found = at.laptop.store.list(at.bank, limit, tag=tag)
        value = {"bank": at.bank, "memories": [as_json(memory) for memory in found]}
        lines = [line(memory).append(f"  {memory.id}", style="dim") for memory in found]
        at.out.answer(value, lines or ["nothing is saved for this project yet"])


@app.command()
def show(
    id: Annotated[str, typer.Argument(help="The id, or how it begins.")],
    project: Project = Path("."),
    json: Json = False,
) -> None:
    """Show one memory with all that is known of it."""
    with here(project, json) as at:
        memory = at.laptop.store.get(id)
        standing = _standing(at, memory)
        at.out.answer(as_json(memory) | {"team": standing or None}, details(memory, standing))


@app.command()
def recall(
    query: Annotated[str, typer.Argument(help="What to look for, in your own words.")],
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many, the best first.")] = 10,
    project: Project = Path("."),
    json: Json = False,
) -> None:
    """Recall what is nearest to a question. Never uses the network."""
    with here(project, json) as at:
        if not query.strip():
            raise FieldInvalid("query", "must not be empty")
        vector = at.laptop.embed([query], "query")[0]
        hits = at.laptop.vectors.search(at.bank, vector, query, limit)
        memories = [as_json(hit.memory) | {"cosine": hit.cosine, "score": hit.score} for hit in hits]
        at.out.answer({"bank": at.bank, "memories": memories}, [whole(hit.memory) for hit in hits])


@app.command()
def forget(
    id: Annotated[str, typer.Argument(help="The id, or how it begins.")],
    team: Annotated[bool, typer.Option("--team", help="Erase it for everyone.")] = False,
    local: Annotated[
        bool, typer.Option("--local", help="Erase it on this machine only, and keep it off.")
    ] = False,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Also erase what the team holds in its place, and what was saved at once with it."),
    ] = False,
    project: Project = Path("."),
    json: Json = False,
) -> None:
    """Erase a memory from disk. A shared one needs --team or --local; without, nothing changes (exit 3).

    Where the team took yours for a duplicate, --team is about the memory that it holds: its author is named first.
    So are the other memories that go with it, since they were saved at once.
    """
    with here(project, json) as at:
        if team and local:
            raise Stop(Exit.USAGE, "usage", "--team and --local exclude each other")
        memory = at.laptop.store.get(id)
        joined = at.laptop.memberships.get(memory.bank) is not None
        if not joined:
            if team:
                raise Stop(
                    Exit.FAILED, "not_joined", "this memory's project is not shared; nothing was changed"
                )
            _erase_here(at, memory, {"scope": "own"}, f"forgot {memory.id}")
            return
        with _alone(at, memory.bank):
            if not (shared := _is_shared(at, memory)) and not at.laptop.state.perhaps_there(memory.bank, memory.id):
                if team and (held := _held_instead(at, memory)):
                    _agreed(at, memory, held, yes)
                    _forget_for_all(at, memory, also=held)
                    return
                if team:
                    raise Stop(
                        Exit.FAILED, "not_shared", "this memory is not on the server; nothing was changed"
                    )
                _erase_here(at, memory, {"scope": "own"}, f"forgot {memory.id}")
            elif team:
                _agreed(at, memory, "", yes)
                _forget_for_all(at, memory)
            elif local:
                keeps = "the team keeps it" if shared else "the team may have it"
                _erase_here(at, memory, {"scope": "local"}, f"hid {memory.id} on this machine; {keeps}")
            else:
                raise Stop(Exit.DECIDE, "scope_needed", _which_scope(memory, shared))


def _held_instead(at: Here, memory: Memory) -> str:
    """Return the id of the memory that the team holds in place of this one; empty for none."""
    pushed = at.laptop.state.ledger(memory.bank, [memory.id]).get(memory.id)
    return pushed.detail if pushed is not None and pushed.answer == "duplicate" else ""


def _agreed(at: Here, memory: Memory, held: str, yes: bool) -> None:
    """Name what else would go, and return once that is agreed to; nothing has changed by then.

    `held` is what the team holds in place of the memory, empty for none: its author is named first, and what it says
    where that is another text. So are the other chunks that go with it. Nothing is asked where only the memory itself goes.
    """
    membership = at.laptop.memberships.get(memory.bank)
    assert membership is not None  # the caller looked
    with at.server(membership) as server:
        doomed = server.doomed(memory.bank, held or memory.id)
        me = server.who_am_i(memory.bank).principal if held else ""
    if doomed is None:
        if not held:
            return  # erased or hidden before: forget says what is left to do
        message = f"the team no longer has {held}, which it held in place of this memory; nothing was changed"
        raise Stop(Exit.FAILED, "not_shared", message)
    if not held and not doomed.others:
        return
    by = "you" if doomed.author == me else label(doomed.author).strip("()")
    said = f"--team erases {memory.id} for everyone"
    if held:
        said = f"the team holds {held} (saved by {by}) in place of this memory; --team erases that for everyone"
        if doomed.text != memory.text:
            said += f'; it says "{shown(" / ".join(doomed.text.splitlines()))}"'
    said += _others(doomed)
    at.out.note(said)
    if yes:
        return
    least = "at least " if doomed.perhaps_more else ""
    answer = agreed(at.out, f"Erase {least}{1 + doomed.others} for everyone?")
    if answer is None:
        raise Stop(Exit.DECIDE, "scope_needed", f"{said}. Nothing was changed; say --yes to agree")
    if not answer:
        raise Stop(Exit.DECIDE, "not_confirmed", "nothing was changed")


def _others(doomed: "Doomed") -> str:
    if not doomed.others:
        return ""
    begins = [shown((text.splitlines() or [""])[0][:_BEGINS]) for text in doomed.texts[:_NAMED]]
    least = "at least " if doomed.perhaps_more else ""
    more = f", and {least}{doomed.others - len(begins)} more" if doomed.others > len(begins) else ""
    some = "; ".join(f'"{each}"' for each in begins)
    return f", and with it {least}{doomed.others} that the same author saved at once: {some}{more}"


def _forget_for_all(at: Here, memory: Memory, also: str = "") -> None:
    """Erase a memory for the team; `also` is what the team holds in its place, and then is what the team erases."""
    membership = at.laptop.memberships.get(memory.bank)
    assert membership is not None  # the caller looked
    with at.server(membership) as server:
        done = server.forget(memory.bank, [also or memory.id])  # a refusal ends here, before anything changed
        at.laptop.state.forget(memory.bank, [also or memory.id, memory.id], asked_here=True)
        # Another bank's memory is none of this one's business, though a ledger may name its id.
        gone = at.laptop.store.erase([memory.id, *([also] if also else [])], bank=memory.bank).gone
        with at.out.busy("erasing for everyone"):
            state = _followed(server, done)
    value = {
        "id": memory.id,
        "duplicate_of": also or None,
        "scope": "team",
        "gone": gone,
        "erased_count": done.erased,
        "erasure_id": done.erasure_id or None,
        "state": state,
    }
    if done.erasure_id:
        others = f" and {done.erased - 1} more that went with it" if done.erased > 1 else ""
        said = f"erased {also or memory.id}{others} for everyone; erasure {done.erasure_id}: {state}"
    else:
        said = f"the team has no {also or memory.id} any more and takes none; it is gone here too"
    at.out.answer(value, [said, *_if_not_gone(gone)])


def _followed(server: "Team", done: "Forgotten") -> str:
    """Wait for the servers to be done; what cannot be asked now stays as it was last known."""
    state = "hidden" if done.erasure_id else "server_done"
    end = time.monotonic() + _DONE_SECONDS
    while state != "server_done" and time.monotonic() < end:
        try:
            state = server.erasure_state(done.erasure_id)
        except (ServerUnreachable, Refused):
            break
        if state != "server_done":
            time.sleep(0.25)
    return state


def _erase_here(at: Here, memory: Memory, value: dict[str, str], said: str) -> None:
    # Whatever the server may have of it, or a feed may bring: it does not come back here, and does not go up.
    at.laptop.state.suppress(memory.bank, [memory.id])
    gone = at.laptop.store.erase([memory.id]).gone
    at.out.answer({"id": memory.id, "gone": gone} | value, [said, *_if_not_gone(gone)])


def _if_not_gone(gone: bool) -> list[str]:
    return [] if gone else ["another process is reading; its bytes leave the disk at the next command"]


def _alone(at: Here, bank: str) -> BankLock:
    # A sync that is under way may be pushing this very memory, so its fate is decided after that.
    end = time.monotonic() + _LOCK_SECONDS
    while (lock := at.laptop.try_lock(bank)) is None:
        if time.monotonic() > end:
            raise Stop(
                Exit.FAILED, "busy", "a sync of this project is running; nothing was changed, try again"
            )
        time.sleep(0.1)
    return lock


def _is_shared(at: Here, memory: Memory) -> bool:
    if memory.author is not None:
        return True
    pushed = at.laptop.state.ledger(memory.bank, [memory.id]).get(memory.id)
    return pushed is not None and pushed.answer in ("stored", "unchanged")


def _standing(at: Here, memory: Memory) -> str:
    if memory.author is not None:
        return "shared by a teammate"
    if memory.id in at.laptop.state.withheld(memory.bank):
        return "withheld"
    if at.laptop.memberships.get(memory.bank) is None:
        return ""
    pushed = at.laptop.state.ledger(memory.bank, [memory.id]).get(memory.id)
    if pushed is None:
        return "perhaps there" if at.laptop.state.perhaps_there(memory.bank, memory.id) else ""
    if memory.id in at.laptop.state.forgotten_instead(memory.bank):
        return f"only here: it repeats {pushed.detail}, which was forgotten for the team; save it anew to share it"
    return str(pushed)


def _which_scope(memory: Memory, shared: bool) -> str:
    by = "you" if memory.author is None else label(memory.author).strip("()")
    stands = f"this memory is shared with the team (saved by {by})"
    if not shared:
        stands = "the team may have this memory: no answer says that it does not; the next `teamlore team sync` asks"
    return (
        f"{stands}; nothing was changed. Erase it for everyone"
        " with --team (your token needs the permission `forget`), or hide it on this machine with --local"
    )


def _moment(given: str) -> datetime | None:
    if not given:
        return None
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        raise FieldInvalid("occurred_at", "must be a date or a time in ISO 8601") from None
    try:
        return moment.astimezone(UTC)
    except (OverflowError, ValueError, OSError):
        if moment.tzinfo is None:  # local time has no such date; its name is still meant
            return moment.replace(tzinfo=UTC)
        raise FieldInvalid("occurred_at", "must lie in the years 1 to 9999 in UTC") from None


def openable(uri: str) -> bool:
    """Return whether the wire takes a source, and teammates can open it as far as its form tells."""
    return OPENABLE.fullmatch(uri) is not None and NOT_OPENABLE.search(uri) is None and _sources.openable(uri)


def _check_for_team(memory: Memory) -> None:
    # The server's rules, told now rather than as a rejection at the next sync.
    if not visible(memory.text):
        raise FieldInvalid("text", "must hold a visible character")
    if len(memory.text) > _TEXT:
        raise FieldInvalid("text", f"must not be longer than {_TEXT:,} characters")
    if len(memory.tags) > _TAGS or any(not 1 <= len(tag) <= _TAG for tag in memory.tags):
        raise FieldInvalid("tags", f"must be at most {_TAGS}, each of 1 to {_TAG} characters")
    if memory.fact_type is not None and not _FACT_TYPE.fullmatch(memory.fact_type):
        raise FieldInvalid("fact_type", "must be a lower-case word of at most 32 letters, digits and _")
    if len(memory.citations) > _CITATIONS:
        raise FieldInvalid("citations", f"must be at most {_CITATIONS}")
    for each in memory.citations:
        if each.uri and not (openable(each.uri) and len(each.uri) <= _CITED):
            raise FieldInvalid(
                "cite",
                "must be https://…, http://… or repo:<path> that teammates can open, so no address or folder of your"
                " machine or network; for what only you can open give --excerpt",
            )
        if not each.uri and not (visible(each.excerpt) and len(each.excerpt) <= _CITED):
            raise FieldInvalid("excerpt", f"must hold a visible character, and at most {_CITED:,}")
    if memory.fact_type == CLAIM and not memory.citations:
        raise FieldInvalid("cite", "a claim names a source: give --cite, or --excerpt where only you can open it")
