"""`teamlore admin bank` and `policy`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from teamlore_client._ending import Exit, Json, Project, Stop
from teamlore_client._server import Asking, Server, asking
from teamlore_client._words import moment

bank_app = typer.Typer(help="Make, show, list, archive and reopen banks.", no_args_is_help=True)
policy_app = typer.Typer(help="Set and show how a bank treats what is written to it.", no_args_is_help=True)

BankId = Annotated[str, typer.Argument(metavar="BANK", help="The bank's id, such as project:api-1a2b3c4d.")]


@bank_app.command("put")
def put_bank(
    bank: BankId,
    name: Annotated[str | None, typer.Option(help="The name that people see.")] = None,
    owner: Annotated[str, typer.Option(help="The owner; you, for a new bank.")] = "",
    tenant: Annotated[str, typer.Option(help="The organisation, which must be this deployment's.")] = "",
    server: Server = "",
    project: Project = Path("."),
    json: Json = False,
) -> None:
    """Make a bank, or change its owner and name; a name that you do not give stays."""
    with _administering(bank, server, project, json) as at, at.connect() as client:
        from teamlore_client._admin_rpc import access_pb2

        if name is None:  # the call sets the name, so the one that stands is read first
            name = client.ask("GetBank", access_pb2.GetBankRequest(bank=bank))["bank"]["name"]
        request = access_pb2.PutBankRequest(bank=bank, name=name, owner=owner, tenant_id=tenant)
        done = client.ask("PutBank", request)
        said = "made" if done["created"] else "set"
        at.out.answer(done, [f"{said} {bank}", *_bank_lines(done["bank"])])


@bank_app.command("show")
def show_bank(bank: BankId, server: Server = "", project: Project = Path("."), json: Json = False) -> None:
    """Show a bank with its policy."""
    with asking(server, project, json) as at, at.connect() as client:
        from teamlore_client._admin_rpc import access_pb2

        found = client.ask("GetBank", access_pb2.GetBankRequest(bank=bank))["bank"]
        at.out.answer(found, [*_bank_lines(found), *_policy_lines(found.get("policy", {}))])


@bank_app.command("list")
def list_banks(
    pattern: Annotated[str, typer.Argument(help="Only banks that this pattern covers.")] = "",
    server: Server = "",
    project: Project = Path("."),
    json: Json = False,
) -> None:
    """List the banks that you may read."""
    with asking(server, project, json) as at, at.connect() as client:
        from teamlore_client._admin_rpc import access_pb2

        with at.out.busy("listing banks"):
            found = list(client.pages("ListBanks", access_pb2.ListBanksRequest(pattern=pattern), "banks"))
        rows = (
            [
                each["bank"],
                each["layer"],
                each["name"] or "-",
                each["owner"] or "-",
                "archived" if each["archived"] else "active",
                moment(each.get("created_at")),
            ]
            for each in found
        )
        at.out.table({"banks": found}, ("BANK", "LAYER", "NAME", "OWNER", "STATE", "MADE"), rows)


@bank_app.command("archive")
def archive_bank(bank: BankId, server: Server = "", project: Project = Path("."), json: Json = False) -> None:
    """Archive a bank: it can be read and no longer written."""
    _archive(bank, False, server, project, json)


@bank_app.command("reopen")
def reopen_bank(bank: BankId, server: Server = "", project: Project = Path("."), json: Json = False) -> None:
    """Reopen an archived bank."""
    _archive(bank, True, server, project, json)


@policy_app.command("put")
def put_policy(
    bank: BankId,
    barrier: Annotated[str | None, typer.Option(help="Secrets in a text: redact, reject or off.")] = None,
    pii: Annotated[
        str | None, typer.Option(help="Addresses, phone numbers and the like: off, redact or reject.")
    ] = None,
    near_duplicates: Annotated[str | None, typer.Option(help="skip, warn or off.")] = None,
    near_duplicate_threshold: Annotated[
        float | None, typer.Option(help="From which cosine on a text is a near-duplicate, 0.5 to 1.")
    ] = None,
    classification: Annotated[
        str | None, typer.Option(help="public, internal, confidential or restricted.")
    ] = None,
    team_memory: Annotated[
        bool | None, typer.Option("--team-memory/--no-team-memory", help="Whether entries can be made.")
    ] = None,
    min_lane: Annotated[
        str | None, typer.Option(help="The least reviewed lane that agents get: synced, capture or entry.")
    ] = None,
    publish_requires_review: Annotated[
        bool | None,
        typer.Option(
            "--publish-requires-review/--no-publish-requires-review",
            help="Whether what consolidation would publish goes to review.",
        ),
    ] = None,
    server: Server = "",
    project: Project = Path("."),
    json: Json = False,
) -> None:
    """Change a bank's policy; what you do not name stays as it is."""
    given = {
        "barrier": barrier,
        "pii": pii,
        "near_duplicates": near_duplicates,
        "near_duplicate_threshold": near_duplicate_threshold,
        "classification": classification,
        "team_memory": team_memory,
        "min_lane": min_lane,
        "publish_requires_review": publish_requires_review,
    }
    with _administering(bank, server, project, json) as at:
        fields: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        if not fields:
            raise Stop(Exit.USAGE, "usage", "name at least one field to set; --help lists them")
        from teamlore_client._admin_rpc import access_pb2

        with at.connect() as client:
            request = access_pb2.PutPolicyRequest(bank=bank, policy=access_pb2.Policy(**fields))
            done = client.ask("PutPolicy", request)
        said = f"changed the policy of {bank}" if done["changed"] else "it stood so before"
        at.out.answer(done, [said, *_policy_lines(done["policy"])])


