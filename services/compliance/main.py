"""The compliance service: `python -m services.compliance.main`."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from teamlore.compliance.v1 import compliance_pb2_grpc

from kit.config import DATABASE_URL, LISTEN, TARGET, load_or_exit, setting
from kit.database import Database
from kit.dialing import AuthClient
from kit.hints import Sender
from kit.identity import AccessState, Authenticator, KeyCache
from kit.keystore import open_key_store
from kit.serving import Built, Drain, run
from services.compliance.erasures import Runner
from services.compliance.handlers import ComplianceHandlers
from services.compliance.neighbours import ParticipantClient
from services.compliance.receipts import NO_INDEX, OUT_OF_SCOPE, Terms, open_signing_key
from services.compliance.store import QUERIES, Store
from services.compliance.sweeping import Sweep


@dataclass(frozen=True)
class Config:
    """Settings of the compliance service."""

    database_url: str = setting("DATABASE_URL", form=DATABASE_URL)
    keystore: str = setting("TEAMLORE_KEYSTORE")
    auth_target: str = setting("TEAMLORE_AUTH_TARGET", form=TARGET)
    """host:port of auth."""
    sync_target: str = setting("TEAMLORE_SYNC_TARGET", form=TARGET)
    """host:port of sync, which destroys the keys."""
    service_token: str = setting("TEAMLORE_SERVICE_TOKEN")
    listen: str = setting("TEAMLORE_LISTEN", "0.0.0.0:8080", form=LISTEN)
    index_target: str = setting("TEAMLORE_INDEX_TARGET", "", form=TARGET)
    """host:port of index, which purges the vectors; without it there are none, and receipts say so."""
    key_backup_days: int = setting("TEAMLORE_KEY_BACKUP_DAYS", 35, minimum=0, maximum=3650)
    """Days that a backup of the key store lives."""


@contextlib.asynccontextmanager
async def build(config: Config, drain: Drain) -> AsyncIterator[Built]:
    """Connects to the database, the key store, auth and the participants, and gives what is served."""
    database = await Database.connect(config.database_url, "compliance", QUERIES)
    keys = await open_key_store(database, config.keystore, "compliance")
    access, auth = AccessState(database), AuthClient(config.auth_target)
    targets = {"sync": config.sync_target, "index": config.index_target}
    participants = {
        name: ParticipantClient(target, config.service_token) for name, target in targets.items() if target
    }
    scope = OUT_OF_SCOPE if config.index_target else (*OUT_OF_SCOPE, NO_INDEX)
    hints = Sender(config.database_url)
    store = Store(database, hints.committed)
    terms = Terms(config.key_backup_days, scope)
    key = open_signing_key(keys, await store.receipt_key())
    runner, sweep = Runner(store, participants, key, terms), Sweep(store, keys)
    try:
        await access.start()
        runner.start()
        sweep.start()
        handlers = ComplianceHandlers(store)
        yield Built(
            Authenticator(KeyCache(auth.keys), access, auth.exchange),
            [lambda server: compliance_pb2_grpc.add_ComplianceServiceServicer_to_server(handlers, server)],
            ("teamlore.compliance.v1.ComplianceService",),
            {"erasure_id": store.bank_of},
        )
    finally:
        await runner.stop()
        await sweep.stop()
        await hints.stop()
        for participant in participants.values():
            await participant.close()
        await auth.close()
        await access.stop()
        await database.close()
        keys.close()


if __name__ == "__main__":
    settings = load_or_exit(Config)
    run("compliance", settings.listen, settings, build)
