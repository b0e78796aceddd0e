"""The sync service: `python -m services.sync.main`."""

from dataclasses import dataclass

from teamlore.compliance.v1 import compliance_pb2_grpc
from teamlore.sync.v1 import sync_pb2_grpc

from kit.config import TARGET, load_or_exit, setting
from kit.foundation import Foundation, NeighbourSettings
from kit.hints import Sender
from kit.interceptor import Built
from kit.sealing import KeyStore
from kit.serving import run
from kit.validation import LARGEST
from services.sync.handlers import ParticipantHandlers, SyncHandlers
from services.sync.neighbours import IndexClient
from services.sync.pushing import Pusher, Terms
from services.sync.store import CONNECTIONS, QUERIES, Store


@dataclass(frozen=True, kw_only=True)
class Config(NeighbourSettings):
    """Settings of the sync service."""

    index_target: str = setting("TEAMLORE_INDEX_TARGET", "", form=TARGET)
    """host:port of index; without it near-duplicates are not looked for."""
    service_token: str = setting("TEAMLORE_SERVICE_TOKEN", "")
    bank_creation: str = setting("BANK_CREATION", "writers", choices=("writers", "admin"))
    secrets_barrier: str = setting("TEAMLORE_SECRETS_BARRIER", "redact", choices=("redact", "reject", "off"))
    """What banks do whose policy does not say."""
    pushes_per_minute: int | None = setting("TEAMLORE_PUSHES_PER_MINUTE", None, minimum=1, maximum=1_000_000)
    """A principal's budget of pushes; where it is not set, TEAMLORE_CALLS_PER_MINUTE."""
    records_per_day: int = setting("TEAMLORE_RECORDS_PER_DAY", 0, minimum=0, maximum=1_000_000_000)
    """Records that a principal may store a day (UTC); 0 sets no quota. A batch may overshoot it."""


async def build(config: Config, base: Foundation) -> Built:
    """Connects to index, and gives what is served."""
    index, hints = IndexClient(config.index_target, config.service_token), Sender(config.database_url)
    base.at_end(index.close)
    base.at_end(hints.stop)
    # A second handle: one thread may erase while the loop seals.
    eraser = KeyStore(base.keys.path)
    base.at_end(eraser.close)
    store = Store(base.database, hints.committed, quota=config.records_per_day > 0)
    terms = Terms(config.bank_creation == "writers", config.secrets_barrier, config.records_per_day)
    pusher = Pusher(store, base.keys, index, terms)
    handlers = SyncHandlers(store, base.keys, pusher)
    push = "teamlore.sync.v1.SyncService.Push"
    serve, erase = sync_pb2_grpc, compliance_pb2_grpc
    return Built(
        base.authenticator(config.auth_target),
        {
            "teamlore.sync.v1.SyncService": (serve.add_SyncServiceServicer_to_server, handlers),
            "teamlore.compliance.v1.ErasureParticipantService": (
                erase.add_ErasureParticipantServiceServicer_to_server,
                ParticipantHandlers(store, eraser),
            ),
        },
        # Records within their limits may be more together than a request takes: that is refused in words.
        largest_message=2 * LARGEST,
        counted_as={f"{push}Stream": push},
        calls_per_minute={} if config.pushes_per_minute is None else {push: config.pushes_per_minute},
    )


if __name__ == "__main__":
    run("sync", load_or_exit(Config), QUERIES, build, connections=CONNECTIONS)
