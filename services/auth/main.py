"""The auth service: `python -m services.auth.main`."""

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from teamlore.auth.v1 import access_pb2_grpc, auth_pb2_grpc

from kit import audit
from kit.config import load_or_exit, setting
from kit.database import Database
from kit.identity import AccessState, Authenticator, KeyCache
from kit.sealing import KeyStore
from kit.serving import Built, Drain, run
from services.auth.access_handlers import AccessHandlers
from services.auth.access_store import AccessStore
from services.auth.handlers import AuthHandlers
from services.auth.keys import SEAL_NAME, make_key, open_ring
from services.auth.store import QUERIES, Store
from services.auth.tokens import parse_service_hashes


@dataclass(frozen=True)
class Config:
    """Settings of the auth service."""

    database_url: str = setting("DATABASE_URL")
    keystore: str = setting("TEAMLORE_KEYSTORE")
    """File of the key store, which seals the signing key."""
    listen: str = setting("TEAMLORE_LISTEN", "0.0.0.0:8080")
    service_token_hashes: str = setting("TEAMLORE_SERVICE_TOKEN_HASHES", "")
    """`sync=<sha256 hex of its token>,…`: the other services of this deployment."""
    secrets_barrier: str = setting("TEAMLORE_SECRETS_BARRIER", "redact", choices=("redact", "reject", "off"))
    """As sync has it: what a bank without a barrier of its own is shown with."""


@contextlib.asynccontextmanager
async def build(config: Config, drain: Drain) -> AsyncIterator[Built]:
    """Connects, makes the first signing key where there is none, and gives what is served."""
    keystore = KeyStore(Path(config.keystore))
    database = await Database.connect(config.database_url, "auth", QUERIES)
    access = AccessState(database)
    try:
        store = Store(database)
        secret = keystore.secret(SEAL_NAME)
        with audit.calling(audit.CallContext("auth.signing_key_made", "service:auth", "service:auth")):
            ring = open_ring(secret, await store.signing_keys(make_key(secret, os.urandom(8).hex())))
        await access.start()

        async def own_keys() -> Mapping[str, Ed25519PublicKey]:
            return ring.public

        handlers = AuthHandlers(store, access, ring, parse_service_hashes(config.service_token_hashes))
        yield Built(
            Authenticator(KeyCache(own_keys), access, handlers.exchange),
            [
                lambda server: auth_pb2_grpc.add_AuthServiceServicer_to_server(handlers, server),
                lambda server: access_pb2_grpc.add_AccessServiceServicer_to_server(
                    AccessHandlers(store, AccessStore(database), access, config.secrets_barrier), server
                ),
            ],
            ("teamlore.auth.v1.AuthService", "teamlore.auth.v1.AccessService"),
        )
    finally:
        await access.stop()
        await database.close()
        keystore.close()


if __name__ == "__main__":
    settings = load_or_exit(Config)
    run("auth", settings.listen, settings, build)
