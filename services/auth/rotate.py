"""Makes the next signing key out of turn: `python -m services.auth.rotate [--now]`.

Without --now the key is published at once and signs after TEAMLORE_KEY_LEAD_SECONDS: no call is refused. With --now,
for a key that leaked, it signs at once and all others are retired at once: their JWTs are refused from then on, and
callers exchange their tokens again. It takes auth's own settings.

Exit codes: 0 done; 1 the database or the key store cannot be used, or the settings contradict each other; 2 a setting
is missing or malformed; 3 a next key is waiting already and nothing was done.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from kit import audit
from kit.config import load_or_exit
from kit.database import Database, why
from kit.errors import LOST, Refusal
from kit.keystore import open_key_store
from kit.sealing import KeyMissing
from services.auth import keys, rotation
from services.auth.keys import SealedKey
from services.auth.main import Config
from services.auth.store import QUERIES, Store


@dataclass(frozen=True)
class Done:
    """What the command did: the key it made (None: one was waiting), when that signs, how many it retired."""

    kid: str | None
    active_from: datetime | None
    retired: int


async def rotate(store: Store, secret: bytes, lead: float, now: bool) -> Done:
    """Makes a key that signs after `lead` seconds; with `now` at once, and retires all others."""

    def start(stored: Sequence[SealedKey], time_: datetime) -> datetime | None:
        if now:
            return time_
        waiting = any(key.active_from > time_ for key in stored)
        return None if waiting else time_ + timedelta(seconds=lead)

    with audit.calling(rotation.job(rotation.MADE)):
        made = await store.make_signing_key(start, lambda active: keys.make_key(secret, active), bump=now)
    if made is None:
        return Done(None, None, 0)
    retired = 0
    if now:
        with audit.calling(rotation.job(rotation.RETIRED)):
            retired = await store.retire_signing_keys(
                # Where another --now came in between, its key is the one that stays.
                lambda stored, _: (
                    [key.kid for key in stored if key.kid != made.kid]
                    if made.kid in {key.kid for key in stored}
                    else []
                ),
                bump=True,
            )
    return Done(made.kid, made.active_from, retired)


async def _run(config: Config, now: bool) -> Done:
    lead = keys.Schedule.checked(config.key_rotation, config.key_lead, config.key_refresh).lead
    database = await Database.connect(config.database_url, "auth", QUERIES, size=1)
    try:
        keystore = await open_key_store(database, config.keystore, "auth")
        try:
            secret = keystore.secret(keys.SEAL_NAME)
            store = Store(database)
            stored, read_at = await store.signing_keys()
            # A key sealed under another key store's secret would stop every auth process at its next read.
            keys.open_ring(secret, stored, read_at)
            return await rotate(store, secret, lead, now)
        finally:
            keystore.close()
    finally:
        await database.close()


def main() -> None:
    """The command; exit codes as the module says."""
    parser = argparse.ArgumentParser(
        prog="python -m services.auth.rotate", description="Make the next signing key out of turn."
    )
    parser.add_argument(
        "--now",
        action="store_true",
        help="for a leaked key: sign with the new key and retire the others at once",
    )
    arguments = parser.parse_args()
    config = load_or_exit(Config)
    try:
        done = asyncio.run(_run(config, arguments.now))
    except KeyMissing:
        sys.exit("the key store is not the one of this database; nothing was changed")
    except (Refusal, RuntimeError) as error:
        sys.exit(str(error))
    except LOST as error:
        sys.exit(f"stopped, the database cannot be used: {why(error)}")
    if done.kid is None or done.active_from is None:
        print("a next key is published already and waits for its time; nothing was done", file=sys.stderr)
        sys.exit(3)
    print(f"key {done.kid} is published and signs from {done.active_from:%Y-%m-%dT%H:%M:%SZ}")
    if arguments.now:
        print(
            f"{done.retired} other keys are retired: JWTs they signed are refused, callers exchange their tokens again"
        )


if __name__ == "__main__":
    main()
