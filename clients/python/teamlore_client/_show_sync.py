"""What the commands of `teamlore team` say of a sync."""

from typing import Any

from teamlore_client._show import as_json, line
from teamlore_client._sync import Preview, Synced


def synced_lines(done: Synced) -> list[str]:
    """Return what a sync did."""
    pulled = done.pulled
    pushed = ", ".join(f"{count} {answer}" for answer, count in done.pushed.items() if count) or "nothing"
    lines = [f"pushed: {pushed}", f"pulled: {pulled.stored} new, {pulled.erased} erased"]
    if pulled.restored:
        lines.append(f"restored: {pulled.restored} of your own, which this laptop had lost and the team has")
    if done.gone_again:
        lines.append(f"erased again here: {done.gone_again} that came back with an older copy of the memories")
    skipped = {
        "nearly the same as one of yours": pulled.near_duplicates,
        "hidden on this machine": pulled.suppressed,
        "could not be taken": pulled.unreadable,
    }
    lines += [f"skipped: {count} {why}" for why, count in skipped.items() if count]
    if done.reconciled:
        lines.append(
            f"compared with everything on the server ({done.reconciled}); {done.requeued} sent again,"
            f" {done.erased_again} erased again, {pulled.dropped} of teammates' dropped that it does not have"
        )
    if done.kept_here:
        lines.append(f"{kept_line(done.kept_here)}; save it anew to share it")
    if done.erasing_refused:
        lines.append(
            f"what you had erased for everyone is live again, and the server refused to erase it"
            f" ({done.erasing_refused}); once it may, `teamlore team sync --from-start` asks again"
        )
    return [
        *lines,
        "verified: both sides hold the same" if done.verified else "not verified: others are writing",
    ]


def failed_lines(done: Synced) -> list[str]:
    """Return what a sync did that ended with an error; nothing where it had not come so far."""
    if done == Synced():
        return []
    return synced_lines(done) if done.verified or done.push_refused else synced_lines(done)[:-1]


def kept_line(count: int) -> str:
    """Return how many own memories are on this laptop alone, since the team forgot what it held in their place."""
    if count == 1:
        return "1 of yours repeats what was forgotten for the team; it stays on this laptop only"
    return f"{count} of yours repeat what was forgotten for the team; they stay on this laptop only"


def preview_json(seen: Preview) -> dict[str, Any]:
    """Return what a sync would do, for a program."""
    return {
        "push": seen.push,
        "pull": seen.pull,
        "erase": seen.erase,
        "reconcile": seen.reconcile or None,
        "push_sample": [as_json(memory) for memory in seen.push_sample],
        "pull_sample": [as_json(memory) for memory in seen.pull_sample],
    }


def preview_lines(seen: Preview) -> list[Any]:
    """Return what a sync would do."""
    lines: list[Any] = [f"would push {seen.push}", *map(line, seen.push_sample)]
    if seen.reconcile:
        return [*lines, f"would compare with everything on the server ({seen.reconcile})"]
    return [*lines, f"would pull {seen.pull} and erase {seen.erase}", *map(line, seen.pull_sample)]


def status_lines(value: dict[str, Any], last_sync: str) -> list[str]:
    """Return how sharing stands; `value` is the answer to a program."""
    lines = [
        f"project    {value['bank']}",
        f"server     {value['server']}",
        f"last sync  {last_sync}",
        f"to push    {value['pending_push']}",
    ]
    if value["kept_here"]:
        lines.append(f"only here  {kept_line(value['kept_here'])}")
    if value["principal"]:
        lines.insert(2, f"you are    {value['principal']} ({', '.join(value['permissions'])})")
    if value["pending_pull"] is not None:
        lines.append(f"to pull    {value['pending_pull']}")
    if value["last_error"]:
        lines.append(f"last error {value['last_error']}")
    return [*lines, f"problem    {value['problem']}"] if value["problem"] else lines
