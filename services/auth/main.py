"""The auth service: `python -m services.auth.main`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from teamlore.auth.v1 import access_pb2_grpc, auth_pb2_grpc

from kit import audit
from kit.config import load_or_exit, setting
from kit.foundation import Foundation, Settings
from kit.identity import Authenticator, KeyCache
from kit.serving import Built, run
from services.auth.handlers import AccessHandlers, AuthHandlers
from services.auth.keys import SEAL_NAME, make_key, open_ring
from services.auth.store import QUERIES, Store
from services.auth.tokens import parse_service_hashes


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Settings of the auth service, whose key store seals the signing key."""

    service_token_hashes: str = setting("TEAMLORE_SERVICE_TOKEN_HASHES", "")
    """`sync=<sha256 hex of its token>,…`: the other services of this deployment."""


async def build(config: Config, base: Foundation) -> Built:
    """Makes the first signing key where there is none, and gives what is served."""
    store = Store(base.database)
    secret = base.keys.secret(SEAL_NAME)
    with audit.calling(audit.CallContext("auth.signing_key_made", "service:auth", "service:auth")):
        ring = open_ring(secret, await store.signing_keys(make_key(secret, os.urandom(8).hex())))

    async def own_keys() -> Mapping[str, Ed25519PublicKey]:
        return ring.public

    handlers = AuthHandlers(store, base.access, ring, parse_service_hashes(config.service_token_hashes))
    auth, access = auth_pb2_grpc, access_pb2_grpc
    return Built(
        Authenticator(KeyCache(own_keys), base.access, handlers.exchange),
        {
            "teamlore.auth.v1.AuthService": (auth.add_AuthServiceServicer_to_server, handlers),
            "teamlore.auth.v1.AccessService": (
                access.add_AccessServiceServicer_to_server,
                AccessHandlers(store),
            ),
        },
    )


if __name__ == "__main__":
    run("auth", load_or_exit(Config), QUERIES, build)
