"""The feed service: `python -m services.feed.main`."""

import asyncio
import contextlib
from dataclasses import dataclass

from teamlore.feed.v1 import feed_pb2_grpc

from kit import hints
from kit.config import load_or_exit
from kit.errors import LOST
from kit.foundation import Drain, Foundation, NeighbourSettings
from kit.interceptor import Built
from kit.serving import run
from services.feed.cursors import CursorCodec
from services.feed.handlers import FeedHandlers
from services.feed.heads import POLL_SECONDS, Heads
from services.feed.store import QUERIES, Store


@dataclass(frozen=True, kw_only=True)
class Config(NeighbourSettings):
    """Settings of the feed service."""


async def _poll(heads: Heads, drain: Drain) -> None:
    while not drain.started.is_set():
        with contextlib.suppress(*LOST):
            await heads.poll_once()
        await asyncio.sleep(POLL_SECONDS)
    heads.ring_all()


async def build(config: Config, base: Foundation) -> Built:
    """Follows the heads, and gives what is served."""
    store = Store(base.database, base.keys)
    heads = Heads(store.heads_of)
    base.spawn(_poll(heads, base.drain))
    base.spawn(hints.listen(config.database_url, heads.hint))
    authenticator = base.authenticator(config.auth_target)
    codec = CursorCodec(base.keys.secret("feed.cursors"))
    handlers = FeedHandlers(store, codec, heads, authenticator, base.drain)
    serves = (feed_pb2_grpc.add_FeedServiceServicer_to_server, handlers)
    return Built(authenticator, {"teamlore.feed.v1.FeedService": serves})


if __name__ == "__main__":
    run("feed", load_or_exit(Config), QUERIES, build, connections=20)
