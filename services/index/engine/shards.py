"""The vectors on disk: one folder, one process, one shard a collection.

What is promised, and what the tests kill the process to see:

- a write is on disk before its call returns (the engine runs without a log of its own, so that a
  deleted vector is in no log: each write is flushed instead);
- `Shard.delete` with `wait` returns only after the files were written anew without the deleted vectors;
- opening finishes what a killed process left half done.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import qdrant_edge as edge

from services.index.engine.complaints import Complaints

T = TypeVar("T")

_log = logging.getLogger("teamlore.engine")

#: Payload field that says which bank a point belongs to; nearly every query filters by it.
TENANT_FIELD: Final = "bank"
#: Name of the one dense vector on Qdrant's wire: the unnamed one.
DENSE: Final = ""

#: A sweep waits this long for more deletes to share it: it costs as much for a hundred as for one.
_GATHER_SECONDS: Final = 0.01

#: A sweep that failed is tried again after these seconds, each time twice as many, whether or not anyone asks.
_FIRST_RETRY, _LONGEST_RETRY = 1.0, 60.0

_NO_SPACE = re.compile(r"Not enough space|No space left|os error 28")
_NEEDED = re.compile(r"needed: ([\d.]+ \w+), available: ([\d.]+ \w+)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_DISTANCES: Final = {
    "Cosine": edge.Distance.Cosine,
    "Dot": edge.Distance.Dot,
    "Euclid": edge.Distance.Euclid,
    "Manhattan": edge.Distance.Manhattan,
}


class Refusal(Exception):
    """A call that is answered with a sentence instead of a result; raised as one of its five kinds."""


class Invalid(Refusal):
    """The request contradicts itself or the collection."""


class Unsupported(Refusal):
    """Qdrant can do this; this engine does not."""


class Missing(Refusal):
    """There is no such collection."""


class Taken(Refusal):
    """There is such a collection already."""


class NoSpace(Refusal):
    """The disk is too full to write the files anew; what was deleted stays hidden, and its bytes stay in them."""


class DirectoryInUse(Exception):
    """Another process holds the folder."""


@dataclass(frozen=True)
class Spec:
    """What a collection stores. Written beside the shard when it is made; never changes."""

    size: int
    """Length of the dense vector; 0 for a collection that has none."""
    distance: str
    """How dense vectors compare: Cosine, Dot, Euclid or Manhattan; empty where there are none."""
    sparse: tuple[str, ...] = ()
    """Names of the sparse vectors."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """What the maker of the collection noted about it, as JSON."""

    def config(self) -> edge.EdgeConfig:
        """The engine's options: no log; rewrite after the first deleted vector; exact search, no graph."""
        dense = {}
        if self.size:
            dense = {DENSE: edge.EdgeVectorParams(size=self.size, distance=_DISTANCES[self.distance])}
        return edge.EdgeConfig(
            vectors=dense,
            sparse_vectors={name: edge.EdgeSparseVectorParams() for name in self.sparse},
            wal_enabled=False,
            optimizers=edge.EdgeOptimizersConfig(
                deleted_threshold=1e-9, vacuum_min_vector_number=1, indexing_threshold=10**9
            ),
        )


