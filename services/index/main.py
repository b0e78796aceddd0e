"""The index service: `python -m services.index.main`."""

import asyncio
import os
from dataclasses import dataclass

from teamlore.compliance.v1 import compliance_pb2_grpc
from teamlore.index.v1 import index_pb2_grpc
from teamlore_embedder import open_embedder

from kit import hints
from kit.config import HTTP_URL, load_or_exit, setting
from kit.foundation import Foundation, NeighbourSettings
from kit.interceptor import Built
from kit.serving import run
from services.index.duplicates import Duplicates
from services.index.embedding import Embedding
from services.index.finding import Finder
from services.index.flight import InFlight
from services.index.handlers import IndexHandlers, ParticipantHandlers
from services.index.indexing import Follower, TermWork, VectorWork
from services.index.store import QUERIES, Store
from services.index.term_points import FORMER, TermPoints
from services.index.terms import TermKeys
from services.index.vectors import COLLECTION, Vectors


@dataclass(frozen=True, kw_only=True)
class Config(NeighbourSettings):
    """Settings of the index service."""

    qdrant_url: str = setting("QDRANT_URL", form=HTTP_URL)
    """http://host:port of the gRPC port of Qdrant or of the vector engine."""
    embed_model: str = setting("EMBED_MODEL", "")
    """A path or a model's name; empty for the packaged model."""
    embed_threads: int = setting("TEAMLORE_EMBED_THREADS", 2, minimum=0, maximum=256)
    """Texts that the packaged model embeds at once for those who wait, and as many at low priority for the follower; 0 for
    one a core."""


async def build(config: Config, base: Foundation) -> Built:
    """Opens the model, connects to the vectors, follows the banks, and gives what is served."""
    model = await asyncio.to_thread(open_embedder, config.embed_model, 1)
    embedding = Embedding(model, config.embed_threads or os.cpu_count() or 1)
    vectors, points = Vectors(config.qdrant_url), TermPoints(config.qdrant_url)
    former = TermPoints(config.qdrant_url, FORMER)
    for part in (vectors, points, former, embedding):
        base.at_end(part.close)
    store, in_flight = Store(base.database, base.keys), InFlight()
    keys = TermKeys(base.keys.secret("index.terms"))
    await store.check_model(COLLECTION, model.model, model.revision, model.dimension)
    behind = Follower(store, VectorWork(store, vectors, embedding, in_flight, model.dimension))
    ahead = Follower(store, TermWork(store, points, former, in_flight, keys), behind.hint)
    base.spawn(ahead.run())
    base.spawn(behind.run())
    base.spawn(hints.listen(config.database_url, ahead.hint))
    duplicates = Duplicates(store, vectors, points, embedding, in_flight, keys)
    handlers = IndexHandlers(Finder(store, vectors, embedding), duplicates)
    # A replica of an earlier version may have made its collection anew since this one removed it.
    participant = ParticipantHandlers(store, (points, vectors, former), in_flight)
    serve, erase = index_pb2_grpc, compliance_pb2_grpc
    return Built(
        base.authenticator(config.auth_target),
        {
            "teamlore.index.v1.IndexService": (serve.add_IndexServiceServicer_to_server, handlers),
            "teamlore.compliance.v1.ErasureParticipantService": (
                erase.add_ErasureParticipantServiceServicer_to_server,
                participant,
            ),
        },
    )


if __name__ == "__main__":
    run("index", load_or_exit(Config), QUERIES, build, connections=20)
