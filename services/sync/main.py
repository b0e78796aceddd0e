"""The sync service: `python -m services.sync.main`."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from teamlore.compliance.v1 import compliance_pb2_grpc
from teamlore.sync.v1 import sync_pb2_grpc

from kit.barrier import Barrier
from kit.config import DATABASE_URL, LISTEN, TARGET, load_or_exit, setting
from kit.database import Database
from kit.dialing import AuthClient
from kit.hints import Sender
from kit.identity import AccessState, Authenticator, KeyCache
from kit.keystore import open_key_store
from kit.limits import RateLimit
from kit.sealing import KeyStore
from kit.serving import Built, Drain, run
from services.sync.handlers import ParticipantHandlers, SyncHandlers
from services.sync.neighbours import IndexClient
from services.sync.pushing import Pusher
from services.sync.store import QUERIES, Store


@dataclass(frozen=True)
class Config:
    """Settings of the sync service."""

    database_url: str = setting("DATABASE_URL", form=DATABASE_URL)
    keystore: str = setting("TEAMLORE_KEYSTORE")
    auth_target: str = setting("TEAMLORE_AUTH_TARGET", form=TARGET)
    """host:port of auth."""
    listen: str = setting("TEAMLORE_LISTEN", "0.0.0.0:8080", form=LISTEN)
    index_target: str = setting("TEAMLORE_INDEX_TARGET", "", form=TARGET)
    """host:port of index; without it near-duplicates are not looked for."""
    service_token: str = setting("TEAMLORE_SERVICE_TOKEN", "")
    bank_creation: str = setting("BANK_CREATION", "writers", choices=("writers", "admin"))
    secrets_barrier: str = setting("TEAMLORE_SECRETS_BARRIER", "redact", choices=("redact", "reject", "off"))
    pushes_per_minute: int = setting("TEAMLORE_PUSHES_PER_MINUTE", 6000, minimum=1, maximum=1_000_000)
    """A principal's budget of pushes, in calls a minute."""


@contextlib.asynccontextmanager
async def build(config: Config, drain: Drain) -> AsyncIterator[Built]:
    """Connects to the database, the key store, auth and index, and gives what is served."""
    database = await Database.connect(config.database_url, "sync", QUERIES, size=20)
    # Two handles: one thread may erase while the loop seals.
    keys = await open_key_store(database, config.keystore, "sync")
    eraser = KeyStore(keys.path)
    access, auth = AccessState(database), AuthClient(config.auth_target)
    index, hints = IndexClient(config.index_target, config.service_token), Sender(config.database_url)
    try:
        await access.start()
        store = Store(database, hints.committed)
        pusher = Pusher(store, keys, index, config.bank_creation == "writers")
        handlers = SyncHandlers(
            store, pusher, Barrier(config.secrets_barrier), RateLimit(config.pushes_per_minute)
        )
        yield Built(
            Authenticator(KeyCache(auth.keys), access, auth.exchange),
            [
                lambda server: sync_pb2_grpc.add_SyncServiceServicer_to_server(handlers, server),
                lambda server: compliance_pb2_grpc.add_ErasureParticipantServiceServicer_to_server(
                    ParticipantHandlers(store, eraser), server
                ),
            ],
            ("teamlore.sync.v1.SyncService", "teamlore.compliance.v1.ErasureParticipantService"),
        )
    finally:
        await hints.stop()
        await index.close()
        await auth.close()
        await access.stop()
        await database.close()
        keys.close()
        eraser.close()


if __name__ == "__main__":
    settings = load_or_exit(Config)
    run("sync", settings.listen, settings, build)