@policy_app.command("show")
def show_policy(bank: BankId, server: Server = "", project: Project = Path("."), json: Json = False) -> None:
    """Show a bank's policy."""
    with asking(server, project, json) as at, at.connect() as client:
        from teamlore_client._admin_rpc import access_pb2

        found = client.ask("GetBank", access_pb2.GetBankRequest(bank=bank))["bank"].get("policy", {})
        at.out.answer({"bank": bank, "policy": found}, _policy_lines(found))


@contextmanager
def _administering(bank: str, server: str, project: Path, json: bool) -> Iterator[Asking]:
    """Ask a server, as `asking` does, to change a bank; of a PRIVATE one there is nothing to set."""
    with asking(server, project, json) as at:
        if bank.startswith("private:"):
            message = (
                "a PRIVATE bank has no admin: it is made by its owner's first save, and has no name, policy or other"
                " owner to set; nothing was changed"
            )
            raise Stop(Exit.USAGE, "private_bank", message)
        yield at


def _archive(bank: str, reopen: bool, server: str, project: Path, json: bool) -> None:
    with _administering(bank, server, project, json) as at, at.connect() as client:
        from teamlore_client._admin_rpc import access_pb2

        done = client.ask("ArchiveBank", access_pb2.ArchiveBankRequest(bank=bank, reopen=reopen))
        verb = "reopened" if reopen else "archived"
        at.out.answer(done, [f"{verb} {bank}" if done["changed"] else "it stood so before"])


def _bank_lines(bank: dict[str, Any]) -> list[str]:
    return [
        f"bank   {bank['bank']}",
        f"layer  {bank['layer']}",
        f"name   {bank['name'] or '-'}",
        f"owner  {bank['owner'] or '-'}",
        f"state  {'archived' if bank['archived'] else 'active'}",
        f"made   {moment(bank.get('created_at'), 'not yet')}",
    ]


def _policy_lines(policy: dict[str, Any]) -> list[str]:
    # A bank without a barrier of its own has the one of the deployment, which sync alone knows.
    whole = {"barrier": "the deployment's", **policy}
    return [f"{key:<24} {_shown(value)}" for key, value in whole.items()]


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
