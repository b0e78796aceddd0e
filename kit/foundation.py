"""What every service stands on: its settings, the database, the key store, who may do what, and one orderly end."""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path

from kit.access_state import AccessState
from kit.config import DATABASE_URL, LISTEN, TARGET, setting
from kit.database import PATIENCE, Database
from kit.dialing import AuthClient
from kit.identity import Authenticator
from kit.key_cache import KeyCache
from kit.keystore import open_key_store
from kit.sealing import KeyStore


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What every service is told."""

    database_url: str = setting("DATABASE_URL", form=DATABASE_URL)
    keystore: str = setting("TEAMLORE_KEYSTORE")
    """File of the key store."""
    listen: str = setting("TEAMLORE_LISTEN", "0.0.0.0:8080", form=LISTEN)
    calls_per_minute: int = setting("TEAMLORE_CALLS_PER_MINUTE", 6000, minimum=1, maximum=1_000_000)
    """A principal's budget of each method, in each process."""
    public_calls_per_minute: int = setting(
        "TEAMLORE_PUBLIC_CALLS_PER_MINUTE", 60_000, minimum=1, maximum=10_000_000
    )
    """An address's budget of calls of each method without a good credential; behind a proxy all are one address."""
    streams_per_principal: int = setting("TEAMLORE_STREAMS_PER_PRINCIPAL", 200, minimum=1, maximum=100_000)
    """Streams that a principal may hold open, in each process."""
    transaction_seconds: float = setting(
        "TEAMLORE_TRANSACTION_SECONDS", PATIENCE, minimum=0.1, maximum=300
    )
    """How long a transaction may do nothing, or a statement wait for another's lock."""
    key_refresh: float = setting("TEAMLORE_KEY_REFRESH_SECONDS", 30.0, minimum=0.05, maximum=3600)
    """How often the signing keys' public halves are read, the same for all services."""


@dataclass(frozen=True, kw_only=True)
class NeighbourSettings(Settings):
    """What every service but auth is told besides."""

    auth_target: str = setting("TEAMLORE_AUTH_TARGET", form=TARGET)
    """host:port of auth."""


class Drain:
    """Tells streams that the process is going away, so that they end themselves with a last bookmark."""

    def __init__(self) -> None:
        self.started = asyncio.Event()


class Foundation:
    """What is open while a service runs; all of it is closed in the reverse order."""

    def __init__(
        self, settings: Settings, drain: Drain, database: Database, keys: KeyStore, access: AccessState
    ) -> None:
        self.settings = settings
        self.drain = drain
        self.database = database
        self.keys = keys
        self.access = access
        self.ends = contextlib.AsyncExitStack()

    @classmethod
    @contextlib.asynccontextmanager
    async def laid(
        cls, service: str, settings: Settings, queries: Path, drain: Drain, connections: int
    ) -> AsyncIterator["Foundation"]:
        """Opens the key store and the database in the service's role, and follows the access state."""
        async with contextlib.AsyncExitStack() as ends:
            database = await Database.connect(
                settings.database_url, service, queries, connections, settings.transaction_seconds
            )
            ends.push_async_callback(database.close)
            keys = await open_key_store(database, settings.keystore, service)
            ends.callback(keys.close)
            access = AccessState(database)
            ends.push_async_callback(access.stop)
            await access.start()
            base = cls(settings, drain, database, keys, access)
            async with base.ends:
                yield base

    def at_end(self, close: Callable[[], Awaitable[None] | None]) -> None:
        """Calls `close` when the service ends, before all that was opened earlier is closed."""

        async def run() -> None:
            closing = close()
            if inspect.isawaitable(closing):
                await closing

        self.ends.push_async_callback(run)

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """Runs `work` in the background until the service ends."""
        task = asyncio.create_task(work)

        async def end() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self.at_end(end)

    def authenticator(self, auth_target: str) -> Authenticator:
        """Knows callers by the keys of auth, and has auth exchange their opaque tokens."""
        auth = AuthClient(auth_target)
        self.at_end(auth.close)
        return Authenticator(KeyCache(auth.keys, self.settings.key_refresh), self.access, auth.exchange)
