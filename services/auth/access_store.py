"""Auth's rows of who may do what. One change of access at a time, and each tells every service."""

import contextlib
import fnmatch
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import datetime

from kit.access import Caller, Grant
from kit.database import Database, Transaction
from services.auth import access_rows, documents, tokens
from services.auth.banks import Bank, BankChange, Policy, readable
from services.auth.documents import Change, Document, Retired
from services.auth.rules import (
    Client,
    Group,
    Holdings,
    Member,
    Rule,
    Team,
    bounds,
    check_change,
    not_found,
)
from services.auth.store import access_of, administers, insert_token
from services.auth.tokens import NewToken, Token

# How many banks one call of ListBanks looks at, and how many at once.
MOST_LOOKED_AT, LOOKED_AT = 10_000, 500


class AccessStore:
    """Reads and writes tokens, grants, groups, Teams and banks."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def is_personal_key(self, token_id: str) -> bool:
        """Whether this is a key that a person made for itself, and no session."""
        return bool(await self._database.value("is_personal_key", token_id))

    async def tokens(self, principal: str, after: str, limit: int, only: str = "") -> list[Token]:
        """A page of tokens, the newest first; of one principal where it is named, and `only` this one where that is."""
        if only:
            return (
                [] if after else [access_rows.token(row) for row in await self._database.fetch("tokens_by_id", [only])]
            )
        if principal:
            rows = await self._database.fetch("token_ids_of", after, limit, principal)
        else:
            rows = await self._database.fetch("token_ids", after, limit)
        ids = [row["token_id"] for row in rows]
        return [access_rows.token(row) for row in await self._database.fetch("tokens_by_id", ids)]

    async def rotate(self, token_id: str, overlap: int, who: Caller) -> NewToken:
        """Keeps the successor of a token and ends that after the overlap. Raises Refusal as those of `tokens` that it calls."""
        async with self._changing() as (tx, now):
            old = [access_rows.token(row) for row in await tx.fetch("tokens_by_id", [token_id])]
            fresh = tokens.successor(old[0] if old else None, now)
            tokens.require_person(who, fresh.kind)
            tokens.check_minter(who, bool(await tx.value("is_personal_key", who.token_id)))
            # Whoever rotates sees the secret, and so may do all that the token and its principal may.
            tokens.check_comply(who, (await access_of(tx, token_id))[0].grants)
            await insert_token(tx, fresh, who.principal)
            await tx.fetch("succeed", token_id, fresh.token_id)
            await tx.fetch("follow", token_id, fresh.token_id)
            await tx.fetch("end_token", token_id, float(overlap))
        return fresh

    async def revoke(self, token_id: str, who: Caller) -> bool:
        """Revokes a token; false where it was. Raises Refusal NOT_FOUND for one that is not the caller's to revoke."""
        async with self._changing() as (tx, _):
            rows = await tx.fetch("tokens_by_id", [token_id])
            if not rows or not tokens.may_end(
                who, token_id, rows[0]["principal"], rows[0]["started_from"]
            ):
                raise tokens.unknown_token()
            administered = await administers(tx, token_id)
            if not await tx.fetch("revoke_tokens", [token_id]):
                return False
            if administered:
                await access_rows.require_admin(tx, who, "token_id")
            await access_rows.commit(tx, "", 1)
            return True

    async def suspend(
        self, principal: str, resume: bool, revoke_tokens: bool, dry_run: bool, who: Caller
    ) -> tuple[list[Token], Holdings]:
        """Shuts a principal out or lets it in, and tells what it holds; a dry run changes nothing."""
        async with self._changing() as (tx, _):
            ids = [row["token_id"] for row in await tx.fetch("working_token_ids_of", principal)]
            changed = 0
            if not dry_run:
                row = await (
                    tx.row("resume", principal) if resume else tx.row("suspend", principal, who.principal)
                )
                changed += row is not None
                if revoke_tokens:
                    changed += len(await tx.fetch("revoke_tokens", ids))
            held = [access_rows.token(row) for row in await tx.fetch("tokens_by_id", ids)]
            holdings = Holdings(
                bool(await tx.value("suspended", principal)),
                tuple(
                    access_rows.rule(row)
                    for row in await tx.fetch("rules_of", principal)
                    if fnmatch.fnmatchcase(principal, row["subject"])
                ),
                tuple(row["group_name"] for row in await tx.fetch("groups_of", principal)),
                tuple(Member(**row) for row in await tx.fetch("memberships_of", principal)),
                tuple(row["bank"] for row in await tx.fetch("banks_of", principal)),
                tuple(row["device_id"] for row in await tx.fetch("devices_of", principal)),
                bool(await tx.value("had_tokens", principal)),
                await access_rows.made_by(tx, principal),
            )
            if changed:
                await access_rows.require_admin(tx, who, "principal")
                await access_rows.commit(tx, "", changed)
        return held, holdings

    async def put_rule(self, rule: Rule, who: Caller) -> bool:
        """Sets a grant or a deny; false where the same stood. Raises Refusal ACCESS_MANAGED for what a document manages."""
        async with self._changing() as (tx, _):
            row = await tx.row("rule", *rule.key)
            standing = None if row is None else access_rows.rule(row)
            if standing is not None and standing.permissions == rule.permissions:
                return False
            check_change(who, standing)
            documents.check_unmanaged(standing is not None and standing.source == "file")
            change = documents.rule_change(rule, standing)
            return await access_rows.write_all(tx, [change] if change else [], who, "grant")

    async def delete_rule(self, key: tuple[str, str, str], who: Caller) -> bool:
        """Takes a grant or a deny away; false where there was none. Raises Refusal as `put_rule` does."""
        async with self._changing() as (tx, _):
            row = await tx.row("rule", *key)
            if row is None:
                return False
            check_change(who, access_rows.rule(row))
            documents.check_unmanaged(row["source"] == "file")
            change = Change("grant", "remove", "", "", "", Retired(access_rows.rule(row)))
            return await access_rows.write_all(tx, [change], who, "subject")

    async def rules(self, pattern: str, subject: str, after: Sequence[str], limit: int) -> list[Rule]:
        """A page of the grants and denies within a pattern, by subject, pattern and effect."""
        query, more = ("rules_page_of", (subject,)) if subject else ("rules_page", ())
        return [
            access_rows.rule(row) for row in await self._database.fetch(query, *bounds(pattern), *after, limit, *more)
        ]

    async def put_group(self, group: Group, who: Caller) -> tuple[int, int]:
        """Sets who is in a group; tells how many came and how many went. Raises Refusal as `put_rule` does."""
        async with self._changing() as (tx, _):
            rows = {(row["principal"], row["source"]) for row in await tx.fetch("group_rows", group.name)}
            issued = {principal for principal, source in rows if source == "issuer"}
            before = {principal for principal, source in rows if source != "issuer"}
            holders = {
                row["principal"]
                for row in await tx.fetch("token_group_rows")
                if row["group_name"] == group.name
            }
            if before != group.members or holders - group.members:
                documents.check_unmanaged(any(source == "file" for _, source in rows))
                if group.members - before - issued:
                    tokens.check_comply(
                        who, [access_rows.grant(row) for row in await tx.fetch("group_allows", [group.name])]
                    )
                change = Change("group", "change", group.name, "", "", group)
                await access_rows.write_all(tx, [change], who, "members")
        old, new = before | issued | holders, group.members | issued
        return len(new - old), len(old - new)

    async def group_grants(self, groups: Sequence[str]) -> list[Grant]:
        """What groups are allowed."""
        return [access_rows.grant(row) for row in await self._database.fetch("group_allows", list(groups))]

    async def groups(self, after: str, limit: int) -> list[tuple[str, list[str]]]:
        """A page of groups with their members, by name."""
        rows = await self._database.fetch("groups_page", after, limit)
        return [(row["group_name"], list(row["members"])) for row in rows]

    async def put_team(self, team: Team, who: Caller) -> bool:
        """Sets a Team's name and use; false where they stood so."""
        async with self._changing() as (tx, _):
            change = documents.team_change(team, await access_rows.team(tx, team.team_id))
            return await access_rows.write_all(tx, [change] if change else [], who, "team_id")

    async def put_member(self, member: Member, who: Caller) -> bool:
        """Sets a membership; false where it stood so. Raises Refusal NOT_FOUND for an unknown Team."""
        async with self._changing() as (tx, _):
            team = await access_rows.team(tx, member.team_id)
            if team is None:
                raise not_found("team_id", "Team")
            standing = next((known for known in team.members if known.principal == member.principal), None)
            change = documents.member_change(member, standing)
            return await access_rows.write_all(tx, [change] if change else [], who, "principal")

    async def put_client(self, client: Client, who: Caller) -> bool:
        """Sets a client and makes its bank; false where it stood so. Raises Refusal NOT_FOUND for an unknown Team."""
        async with self._changing() as (tx, _):
            team = await access_rows.team(tx, client.team_id)
            if team is None:
                raise not_found("team_id", "Team")
            standing = next((known for known in team.clients if known.client_id == client.client_id), None)
            change = documents.client_change(client, standing)
            return await access_rows.write_all(tx, [change] if change else [], who, "client_id", client.bank)

    async def teams(self, after: str, limit: int) -> list[Team]:
        """A page of Teams with their members and clients, by id."""
        ids = [row["team_id"] for row in await self._database.fetch("team_ids", after, limit)]
        return await access_rows.teams(self._database, ids)

    async def bank(self, bank: str) -> Bank:
        """A bank; one that nobody has made has the defaults."""
        return access_rows.bank((await self._database.fetch("banks_by_id", [bank]))[0])

    async def put_bank(self, change: BankChange, who: Caller) -> tuple[Bank, bool]:
        """Makes a bank or sets its name and owner; gives it and whether it was made."""
        async with self._changing() as (tx, _):
            bank = await access_rows.banks(tx, [change.bank])
            if bank[change.bank].layer == "client" and bank[change.bank].client is None:
                raise not_found("bank", "client")
            row = await tx.row("put_bank", change.bank, change.name, change.owner, who.principal)
            assert row is not None
            if row["changed"]:
                await access_rows.commit(tx, change.bank, 1)
            bank = await access_rows.banks(tx, [change.bank])
        return bank[change.bank], bool(row["created"])

    async def banks(self, who: Caller, pattern: str, after: str, limit: int) -> tuple[list[Bank], str]:
        """Banks that `who` may read, by id, and the last id that was looked at; empty where that was the last of all."""
        found: list[Bank] = []
        for _ in range(0, MOST_LOOKED_AT, LOOKED_AT):
            rows = await self._database.fetch("bank_ids", after, LOOKED_AT, who.principal)
            ids = [row["bank"] for row in rows]
            banks = {row["bank"]: access_rows.bank(row) for row in await self._database.fetch("banks_by_id", ids)}
            for bank in ids:
                if readable(who, banks[bank], pattern):
                    if len(found) == limit:
                        return found, after
                    found.append(banks[bank])
                after = bank
            if len(ids) < LOOKED_AT:
                return found, ""
        return found, after

    async def archive_bank(self, bank: str, archive: bool) -> bool:
        """Archives or reopens a bank; false where it stood so. Raises Refusal NOT_FOUND for one that nobody has made."""
        async with self._changing() as (tx, _):
            await access_rows.standing_bank(tx, bank)
            changed = bool(await tx.value("archive_bank", bank, archive))
            if changed:
                await access_rows.commit(tx, bank, 1)
        return changed

    async def put_policy(self, bank: str, policy: Policy) -> tuple[Policy, bool]:
        """Sets a bank's policy; gives it and whether it changed. Raises Refusal NOT_FOUND as `archive_bank` does."""
        async with self._changing() as (tx, _):
            standing = await access_rows.standing_bank(tx, bank)
            changed = bool(await access_rows.put_policy(tx, bank, policy))
            if changed:
                await access_rows.commit(tx, bank, 1)
        return policy.over(standing.policy), changed

    async def apply(
        self, document: Document, dry_run: bool, who: Caller
    ) -> tuple[list[Change], tuple[int, int]]:
        """Makes what stands what the document says; gives the differences, and how many groups and grants it left alone.

        A dry run is done and taken back.
        """
        async with self._changing() as (tx, _):
            state = await access_rows.state(tx, document)
            documents.check(who, document, state)
            holders: dict[str, set[tuple[str, str]]] = {}
            for row in await tx.fetch("token_group_rows"):
                holders.setdefault(row["group_name"], set()).add((row["principal"], "token"))
            # Only the plan knows of them: a token's group gives no comply, so that its holder joins as others do.
            names = state.groups.keys() | holders.keys()
            shown = {name: state.groups.get(name, frozenset()) | holders.get(name, set()) for name in names}
            changes = documents.plan(document, replace(state, groups=shown))
            for change in changes:
                if isinstance(change.value, Rule):
                    check_change(who, state.rules.get(change.value.key))
                elif isinstance(change.value, Retired):
                    check_change(who, change.value.rule)
            await access_rows.write_all(tx, changes, who, "document", dry_run=dry_run)
        return changes, documents.left_alone(document, state)

    @contextlib.asynccontextmanager
    async def _changing(self) -> AsyncIterator[tuple[Transaction, datetime]]:
        async with self._database.transaction() as tx:
            row = await tx.row("lock_access")
            assert row is not None
            yield tx, row["now"]
