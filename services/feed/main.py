"""The feed service: `python -m services.feed.main`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from teamlore.feed.v1 import feed_pb2_grpc

from kit import hints
from kit.config import DATABASE_URL, LISTEN, TARGET, load_or_exit, setting
from kit.database import Database
from kit.dialing import AuthClient
from kit.errors import LOST
from kit.identity import AccessState, Authenticator, KeyCache
from kit.keystore import open_key_store
from kit.serving import Built, Drain, run
from services.feed.cursors import CursorCodec
from services.feed.handlers import FeedHandlers
from services.feed.heads import POLL_SECONDS, Heads
from services.feed.store import QUERIES, Store


@dataclass(frozen=True)
class Config:
    """Settings of the feed service."""

    database_url: str = setting("DATABASE_URL", form=DATABASE_URL)
    keystore: str = setting("TEAMLORE_KEYSTORE")
    auth_target: str = setting("TEAMLORE_AUTH_TARGET", form=TARGET)
    """host:port of auth."""
    listen: str = setting("TEAMLORE_LISTEN", "0.0.0.0:8080", form=LISTEN)


async def _poll(heads: Heads, drain: Drain) -> None:
    while not drain.started.is_set():
        with contextlib.suppress(*LOST):
            await heads.poll_once()
        await asyncio.sleep(POLL_SECONDS)
    heads.ring_all()


@contextlib.asynccontextmanager
async def build(config: Config, drain: Drain) -> AsyncIterator[Built]:
    """Connects to the database, the key store and auth, and gives what is served."""
    database = await Database.connect(config.database_url, "feed", QUERIES, size=20)
    keys = await open_key_store(database, config.keystore, "feed")
    access, auth = AccessState(database), AuthClient(config.auth_target)
    tasks: list[asyncio.Task[None]] = []
    try:
        await access.start()
        store = Store(database, keys)
        heads = Heads(store.heads_of)
        tasks += [
            asyncio.create_task(_poll(heads, drain)),
            asyncio.create_task(hints.listen(config.database_url, heads.hint)),
        ]
        authenticator = Authenticator(KeyCache(auth.keys), access, auth.exchange)
        handlers = FeedHandlers(store, CursorCodec(keys.secret("feed.cursors")), heads, authenticator, drain)
        yield Built(
            authenticator,
            [lambda server: feed_pb2_grpc.add_FeedServiceServicer_to_server(handlers, server)],
            ("teamlore.feed.v1.FeedService",),
        )
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await auth.close()
        await access.stop()
        await database.close()
        keys.close()


if __name__ == "__main__":
    settings = load_or_exit(Config)
    run("feed", settings.listen, settings, build)
