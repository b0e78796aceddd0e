"""`teamlore admin apply`: access as a document that a team keeps in its repository."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from teamlore_client._ending import Exit, Json, Project
from teamlore_client._errors import Refused
from teamlore_client._memory import FieldInvalid
from teamlore_client._server import Server, asking, refused
from teamlore_client._show import shown

app = typer.Typer()

WOULD_CHANGE = 4
_LARGEST = 4 << 20  # no server takes a larger message
"""The exit code of a dry run that found a difference."""
_SIGNS = {"add": ("+", "green"), "change": ("~", "yellow"), "remove": ("-", "red")}


@app.command()
def apply(
    file: Annotated[str, typer.Argument(help="The document, such as access.yaml; - reads standard input.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the difference; exit 4 if there is one.")
    ] = False,
    server: Server = "",
    project: Project = Path("."),
    json: Json = False,
) -> None:
    """Make groups, grants, Teams and banks what a document says. Shows each difference: + added, ~ changed, - removed.

    With --dry-run nothing changes: exit 0 when nothing would, 4 when something would. A refusal exits 1 there, so
    that 4 has one meaning.
    """
    with asking(server, project, json) as at:
        called, text = _read(file)
        from teamlore_client._document import DocumentInvalid, read_document

        document = read_document(text, called)
        from teamlore_client._admin_rpc import access_pb2

        request = access_pb2.ApplyAccessRequest(document=document.message, dry_run=dry_run)
        with at.connect() as client, at.out.busy("comparing" if dry_run else "applying"):
            try:
                told = client.ask("ApplyAccess", request)
            except Refused as error:
                path = error.field.removeprefix("document.")
                if path != error.field and (line := document.line_of(path)) is not None:
                    rule = error.message.removeprefix(f"{error.field}: ")
                    raise DocumentInvalid(f"{called}:{line}: {path}", rule) from None
                if not dry_run:
                    raise
                at.out.fail("refused", refused(error), reason=error.reason, permission=error.permission)
                raise typer.Exit(Exit.FAILED) from None
        differences = told["differences"]
        lines: list[Text | str] = [*map(_line, differences), *_left_alone(told)]
        lines.append(_summary(differences, dry_run))
        at.out.answer({"dry_run": dry_run} | told, lines)
        if dry_run and differences:
            raise typer.Exit(WOULD_CHANGE)


def _read(file: str) -> tuple[str, str]:
    try:
        if file == "-":
            called, data = "standard input", sys.stdin.buffer.read(_LARGEST + 1)
        else:
            with Path(file).open("rb") as opened:
                called, data = file, opened.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise FieldInvalid(called, f"must be at most {_LARGEST:,} bytes")
        return called, data.decode()
    except UnicodeDecodeError:
        raise FieldInvalid(file, "must be UTF-8") from None


def _line(difference: dict[str, Any]) -> Text:
    sign, style = _SIGNS.get(difference["action"], ("?", ""))
    text = Text(f"{sign} {shown(difference['kind'])} {shown(difference['name'])}", style=style)
    before, after = (shown(difference[key]) for key in ("before", "after"))
    told = (
        f"{before or 'nothing'} → {after or 'nothing'}"
        if difference["action"] == "change"
        else before or after
    )
    return text.append(f": {told}" if told else "")


def _left_alone(told: dict[str, Any]) -> Iterator[str]:
    for section in ("groups", "grants"):
        if count := told[f"{section}_left_alone"]:
            yield (
                f"= {section}: no such section here, so the {count} that documents manage are left alone;"
                f" `{section}: []` removes them"
            )


def _summary(differences: list[dict[str, Any]], dry_run: bool) -> str:
    if not differences:
        return "no difference: everything is as the document says"
    counts = ", ".join(_counts(each["action"] for each in differences))
    return f"would change: {counts}; nothing was changed" if dry_run else f"applied: {counts}"


def _counts(actions: Iterable[str]) -> Iterator[str]:
    found = list(actions)
    for action, word in (("add", "added"), ("change", "changed"), ("remove", "removed")):
        if count := found.count(action):
            yield f"{count} {word}"
