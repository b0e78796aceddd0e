"""The index service: `python -m services.index.main`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from teamlore.compliance.v1 import compliance_pb2_grpc
from teamlore.index.v1 import index_pb2_grpc
from teamlore_embedder import open_embedder

from kit import hints
from kit.config import DATABASE_URL, HTTP_URL, LISTEN, TARGET, load_or_exit, setting
from kit.database import Database
from kit.dialing import AuthClient
from kit.identity import AccessState, Authenticator, KeyCache
from kit.keystore import open_key_store
from kit.serving import Built, Drain, run
from services.index.embedding import Embedding
from services.index.finding import Finder
from services.index.following import InFlight
from services.index.handlers import IndexHandlers, ParticipantHandlers
from services.index.indexing import Follower
from services.index.store import QUERIES, Store
from services.index.vectors import COLLECTION, Vectors


@dataclass(frozen=True)
class Config:
    """Settings of the index service."""

    database_url: str = setting("DATABASE_URL", form=DATABASE_URL)
    keystore: str = setting("TEAMLORE_KEYSTORE")
    auth_target: str = setting("TEAMLORE_AUTH_TARGET", form=TARGET)
    """host:port of auth."""
    qdrant_url: str = setting("QDRANT_URL", form=HTTP_URL)
    """http://host:port of the gRPC port of Qdrant or of the vector engine."""
    listen: str = setting("TEAMLORE_LISTEN", "0.0.0.0:8080", form=LISTEN)
    embed_model: str = setting("EMBED_MODEL", "")
    """A path or a model's name; empty for the packaged model."""
    embed_threads: int = setting("TEAMLORE_EMBED_THREADS", 2, minimum=0, maximum=256)
    """CPU threads of the packaged model; 0 for one a core."""


@contextlib.asynccontextmanager
async def build(config: Config, drain: Drain) -> AsyncIterator[Built]:
    """Opens the model, connects to the database, the key store, auth and the vectors, and gives what is served."""
    model = await asyncio.to_thread(open_embedder, config.embed_model, config.embed_threads)
    vectors, embedding = Vectors(config.qdrant_url), Embedding(model)
    database = await Database.connect(config.database_url, "index", QUERIES, size=20)
    keys = await open_key_store(database, config.keystore, "index")
    access, auth = AccessState(database), AuthClient(config.auth_target)
    tasks: list[asyncio.Task[None]] = []
    try:
        await access.start()
        store, in_flight = Store(database, keys), InFlight()
        await store.check_model(COLLECTION, model.model, model.revision, model.dimension)
        follower = Follower(store, vectors, embedding, in_flight, model.dimension)
        tasks += [
            asyncio.create_task(follower.run()),
            asyncio.create_task(hints.listen(config.database_url, follower.hint)),
        ]
        handlers = IndexHandlers(Finder(store, vectors, embedding, in_flight))
        participant = ParticipantHandlers(store, vectors, in_flight)
        yield Built(
            Authenticator(KeyCache(auth.keys), access, auth.exchange),
            [
                lambda server: index_pb2_grpc.add_IndexServiceServicer_to_server(handlers, server),
                lambda server: compliance_pb2_grpc.add_ErasureParticipantServiceServicer_to_server(
                    participant, server
                ),
            ],
            ("teamlore.index.v1.IndexService", "teamlore.compliance.v1.ErasureParticipantService"),
        )
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        embedding.close()
        await vectors.close()
        await auth.close()
        await access.stop()
        await database.close()
        keys.close()


if __name__ == "__main__":
    settings = load_or_exit(Config)
    run("index", settings.listen, settings, build)
