"""The laptop's files, opened together: memories, sync state, memberships, and the embedder once needed."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property
from types import TracebackType
from typing import Protocol, Self

from teamlore_client._lock import BankLock, try_lock
from teamlore_client._membership import Memberships
from teamlore_client._memory import FieldInvalid
from teamlore_client._paths import config_dir, data_dir, state_dir
from teamlore_client._state import SyncState
from teamlore_client._store import EmbedderIdentity, Store

EMBEDDER_VARIABLE = "TEAMLORE_EMBEDDER"


class NoEmbedder(Exception):
    """The model that turns texts into vectors cannot be opened; what needs no vector still works."""


class Embeds(Protocol):
    """The part of an embedder that the laptop uses."""

    @property
    def model(self) -> str: ...
    @property
    def revision(self) -> str: ...
    @property
    def dimension(self) -> int: ...
    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]: ...
    def seen_whole(self, texts: Sequence[str]) -> list[bool]: ...


class Laptop:
    """Everything of one home. Files are opened at first use, the embedder (half a second) last of all."""

    def __init__(self, embedder: Embeds | None = None) -> None:
        """`embedder` is the packaged one, or what TEAMLORE_EMBEDDER names, unless given."""
        self._given = embedder
        self._open = ExitStack()

    def close(self) -> None:
        """Close what was opened; safe to call twice."""
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @cached_property
    def store(self) -> Store:
        """The memories, for everything that needs no vector."""
        return self._open.enter_context(Store(data_dir() / "memory.db"))

    @cached_property
    def vectors(self) -> Store:
        """The same file, opened for adding and searching; loads the embedder."""
        identity = EmbedderIdentity(self._embedder.model, self._embedder.revision, self._embedder.dimension)
        return self._open.enter_context(Store(data_dir() / "memory.db", identity))

    @cached_property
    def state(self) -> SyncState:
        """What sync remembers."""
        return self._open.enter_context(SyncState(state_dir() / "sync.db"))

    @cached_property
    def memberships(self) -> Memberships:
        """Which banks are shared."""
        return Memberships(config_dir())

    def embed(self, texts: Sequence[str], field: str = "text") -> list[list[float]]:
        """Return a vector for each text. Raises FieldInvalid naming `field` for what is not Unicode text."""
        for text in texts:
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise FieldInvalid(field, "must be valid Unicode") from error
        return [[float(number) for number in row] for row in self._embedder.embed(texts)] if texts else []

    def seen_whole(self, text: str) -> bool:
        """Tell whether the text's vector tells of all of it, so that a cosine may call it a near-duplicate."""
        return self._embedder.seen_whole([text])[0]

    def try_lock(self, bank: str) -> BankLock | None:
        """Take the bank's sync lock without waiting; None when another process has it."""
        return try_lock(state_dir(), bank)

    @cached_property
    def _embedder(self) -> Embeds:
        if self._given is not None:
            return self._given
        # Importing the model's runtime takes a tenth of a second, which a list need not wait for.
        from teamlore_embedder import EmbedderUnavailable, open_embedder

        try:
            embedder: Embeds = open_embedder(os.environ.get(EMBEDDER_VARIABLE, ""))  # type: ignore[assignment]
        except EmbedderUnavailable as error:
            raise NoEmbedder(str(error)) from error
        return embedder
