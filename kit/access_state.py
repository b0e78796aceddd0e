"""Who may do what, as the database says it and every process holds it: polled, so that a revocation bites in time."""

import asyncio
import fnmatch
import json
import time
from collections.abc import Mapping
from typing import Any

from kit.access import BankFacts, Caller, Grant, Membership, needs_facts, role_of
from kit.database import Database
from kit.errors import LOST, Refusal

POLL_SECONDS = 0.25
STALE_SECONDS = 1.0
_MOST_READS = 5


class AccessState:
    """Who may do what, dropped whenever `auth.access_head` moves. Without a poll for a second it refuses."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._callers: dict[str, Caller | None] = {}
        self._refusals: dict[str, str] = {}
        self._banks: dict[str, BankFacts] = {}
        self._version = -1
        self._last_good = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self.audience = ""
        """Whom this deployment's JWTs are for; known after `start`."""
        self.deployment = ""
        """The id of this deployment, which is one organisation; known after `start`."""

    async def start(self) -> None:
        """Polls once and goes on in the background. Raises what the database raises."""
        row = await self._database.execute_raw("select deployment from auth.access_head")
        self.deployment = str(row["deployment"])
        self.audience = f"teamlore:{self.deployment}"
        await self._poll_once()
        self._task = asyncio.create_task(self._poll())

    async def stop(self) -> None:
        """Ends the polling."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def fresh(self) -> bool:
        """Whether the last good poll is younger than a second."""
        return time.monotonic() - self._last_good < STALE_SECONDS

    @property
    def version(self) -> int:
        """The version of the access state that was seen last; it grows with every change."""
        return self._version

    def require_fresh(self) -> None:
        """Raises Refusal ACCESS_STATE_STALE when the last good poll is older than a second."""
        if not self.fresh:
            raise Refusal("ACCESS_STATE_STALE", "who may do what cannot be read now", retry_after=0.5)

    async def _poll_once(self) -> None:
        started = time.monotonic()
        async with asyncio.timeout(STALE_SECONDS):
            row = await self._database.execute_raw("select version from auth.access_head")
        if row["version"] != self._version:
            self._callers.clear()
            self._refusals.clear()
            self._banks.clear()
            self._version = row["version"]
        self._last_good = started

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self._poll_once()
            except LOST:
                continue

    async def of(self, token_id: str) -> Caller:
        """Who holds the token and may do what now. Raises Refusal when it is unknown, revoked, expired or stale."""
        self.require_fresh()
        if token_id in self._callers:
            found, refused = self._callers[token_id], self._refusals.get(token_id, "")
        else:
            found, refused = await self._load(token_id)
        if refused:
            if refused == "ACCESS_REVOKED":
                raise Refusal("ACCESS_REVOKED", "the principal is suspended; ask an admin")
            raise Refusal("CREDENTIAL_REVOKED", "the token was revoked; ask an admin for a new one")
        if found is None:
            raise Refusal("CREDENTIAL_INVALID", "the token is not one of this deployment")
        if found.expires_at is not None and found.expires_at <= time.time():
            raise Refusal("CREDENTIAL_EXPIRED", "the token has ended; ask an admin for a new one")
        return found

    async def _load(self, token_id: str) -> tuple[Caller | None, str]:
        for _ in range(_MOST_READS):
            version = self._version
            caller, refused = await self.explain(token_id, None) or (None, "")
            if version == self._version:
                break
        else:
            # The state moved each time while it was read: good for this call, but it may be older than what was seen.
            return caller, refused
        if len(self._callers) > 50_000:
            self._callers.clear()
            self._refusals.clear()
        self._callers[token_id] = caller
        if refused:
            self._refusals[token_id] = refused
        return caller, refused

    async def explain(self, token_id: str | None, principal: str | None) -> tuple[Caller, str] | None:
        """What the database says now of a token, or of a principal without one; None for an unknown token.

        Gives the caller and why it is refused: CREDENTIAL_REVOKED, ACCESS_REVOKED or empty.
        """
        row = await self._database.execute_raw(
            "select auth.caller_access($1, $2) as access", token_id, principal
        )
        return None if row["access"] is None else caller_of(json.loads(row["access"]), token_id or "")

    async def facts(self, caller: Caller, bank: str) -> BankFacts | None:
        """What of the bank decides access; None where only the caller does."""
        if not needs_facts(caller, bank):
            return None
        found = self._banks.get(bank)
        # What is kept serves those alone whom it gives something: a refusal takes the same time for a bank that is there and
        # for one that is not, which is never kept.
        if found is None or not caller.permissions_on(bank, found):
            version = self._version
            row = await self._database.execute_raw("select auth.bank_access($1) as access", bank)
            read = json.loads(row["access"])
            found = BankFacts(read["owner"], read["client"])
            # A bank that is not there yet may be made without an access change.
            if version == self._version and (found.owner or found.client) and len(self._banks) < 50_000:
                self._banks[bank] = found
        return found

    async def require(self, caller: Caller, permission: str, bank: str) -> None:
        """Raises Refusal when the caller lacks `permission` on `bank`; a CLIENT bank does not tell that it is there."""
        if caller.may(permission, bank, await self.facts(caller, bank)):
            return
        if bank.startswith("client:"):
            if caller.lost(bank, permission):
                raise Refusal("ACCESS_REVOKED", "your access to this client was taken away")
            raise Refusal("NOT_FOUND", "there is no such object, or you may not see it")
        message = f"you lack the permission {permission}; ask who administers the bank"
        if bank.startswith("private:"):
            message = "a PRIVATE bank is its owner's alone: nobody else reads it, and nobody administers it"
        raise Refusal("PERMISSION_DENIED", message, metadata={"permission": permission})


def caller_of(read: Mapping[str, Any], token_id: str) -> tuple[Caller, str]:
    """The caller that an answer of `auth.caller_access` describes, and why it is refused; empty where it is not."""
    principal, groups = str(read["principal"]), tuple(read["groups"])
    former = read.get("former_groups", ())
    rules: dict[str, list[Grant]] = {"allow": [], "deny": [], "revoked": []}
    own_groups = tuple(read.get("token_groups", ()))
    for subject, pattern, effect, words, revoked in read["rules"]:
        if subject in groups or fnmatch.fnmatchcase(principal, subject):
            word = "deny" if effect == "deny" else "grant"
            by = ", a group of the token itself" if subject in own_groups else ""
            grant = Grant(pattern, frozenset(words), f"{word} {subject} {pattern}{by}")
            rules["revoked" if revoked else effect].append(grant)
        elif subject in former and effect == "allow":
            rules["revoked"].append(Grant(pattern, frozenset(words)))
    rules["revoked"] += [role_of(team) for team in read.get("stepped_down", ())]
    nothing: Mapping[str, Any] = {
        "kind": "",
        "personal": True,
        "session": False,
        "revoked": False,
        "grants": [],
        "origin": [],
    }
    token = read["token"] or nothing
    own, origin = (
        tuple(Grant(pattern, frozenset(words), f"{name} {pattern}") for pattern, words in token[part])
        for part, name in (("grants", f"token {token_id}"), ("origin", "the person's token"))
    )
    caller = Caller(
        principal,
        token["kind"],
        token_id,
        grants=(*rules["allow"], *(origin if token["personal"] else own)),
        denies=tuple(rules["deny"]),
        revoked=tuple(rules["revoked"]),
        ceiling=own if token["personal"] and own else None,
        groups=groups,
        token_groups=own_groups,
        memberships={
            team: Membership(role, status == "active" and not archived)
            for team, role, status, archived in read["memberships"]
        },
        default_access=read["default_access"],
        person_present=token["session"] and token["kind"] == "person",
        expires_at=token.get("expires_at"),
    )
    if token["revoked"]:
        return caller, "CREDENTIAL_REVOKED"
    return caller, "ACCESS_REVOKED" if read["suspended"] else ""
