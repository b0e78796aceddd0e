"""The calls of auth: decoded, authenticated, authorised and validated by the interceptor."""

import base64
import time
from typing import Any

from teamlore.auth.v1 import auth_pb2, auth_pb2_grpc

from kit import audit, identity
from kit.access_state import AccessState
from kit.errors import Refusal
from services.auth import messages, sessions, tokens
from services.auth.oidc import SignIn, SignIns
from services.auth.rotation import Rotation
from services.auth.rules import ordered
from services.auth.sessions import PersonToken
from services.auth.store import Store
from services.auth.usage import LastUsed


class AuthHandlers(auth_pb2_grpc.AuthServiceServicer):
    """Credentials into identities."""

    def __init__(
        self,
        store: Store,
        access: AccessState,
        keys: Rotation,
        services: dict[bytes, str],
        sign_ins: SignIns,
        used: LastUsed,
        jwt_seconds: int,
    ) -> None:
        self._store = store
        self._access = access
        self._keys = keys
        self._services = services
        self._sign_ins = sign_ins
        self._used = used
        self._jwt_seconds = jwt_seconds

    async def exchange(self, secret: str) -> tuple[str, float]:
        """A JWT for an opaque token and when it ends. Raises Refusal CREDENTIAL_…; the same for unknown and malformed."""
        digest = tokens.hash_secret(secret)
        service = self._services.get(digest)
        if service is not None:
            return self._mint(f"service:{service}", "internal", f"service:{service}")
        token = await self._store.token_by_hash(digest)
        if token is None:
            raise Refusal("CREDENTIAL_INVALID", "the token is not one of this deployment")
        if token.revoked:
            raise Refusal("CREDENTIAL_REVOKED", "the token was revoked; ask an admin for a new one")
        if token.expires_at is not None and token.expires_at.timestamp() <= time.time():
            raise Refusal("CREDENTIAL_EXPIRED", "the token has ended; ask an admin for a new one")
        self._used.note(token.token_id)
        return self._mint(token.principal, token.kind, token.token_id)

    def _mint(self, principal: str, kind: str, token_id: str) -> tuple[str, float]:
        kid, key = self._keys.signer()
        return identity.mint(key, kid, self._access.audience, principal, kind, token_id, self._jwt_seconds)

    async def ExchangeToken(
        self, request: auth_pb2.ExchangeTokenRequest, context: Any
    ) -> auth_pb2.ExchangeTokenResponse:
        """Exchanges an opaque token."""
        access_token, expires = await self.exchange(request.token)
        principal, _, _ = identity.read_unverified(access_token)
        answer = auth_pb2.ExchangeTokenResponse(access_token=access_token, principal=principal)
        answer.expires_at.FromSeconds(int(expires))
        return answer

    async def GetJwks(self, request: auth_pb2.GetJwksRequest, context: Any) -> auth_pb2.GetJwksResponse:
        """Gives the public keys."""
        return auth_pb2.GetJwksResponse(
            keys=[
                auth_pb2.Jwk(
                    kty="OKP",
                    crv="Ed25519",
                    kid=kid,
                    alg="EdDSA",
                    use="sig",
                    x=base64.urlsafe_b64encode(key.public_bytes_raw()).decode().rstrip("="),
                )
                for kid, key in (await self._keys.public_keys()).items()
            ]
        )

    async def StartSession(
        self, request: auth_pb2.StartSessionRequest, context: Any
    ) -> auth_pb2.StartSessionResponse:
        """Begins a person session."""
        origin: SignIn | PersonToken
        if request.id_token:
            origin = await self._sign_ins.verify(request.id_token)
        else:
            origin = sessions.check(await self._store.person_token(tokens.hash_secret(request.person_token)))
        session = sessions.new_session()
        # The call is public: who it is that changes state is known only now.
        with audit.calling(audit.CallContext("auth.session_started", origin.principal, session.token_id)):
            ends = await self._store.start_session(session, origin)
        answer = auth_pb2.StartSessionResponse(
            session_token=session.secret, token_id=session.token_id, principal=origin.principal
        )
        answer.expires_at.FromDatetime(ends)
        return answer

    async def GetSignIn(self, request: auth_pb2.GetSignInRequest, context: Any) -> auth_pb2.GetSignInResponse:
        """Tells how to sign in."""
        issuer = self._sign_ins.issuer
        if not issuer.url:
            return auth_pb2.GetSignInResponse()
        return auth_pb2.GetSignInResponse(issuer=issuer.url, client_id=issuer.audience, scopes=issuer.scopes)

    async def WhoAmI(self, request: auth_pb2.WhoAmIRequest, context: Any) -> auth_pb2.WhoAmIResponse:
        """Tells the caller who it is."""
        caller = identity.caller()
        held = frozenset[str]()
        if request.bank:
            held = caller.permissions_on(request.bank, await self._access.facts(caller, request.bank))
        return auth_pb2.WhoAmIResponse(
            principal=caller.principal,
            kind=caller.kind,
            token_id=caller.token_id,
            permissions=ordered(held),
            groups=caller.groups,
            token_groups=caller.token_groups,
            person_present=caller.person_present,
            expires_at=messages.stamp(caller.expires_at),
        )

    async def ExplainAccess(
        self, request: auth_pb2.ExplainAccessRequest, context: Any
    ) -> auth_pb2.ExplainAccessResponse:
        """Tells why a principal may do what it may on a bank."""
        asking, refused = identity.caller(), ""
        who = asking
        other = request.principal not in ("", who.principal)
        if other:
            await self._access.require(who, "admin", request.bank)
            found = await self._access.explain(None, request.principal)
            assert found is not None, "a principal without a token is always known"
            who, refused = found
            if not asking.covers("*"):
                who, refused = messages.narrowed(who, request.bank, asking), ""
        elif request.bank.startswith("client:"):
            # What gives and what takes would tell that the client is there.
            await self._access.require(who, "read", request.bank)
        return auth_pb2.ExplainAccessResponse(
            principal=who.principal,
            groups=who.groups,
            permissions=messages.explanation(
                who, request.bank, await self._access.facts(who, request.bank), refused
            ),
        )
