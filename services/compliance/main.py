"""The compliance service: `python -m services.compliance.main`."""

from dataclasses import dataclass

from teamlore.compliance.v1 import compliance_pb2_grpc as grpc_

from kit.config import TARGET, load_or_exit, setting
from kit.foundation import Foundation, NeighbourSettings
from kit.hints import Sender
from kit.interceptor import Built
from kit.ledger import Ledger
from kit.serving import run
from services.compliance.erasures import Runner
from services.compliance.handlers import ComplianceHandlers
from services.compliance.ledgering import Ledgered
from services.compliance.neighbours import ParticipantClient
from services.compliance.receipts import NO_INDEX, OUT_OF_SCOPE, Terms, open_signing_key
from services.compliance.store import QUERIES, Store
from services.compliance.sweeping import Sweep


@dataclass(frozen=True, kw_only=True)
class Config(NeighbourSettings):
    """Settings of the compliance service."""

    sync_target: str = setting("TEAMLORE_SYNC_TARGET", form=TARGET)
    """host:port of sync, which destroys the keys."""
    service_token: str = setting("TEAMLORE_SERVICE_TOKEN")
    index_target: str = setting("TEAMLORE_INDEX_TARGET", "", form=TARGET)
    """host:port of index, which purges the vectors; without it there are none, and receipts say so."""
    key_backup_days: int = setting("TEAMLORE_KEY_BACKUP_DAYS", 35, minimum=0, maximum=3650)
    """Days that a backup of the key store lives."""


async def build(config: Config, base: Foundation) -> Built:
    """Connects to the participants, runs what erasures are open, and gives what is served."""
    targets = {"sync": config.sync_target, "index": config.index_target}
    participants = {
        name: ParticipantClient(target, config.service_token) for name, target in targets.items() if target
    }
    for participant in participants.values():
        base.at_end(participant.close)
    hints = Sender(config.database_url)
    base.at_end(hints.stop)
    store = Store(base.database, hints.committed)
    ledgered = Ledgered(store, Ledger(base.keys.path), participants["sync"])
    base.at_end(ledgered.close)
    scope = OUT_OF_SCOPE if config.index_target else (*OUT_OF_SCOPE, NO_INDEX)
    signer = open_signing_key(base.keys, await store.receipt_key())
    runner = Runner(store, {**participants, "sync": ledgered}, signer, Terms(config.key_backup_days, scope))
    runner.start()
    base.at_end(runner.stop)
    sweep = Sweep(store, base.keys)
    sweep.start()
    base.at_end(sweep.stop)
    serves = (grpc_.add_ComplianceServiceServicer_to_server, ComplianceHandlers(store))
    return Built(
        base.authenticator(config.auth_target),
        {"teamlore.compliance.v1.ComplianceService": serves},
        {"erasure_id": store.bank_of},
    )


if __name__ == "__main__":
    run("compliance", load_or_exit(Config), QUERIES, build)
