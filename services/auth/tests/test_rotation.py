"""Key rotation on a real database: replicas agree, no JWT meets an unknown key, a leaked key is out at once."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import jwt
import pytest

from kit import identity
from kit.access import Caller
from kit.access_state import AccessState
from kit.config import OURS
from kit.database import Database
from kit.errors import Refusal
from kit.identity import JWT_LEEWAY, JWT_SECONDS, Authenticator
from kit.key_cache import KeyCache
from kit.keystore import open_key_store
from kit.sealing import KeyMissing
from services.auth import keys, rotation
from services.auth.keys import MARGIN_SECONDS, SEAL_NAME, Schedule
from services.auth.rotate import rotate
from services.auth.rotation import Rotation
from services.auth.store import QUERIES, Store

LEAD, EVERY = 300.0, 86_400.0
KEPT = JWT_SECONDS + JWT_LEEWAY + MARGIN_SECONDS
SECRET = bytes(range(32))
OPAQUE = "tlk_" + "x" * 43
ROOT = Path(__file__).resolve().parents[3]


@asynccontextmanager
async def replica(url: str, secret: bytes = SECRET) -> AsyncIterator[Rotation]:
    database = await Database.connect(url, "auth", QUERIES, size=3)
    try:
        process = Rotation(Store(database), secret, Schedule.checked(EVERY, LEAD, 30.0))
        process._database = database  # type: ignore[attr-defined]
        yield process
    finally:
        await database.close()


class Clock:
    """Lets time pass for the keys: what the database holds moves into the past."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def passes(self, seconds: float) -> None:
        await self.sql(
            "update auth.signing_keys set active_from = active_from - make_interval(secs => $1),"
            " retired_at = retired_at - make_interval(secs => $1)",
            seconds,
        )

    async def sql(self, text: str, *args: object) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self.url)
        try:
            return list(await connection.fetch(text, *args))
        finally:
            await connection.close()


async def test_two_replicas_sign_with_one_key_and_make_it_once(database_url: str) -> None:
    async with replica(database_url) as one, replica(database_url) as two:
        await one.tend()
        await two.tend()
        assert one.signer()[0] == two.signer()[0]
        assert one.signer()[1].private_bytes_raw() == two.signer()[1].private_bytes_raw()
        assert len(await one.public_keys()) == 1
        clock = Clock(database_url)
        names = await clock.sql("select name from compliance.audit_calls where name like 'auth.signing%'")
        assert [row["name"] for row in names] == [rotation.MADE]


async def test_a_key_is_published_before_it_signs_and_stays_until_its_last_token_is_gone(
    database_url: str,
) -> None:
    """A service that re-reads keys as late as it may never meets a JWT whose key it lacks."""
    clock = Clock(database_url)
    async with replica(database_url) as one, replica(database_url) as two:
        await one.tend()
        await two.tend()
        held = dict(await one.public_keys())
        tokens: list[tuple[float, str]] = []
        time, ever = 0.0, set(held)
        steps = [EVERY - LEAD - 60.0] + [15.0] * int((LEAD + 120 + KEPT + 60) / 15)
        for step in steps:
            await clock.passes(step)
            time += step
            # The replicas tend at different times, and the service reads at the last moment, through the lagging one.
            await (one if int(time / 15) % 2 else two).tend()
            for process in (one, two):
                await process.load()
                kid, _ = process.signer()
                assert kid in held, "signed by a key that no service knows yet"
                tokens.append((time, kid))
            assert one.signer()[0] == two.signer()[0]
            known = set(await one.public_keys())
            for minted, kid in tokens:
                if time - minted <= JWT_SECONDS + JWT_LEEWAY:
                    assert kid in known, "a living token lost its key"
            ever |= known
            if int(time / 15) % 2:
                held = dict(await two.public_keys())
        assert len(ever) == 2
        assert len(known) == 1
        assert len({kid for _, kid in tokens}) == 2
        rows = await clock.sql(
            "select retired_at is not null r, sealed_private_key s from auth.signing_keys order by 1"
        )
        assert [(row["r"], row["s"] is None) for row in rows] == [(False, False), (True, True)]
        audit = await clock.sql(
            "select name from compliance.audit_calls where name like 'auth.signing%' order by at"
        )
        assert [row["name"] for row in audit] == [rotation.MADE, rotation.MADE, rotation.RETIRED]


async def test_the_ring_moves_on_by_itself_between_reads(database_url: str) -> None:
    async with replica(database_url) as one:
        await one.tend()
        first = one.signer()[0]
        await rotate(one._store, SECRET, 0.4, now=False)
        await one.load()
        assert one.signer()[0] == first

        await asyncio.sleep(0.5)
        assert one.signer()[0] != first


