"""The auth service: `python -m services.auth.main`."""

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from teamlore.auth.v1 import auth_pb2_grpc

from kit import audit
from kit.config import DATABASE_URL, LISTEN, load_or_exit, setting
from kit.database import Database
from kit.identity import AccessState, Authenticator, KeyCache
from kit.keystore import open_key_store
from kit.serving import Built, Drain, run
from services.auth.handlers import AccessHandlers, AuthHandlers
from services.auth.keys import SEAL_NAME, make_key, open_ring
from services.auth.store import QUERIES, Store
from services.auth.tokens import parse_service_hashes


@dataclass(frozen=True)
class Config:
    """Settings of the auth service."""

    database_url: str = setting("DATABASE_URL", form=DATABASE_URL)
    keystore: str = setting("TEAMLORE_KEYSTORE")
    """File of the key store, which seals the signing key."""
    listen: str = setting("TEAMLORE_LISTEN", "0.0.0.0:8080", form=LISTEN)
    service_token_hashes: str = setting("TEAMLORE_SERVICE_TOKEN_HASHES", "")
    """`sync=<sha256 hex of its token>,…`: the other services of this deployment."""


@contextlib.asynccontextmanager
async def build(config: Config, drain: Drain) -> AsyncIterator[Built]:
    """Connects, makes the first signing key where there is none, and gives what is served."""
    database = await Database.connect(config.database_url, "auth", QUERIES)
    keystore = await open_key_store(database, config.keystore, "auth")
    access = AccessState(database)
    try:
        store = Store(database)
        secret = keystore.secret(SEAL_NAME)
        with audit.calling(audit.CallContext("auth.signing_key_made", "service:auth", "service:auth")):
            ring = open_ring(secret, await store.signing_keys(make_key(secret, os.urandom(8).hex())))
        await access.start()

        async def own_keys() -> Mapping[str, Ed25519PublicKey]:
            return ring.public

        handlers = AuthHandlers(store, ring, parse_service_hashes(config.service_token_hashes))
        yield Built(
            Authenticator(KeyCache(own_keys), access, handlers.exchange),
            [
                lambda server: auth_pb2_grpc.add_AuthServiceServicer_to_server(handlers, server),
                lambda server: auth_pb2_grpc.add_AccessServiceServicer_to_server(
                    AccessHandlers(store), server
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
