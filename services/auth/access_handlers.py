"""The calls that manage access: decoded, authenticated, authorised and validated by the interceptor."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from teamlore.auth.v1 import access_pb2, access_pb2_grpc

from kit.access_state import AccessState
from kit.identity import caller
from services.auth import banks, messages, pages, rules, tokens
from services.auth.access_store import AccessStore
from services.auth.store import Store

# How many tokens that a leaver made for others one answer shows.
MOST_MADE = 1000


class AccessHandlers(access_pb2_grpc.AccessServiceServicer):
    """Who may do what."""

    def __init__(
        self, store: Store, access_store: AccessStore, access: AccessState, page_tokens: pages.PageTokens
    ) -> None:
        self._tokens = store
        self._store = access_store
        self._access = access
        self._pages = page_tokens

    def _after(self, listing: str, request: Any, parts: int) -> tuple[str, ...]:
        return self._pages.read(listing, caller().principal, request.page_token, parts)

    def _more(self, listing: str, key: Sequence[str]) -> str:
        return self._pages.write(listing, caller().principal, key) if key else ""

    async def _check_giver(self) -> None:
        who = caller()
        tokens.check_giver(who, await self._store.is_personal_key(who.token_id))

    async def CreateToken(
        self, request: access_pb2.CreateTokenRequest, context: Any
    ) -> access_pb2.CreateTokenResponse:
        """Creates a token."""
        who = caller()
        grants = messages.grants_of(request.grants)
        tokens.check_new(who, request.principal, request.kind, grants, request.groups)
        tokens.check_minter(who, await self._store.is_personal_key(who.token_id))
        if request.principal != who.principal:
            # The token may do what its principal may, and whoever makes it sees it.
            found = await self._access.explain(None, request.principal)
            tokens.check_comply(who, found[0].grants if found else ())
        if request.groups:
            tokens.check_comply(who, await self._store.group_grants(request.groups))
        expires = messages.time_of(request, "expires_at")
        token = tokens.make_token(request.principal, request.kind, grants, expires)
        token = replace(token, groups=tuple(request.groups), note=request.note)
        # What is made by who does not administer all ends with what it was made with.
        await self._tokens.add_token(token, who.principal, "" if who.covers("*") else who.token_id)
        return access_pb2.CreateTokenResponse(token_id=token.token_id, token=token.secret)

    async def CreatePersonalKey(
        self, request: access_pb2.CreatePersonalKeyRequest, context: Any
    ) -> access_pb2.CreatePersonalKeyResponse:
        """Creates a key of the caller itself."""
        who = caller()
        grants = tokens.narrowed(who, messages.grants_of(request.grants))
        asked = tokens.end_of_key(messages.time_of(request, "expires_at"), datetime.now(UTC))
        token = tokens.make_token(who.principal, "agent", grants, asked)
        token = replace(token, note=request.note, personal=True)
        expires = await self._tokens.add_token(token, who.principal, who.token_id)
        return access_pb2.CreatePersonalKeyResponse(
            token_id=token.token_id, token=token.secret, expires_at=messages.stamp(expires)
        )

    async def ListTokens(
        self, request: access_pb2.ListTokensRequest, context: Any
    ) -> access_pb2.ListTokensResponse:
        """Lists tokens."""
        who = caller()
        principal = tokens.listed_principal(who, request.principal)
        listing = f"tokens {principal}"
        (after,) = self._after(listing, request, 1)
        only = "" if who.ceiling is None else who.token_id
        found = await self._store.tokens(principal, after, pages.wanted(request.page_size), only)
        made = [(messages.token(token), (token.token_id,)) for token in found]
        shown, more = messages.page(made, request.page_size)
        return access_pb2.ListTokensResponse(tokens=shown, next_page_token=self._more(listing, more))

    async def RotateToken(
        self, request: access_pb2.RotateTokenRequest, context: Any
    ) -> access_pb2.RotateTokenResponse:
        """Replaces a token."""
        token = await self._store.rotate(request.token_id, request.overlap_seconds, caller())
        return access_pb2.RotateTokenResponse(token_id=token.token_id, token=token.secret)

    async def RevokeToken(
        self, request: access_pb2.RevokeTokenRequest, context: Any
    ) -> access_pb2.RevokeTokenResponse:
        """Revokes a token."""
        revoked = await self._store.revoke(request.token_id, caller())
        return access_pb2.RevokeTokenResponse(revoked=revoked)

    async def SuspendPrincipal(
        self, request: access_pb2.SuspendPrincipalRequest, context: Any
    ) -> access_pb2.SuspendPrincipalResponse:
        """Suspends a principal, or lets it back in."""
        who = caller()
        if not request.dry_run:
            rules.check_other(who, request.principal)
            if request.resume:
                await self._check_giver()
        held, holdings = await self._store.suspend(
            request.principal, request.resume, request.revoke_tokens, request.dry_run, who
        )
        answer = access_pb2.SuspendPrincipalResponse(
            suspended=holdings.suspended,
            tokens=[messages.token(token) for token in held],
            grants=[messages.rule(rule) for rule in holdings.rules],
            groups=holdings.groups,
            memberships=[messages.membership(member) for member in holdings.memberships],
            banks=holdings.banks,
            devices=holdings.devices,
            known=holdings.known,
        )
        made = [messages.token(token) for token in holdings.made]
        # What is already in the answer counts as the first item.
        room = pages.fitting([answer.ByteSize(), *(token.ByteSize() for token in made)], MOST_MADE + 1) - 1
        answer.made.extend(made[:room])
        answer.made_left_out = len(made) - room
        return answer

    async def PutGrant(
        self, request: access_pb2.PutGrantRequest, context: Any
    ) -> access_pb2.PutGrantResponse:
        """Sets a grant or a deny."""
        who = caller()
        rule = messages.rule_of(request.grant)
        rules.check_rule(who, rule)
        await self._check_giver()
        return access_pb2.PutGrantResponse(changed=await self._store.put_rule(rule, who))

    async def DeleteGrant(
        self, request: access_pb2.DeleteGrantRequest, context: Any
    ) -> access_pb2.DeleteGrantResponse:
        """Takes a grant or a deny away."""
        await self._check_giver()
        key = (request.subject, request.pattern, request.effect)
        return access_pb2.DeleteGrantResponse(deleted=await self._store.delete_rule(key, caller()))

    async def ListGrants(
        self, request: access_pb2.ListGrantsRequest, context: Any
    ) -> access_pb2.ListGrantsResponse:
        """Lists the grants and denies within a pattern."""
        listing = f"grants {request.pattern} {request.subject}"
        after = self._after(listing, request, 3)
        found = await self._store.rules(
            request.pattern, request.subject, after, pages.wanted(request.page_size)
        )
        made = [(messages.rule(rule), rule.key) for rule in found]
        shown, more = messages.page(made, request.page_size)
        return access_pb2.ListGrantsResponse(grants=shown, next_page_token=self._more(listing, more))

    async def PutGroup(
        self, request: access_pb2.PutGroupRequest, context: Any
    ) -> access_pb2.PutGroupResponse:
        """Sets the members of a group."""
        await self._check_giver()
        group = rules.Group(request.group, frozenset(request.members))
        added, removed = await self._store.put_group(group, caller())
        return access_pb2.PutGroupResponse(added=added, removed=removed)

    async def ListGroups(
        self, request: access_pb2.ListGroupsRequest, context: Any
    ) -> access_pb2.ListGroupsResponse:
        """Lists the groups."""
        (after,) = self._after("groups", request, 1)
        found = await self._store.groups(after, pages.wanted(request.page_size))
        made = [(access_pb2.Group(group=name, members=members), (name,)) for name, members in found]
        shown, more = messages.page(made, request.page_size)
        return access_pb2.ListGroupsResponse(groups=shown, next_page_token=self._more("groups", more))

    async def PutTeam(self, request: access_pb2.PutTeamRequest, context: Any) -> access_pb2.PutTeamResponse:
        """Sets a Team."""
        await self._check_giver()
        rules.check_team_id(request.team_id)
        team = rules.Team(request.team_id, request.name, request.archived)
        return access_pb2.PutTeamResponse(changed=await self._store.put_team(team, caller()))

    async def ListTeams(
        self, request: access_pb2.ListTeamsRequest, context: Any
    ) -> access_pb2.ListTeamsResponse:
        """Lists the Teams."""
        (after,) = self._after("teams", request, 1)
        found = await self._store.teams(after, pages.wanted(request.page_size))
        made = [(messages.team(team), (team.team_id,)) for team in found]
        shown, more = messages.page(made, request.page_size)
        return access_pb2.ListTeamsResponse(teams=shown, next_page_token=self._more("teams", more))

    async def PutMembership(
        self, request: access_pb2.PutMembershipRequest, context: Any
    ) -> access_pb2.PutMembershipResponse:
        """Sets a person's part in a Team."""
        await self._check_giver()
        rules.check_team_id(request.team_id)
        member = rules.Member(request.team_id, request.principal, request.role, request.status)
        return access_pb2.PutMembershipResponse(changed=await self._store.put_member(member, caller()))

    async def PutClient(
        self, request: access_pb2.PutClientRequest, context: Any
    ) -> access_pb2.PutClientResponse:
        """Sets a client of a Team and makes its bank."""
        await self._check_giver()
        rules.check_team_id(request.team_id)
        client = rules.Client(request.team_id, request.client_id, request.archived)
        changed = await self._store.put_client(client, caller())
        return access_pb2.PutClientResponse(changed=changed, bank=client.bank)

    async def PutBank(self, request: access_pb2.PutBankRequest, context: Any) -> access_pb2.PutBankResponse:
        """Makes a bank or changes its owner and name."""
        banks.check_scope(request.bank, request.owner, request.tenant_id, self._access.deployment)
        if request.owner:
            await self._check_giver()
        change = banks.BankChange(request.bank, request.name or None, request.owner or None)
        bank, created = await self._store.put_bank(change, caller())
        return access_pb2.PutBankResponse(bank=messages.bank(bank), created=created)

    async def GetBank(self, request: access_pb2.GetBankRequest, context: Any) -> access_pb2.GetBankResponse:
        """Gives a bank."""
        banks.layer_of(request.bank)
        bank = await self._store.bank(request.bank)
        return access_pb2.GetBankResponse(bank=messages.bank(bank))

    async def ListBanks(
        self, request: access_pb2.ListBanksRequest, context: Any
    ) -> access_pb2.ListBanksResponse:
        """Lists the banks that the caller may read."""
        listing = f"banks {request.pattern}"
        (after,) = self._after(listing, request, 1)
        found, last = await self._store.banks(
            caller(), request.pattern, after, request.page_size or pages.DEFAULT_SIZE
        )
        made = [(messages.bank(bank), (bank.bank,)) for bank in found]
        shown, more = messages.page(made, request.page_size)
        return access_pb2.ListBanksResponse(
            banks=shown, next_page_token=self._more(listing, more or ((last,) if last else ()))
        )

    async def ArchiveBank(
        self, request: access_pb2.ArchiveBankRequest, context: Any
    ) -> access_pb2.ArchiveBankResponse:
        """Archives a bank, or reopens it."""
        changed = await self._store.archive_bank(request.bank, not request.reopen)
        return access_pb2.ArchiveBankResponse(changed=changed)

    async def PutPolicy(
        self, request: access_pb2.PutPolicyRequest, context: Any
    ) -> access_pb2.PutPolicyResponse:
        """Sets a bank's policy."""
        policy, changed = await self._store.put_policy(request.bank, messages.policy_of(request.policy))
        return access_pb2.PutPolicyResponse(policy=messages.policy(policy), changed=changed)

    async def ApplyAccess(
        self, request: access_pb2.ApplyAccessRequest, context: Any
    ) -> access_pb2.ApplyAccessResponse:
        """Makes what stands what a document says."""
        if not request.dry_run:
            await self._check_giver()
        document = messages.document_of(request.document)
        changes, (groups, grants) = await self._store.apply(document, request.dry_run, caller())
        return access_pb2.ApplyAccessResponse(
            differences=[messages.difference(change) for change in changes],
            groups_left_alone=groups,
            grants_left_alone=grants,
        )