class Shard:
    """One collection. The engine's calls hold the GIL, so they run in a thread, one at a time."""

    def __init__(self, spec: Spec, opened: edge.EdgeShard, unswept: NoSpace | None = None) -> None:
        """Take over an open shard of the engine; nothing else may use it from now on."""
        self.spec = spec
        self.unswept = unswept
        self._edge: edge.EdgeShard | None = opened
        self._lock = asyncio.Lock()
        self._running: set[asyncio.Task[Any]] = set()
        self._next_sweep: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._pause = _FIRST_RETRY
        self._complaints = Complaints()

    async def read(self, call: Callable[[edge.EdgeShard], T]) -> T:
        """Run `call` on the engine's shard. Raises Missing when the collection was deleted meanwhile."""
        return await self._finish(self._exclusively(call))

    async def write(self, operation: edge.UpdateOperation) -> None:
        """Apply one update. When this returns, it survives a kill of the process."""

        def apply(shard: edge.EdgeShard) -> None:
            shard.update(operation)
            shard.flush()

        await self._finish(self._exclusively(apply))

    async def delete(self, operation: edge.UpdateOperation, *, wait: bool) -> None:
        """Delete points: hidden for good when this returns and, with `wait`, their bytes gone from the files.

        Deleting what is not there sweeps as well: so a caller whose call was cut off just repeats it. Raises NoSpace
        when the points are hidden and their bytes have to stay for now; the sweep is tried again by itself.
        """
        await self.write(operation)
        sweep = self._sweep()
        if wait:
            await asyncio.shield(sweep)

    def _sweep(self) -> asyncio.Task[None]:
        """The sweep that starts next. All deletes committed before it starts share it."""
        if self._next_sweep is None:
            self._next_sweep = self._keep(self._sweep_once())
        return self._next_sweep

    async def _sweep_once(self) -> None:
        await asyncio.sleep(_GATHER_SECONDS)
        async with self._lock:
            self._next_sweep = None  # whoever deletes from now on needs the sweep after this one
            if self._edge is not None:
                try:
                    await asyncio.to_thread(sweep, self._edge)
                except NoSpace as error:
                    self.sweep_later(error)
                    raise
                self._pause = _FIRST_RETRY

    def sweep_later(self, why: NoSpace) -> None:
        """Tries the sweep again after a pause, and says once a minute what stands in its way."""
        if count := self._complaints.due("sweep"):
            _log.error("%s; tries since it was last said: %d", why, count)
        if self._retry is not None:
            self._retry.cancel()
        self._retry = asyncio.get_running_loop().call_later(self._pause, self._sweep)
        self._pause = min(2 * self._pause, _LONGEST_RETRY)

    async def _exclusively(self, call: Callable[[edge.EdgeShard], T]) -> T:
        async with self._lock:
            if self._edge is None:
                raise Missing("the collection was deleted")
            return await asyncio.to_thread(call, self._edge)

    async def _finish(self, work: Coroutine[Any, Any, T]) -> T:
        # A caller who goes away must not release the lock while the thread still works.
        return await asyncio.shield(self._keep(work))

    def _keep(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        # Taken notice of here: for a sweep that nobody waits for, asyncio would log a traceback.
        if not task.cancelled() and isinstance(task.exception(), Exception):
            _log.debug("a task failed", exc_info=task.exception())

    async def close(self) -> None:
        """Finish what was begun, flush and let go of the files. Later calls raise Missing."""
        if self._retry is not None:
            self._retry.cancel()
        while self._running:
            await asyncio.gather(*self._running, return_exceptions=True)
        async with self._lock:
            opened, self._edge = self._edge, None
            if opened is not None:
                await asyncio.to_thread(_flush_and_close, opened)


def sweep(shard: edge.EdgeShard) -> None:
    """Write segments anew until none holds a deleted vector. Blocks; about 1 s per 100,000 points.

    The old files leave at the flush *after* the rewrite, so a sweep ends with one. Raises NoSpace.
    """
    try:
        while True:
            again = shard.optimize()
            shard.flush()
            if not again:
                return
    except Exception as error:  # the engine raises nothing narrower
        if not _NO_SPACE.search(str(error)):
            raise
        needed = _NEEDED.search(str(error))
        said = f"needed {needed[1]}, free {needed[2]}" if needed else "no space is left"
        raise NoSpace(
            f"the disk is too full to write the vectors anew, so deleted ones stay in their files: {said}"
        ) from error


def _flush_and_close(shard: edge.EdgeShard) -> None:
    shard.flush()
    shard.close()


class Shards:
    """All collections of one folder: `lock`, `collections/<name>/{collection.json,shard/}`, `aside/`."""

    def __init__(self, folder: Path) -> None:
        """Lock the folder and open what it holds. Blocks. Raises DirectoryInUse."""
        self._live = folder / "collections"
        self._aside = folder / "aside"
        self._live.mkdir(parents=True, exist_ok=True)
        self._lock_file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock_file)
            raise DirectoryInUse(f"another vector engine is running on {folder}") from None
        shutil.rmtree(self._aside, ignore_errors=True)  # half made or half deleted
        self._aside.mkdir()
        self._changing = asyncio.Lock()
        self._shards = {path.name: _open(path) for path in sorted(self._live.iterdir())}

    def sweep_what_was_not(self) -> None:
        """Goes on with the sweeps that opening had no space for."""
        for shard in self._shards.values():
            if shard.unswept is not None:
                shard.sweep_later(shard.unswept)

    def names(self) -> list[str]:
        """Names of all collections, sorted."""
        return sorted(self._shards)

    def get(self, name: str) -> Shard:
        """The collection `name`. Raises Missing."""
        try:
            return self._shards[name]
        except KeyError:
            raise Missing(f"collection {name!r} does not exist") from None

    async def create(self, name: str, spec: Spec) -> None:
        """Make a collection, with its tenant index on the field `bank`. Raises Invalid and Taken."""
        if not _NAME.fullmatch(name):
            raise Invalid("a collection is named by 1 to 64 letters, digits, '_', '.' and '-'")
        if not (spec.size or spec.sparse):
            raise Invalid("a collection stores a dense vector, sparse ones, or both")
        if spec.size > 65536:
            raise Invalid("a dense vector has 1 to 65536 dimensions")
        async with self._changing:
            if name in self._shards:
                raise Taken(f"collection {name!r} exists already")
            self._shards[name] = await asyncio.to_thread(self._make, name, spec)

    def _make(self, name: str, spec: Spec) -> Shard:
        draft = self._aside / name
        shutil.rmtree(draft, ignore_errors=True)
        (draft / "shard").mkdir(parents=True)
        (draft / "collection.json").write_text(json.dumps(asdict(spec)))
        made = edge.EdgeShard.create(str(draft / "shard"), spec.config())
        index = edge.KeywordIndexParams(is_tenant=True)
        made.update(edge.UpdateOperation.create_field_index(TENANT_FIELD, index))
        _flush_and_close(made)
        for path in (draft / "collection.json", draft):
            _sync(path)
        draft.rename(self._live / name)
        _sync(self._live)
        return _open(self._live / name)

    async def delete(self, name: str) -> bool:
        """Delete a collection and its files; False when there is none."""
        async with self._changing:
            if name not in self._shards:
                return False
            await self._shards.pop(name).close()
            await asyncio.to_thread(self._remove, name)
            return True

    def _remove(self, name: str) -> None:
        doomed = self._aside / name
        (self._live / name).rename(doomed)
        _sync(self._live)
        shutil.rmtree(doomed)

    async def close(self) -> None:
        """Close every collection and give the folder back."""
        async with self._changing:
            for shard in self._shards.values():
                await shard.close()
            self._shards = {}
            os.close(self._lock_file)


def _open(path: Path) -> Shard:
    """Open one collection and sweep it: the process before may have been killed between delete and sweep."""
    stored = json.loads((path / "collection.json").read_text())
    spec = Spec(stored["size"], stored["distance"], tuple(stored["sparse"]), stored["metadata"])
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path / "shard" / "temp_segments")  # rewrites that never ended
    opened = edge.EdgeShard.load(str(path / "shard"), spec.config())
    unswept = None
    try:
        sweep(opened)
    except NoSpace as error:  # what was deleted is hidden all the same, and the rest can be served
        unswept = error
    return Shard(spec, opened, unswept)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