async def test_a_ring_that_was_not_read_for_long_signs_nothing(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replica(database_url) as one:
        await one.tend()
        monkeypatch.setattr(keys, "RING_SECONDS", -1.0)
        with pytest.raises(Refusal, match="cannot be read"):
            one.signer()


async def test_another_key_store_is_refused(database_url: str) -> None:
    async with replica(database_url) as one, replica(database_url, bytes(32)) as other:
        await one.tend()
        with pytest.raises(KeyMissing):
            await other.tend()


@pytest.mark.parametrize(
    ("every", "lead", "refresh"), [(86_400, 59, 30), (86_400, 10, 30), (500, 300, 30), (86_400, 300, 0)]
)
def test_a_lead_that_services_may_miss_is_refused(every: float, lead: float, refresh: float) -> None:
    with pytest.raises(RuntimeError, match="TEAMLORE_KEY_"):
        Schedule.checked(every, lead, refresh)
    Schedule.checked(86_400, 60, 30)
    Schedule.checked(10, 2, 1)


class Service:
    """A service beside auth: its own access state and key cache, its keys and JWTs from a replica of auth."""

    def __init__(self, url: str, auth: Rotation) -> None:
        self.url, self.auth, self.exchanged = url, auth, 0
        self.database: Database | None = None

    async def start(self) -> Callable[[str], Awaitable[Caller]]:
        self.database = await Database.connect(self.url, "sync", QUERIES, size=2)
        self.access = AccessState(self.database)
        await self.access.start()

        async def exchange(token: str) -> tuple[str, float]:
            self.exchanged += 1
            await self.auth.load()
            kid, key = self.auth.signer()
            return identity.mint(key, kid, self.access.audience, "service:sync", "internal", "service:sync")

        authenticator = Authenticator(KeyCache(self.auth.public_keys), self.access, exchange)

        async def call(credential: str) -> Caller:
            return await authenticator.authenticate([("authorization", f"Bearer {credential}")])

        return call

    async def stop(self) -> None:
        assert self.database is not None
        await self.access.stop()
        await self.database.close()


async def test_a_leaked_key_is_refused_at_once_and_callers_exchange_again(database_url: str) -> None:
    async with replica(database_url) as auth:
        await auth.tend()
        service = Service(database_url, auth)
        call = await service.start()
        try:
            assert (await call(OPAQUE)).internal
            kid, leaked = auth.signer()
            forged, _ = identity.mint(
                leaked, kid, service.access.audience, "service:sync", "internal", "service:sync"
            )
            assert (await call(forged)).internal
            # An unknown key id was just looked up: the limit on that must not hold up the new key.
            with pytest.raises(Refusal):
                await call(jwt.encode({"sub": "x"}, leaked, algorithm="EdDSA", headers={"kid": "nope"}))
            done = await rotate(auth._store, SECRET, LEAD, now=True)
            assert done.retired == 1
            await service.access._poll_once()
            with pytest.raises(Refusal) as refused:
                await call(forged)
            assert refused.value.reason == "CREDENTIAL_INVALID"
            assert (await call(OPAQUE)).internal
            assert service.exchanged == 2
        finally:
            await service.stop()
        assert set(await auth.public_keys()) == {done.kid}
        rows = await Clock(database_url).sql(
            "select 1 from auth.signing_keys where sealed_private_key is not null"
        )
        assert len(rows) == 1


async def test_many_replicas_that_start_at_once_make_one_key(database_url: str) -> None:
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(replica(database_url)) for _ in range(8)]
        await asyncio.gather(*(one._store.signing_keys() for one in replicas))
        await asyncio.gather(*(one.tend() for one in replicas))
        assert len(await replicas[0].public_keys()) == 1


async def test_two_urgent_rotations_at_once_leave_a_key(database_url: str) -> None:
    both_made = asyncio.Barrier(2)

    class Meets(Store):
        async def retire_signing_keys(self, choose: Any, bump: bool = False) -> int:
            await both_made.wait()
            return await super().retire_signing_keys(choose, bump)

    async with replica(database_url) as one:
        await one.tend()
        meets = Meets(one._store._database)
        await asyncio.gather(*(rotate(meets, SECRET, LEAD, now=True) for _ in range(2)))
        assert len(await one.public_keys()) == 1
        one.signer()


def run_rotate(url: str, keystore: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith(OURS)}
    return subprocess.run(
        [sys.executable, "-m", "services.auth.rotate", *arguments],
        env=env | {"DATABASE_URL": url, "TEAMLORE_KEYSTORE": str(keystore)} | more,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


async def test_the_command_and_its_exit_codes(database_url: str, tmp_path: Path) -> None:
    keystore = tmp_path / "keystore.db"
    database = await Database.connect(database_url, "auth", QUERIES)
    store = await open_key_store(database, str(keystore), "auth")
    secret = store.secret(SEAL_NAME)
    store.close()
    await database.close()
    async with replica(database_url, secret) as auth:
        await auth.tend()
        first = auth.signer()[0]
        done = run_rotate(database_url, keystore)
        assert done.returncode == 0, done.stderr
        assert "signs from" in done.stdout
        await auth.load()
        assert auth.signer()[0] == first
        assert run_rotate(database_url, keystore).returncode == 3
        assert run_rotate(database_url, keystore, TEAMLORE_KEY_LEAD_SECONDS="5").returncode == 1
        assert run_rotate(database_url, keystore, TEAMLORE_KEY_LEAD_SECONDS="soon").returncode == 2
        assert run_rotate(database_url, tmp_path / "other.db", "--now").returncode == 1
        assert run_rotate(database_url + "x", keystore, "--now").returncode == 1
        done = run_rotate(database_url, keystore, "--now", TEAMLORE_LISTEN="127.0.0.1:1")
        assert done.returncode == 0, done.stderr
        assert "2 other keys are retired" in done.stdout
        await auth.load()
        assert auth.signer()[0] != first
