"""A bank that was really trimmed, under laptops that were away, joined late, or watched all the time."""

import asyncio
import subprocess
import sys
import time
import uuid
from pathlib import Path

import grpc
import pytest
from teamlore.feed.v1 import feed_pb2
from teamlore.sync.v1 import sync_pb2

from tests.integration.calls import outcome_of
from tests.integration.conftest import ROOT, RunningStack
from tests.integration.test_laptops import Team, digest, own_digest, team

__all__ = ["team"]


def trim(stack: RunningStack, bank: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "services.sync.trim", "--older-than", "0", "--bank", bank, *arguments],
        cwd=ROOT,
        env={"DATABASE_URL": stack.facts.database_url},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def trim_all(stack: RunningStack, bank: str, head: int) -> None:
    """Trims up to the head, once the index has followed that far."""

    async def horizon() -> int:
        token = await stack.token("user:trimmer", (bank, "read"))
        async with stack.channel("feed") as channel:
            request = feed_pb2.GetHeadRequest(bank=bank)
            return int((await stack.feed(channel).GetHead(request, metadata=stack.credential(token))).horizon)

    until = time.monotonic() + 60
    while asyncio.run(horizon()) < head:
        assert time.monotonic() < until
        trim(stack, bank, "--devices-seen-within", "0")
        time.sleep(0.2)


def test_a_laptop_that_was_away_reconciles_and_one_that_joins_late_gets_all(
    team: Team, tmp_path: Path
) -> None:
    for number in range(4):
        team.alice.run("memory", "add", f"Decision {number} about {uuid.uuid4().hex}.")
    team.alice.run("memory", "add", "The launch is called Wolframlantern.")
    team.join()
    before = team.bob.cut_off()
    [launch] = [m for m in team.alice.json("memory", "list")["memories"] if "Wolfram" in m["text"]]
    team.alice.run("memory", "forget", launch["id"], "--team")
    team.alice.run("memory", "add", f"Something new: {uuid.uuid4().hex}.")
    team.bob.run("memory", "add", f"Bob thought of this on a plane: {uuid.uuid4().hex}.")
    assert team.alice.json("team", "sync")["verified"]
    told = digest(team)
    # Bob has not confirmed the erasure: as long as he counts as in use, its tombstone waits for him.
    deadline = time.monotonic() + 60
    while "1 horizons rose" not in (said := trim(team.stack, team.bank)):
        assert time.monotonic() < deadline, said
        time.sleep(0.2)
    assert "1 wait for" in said
    trim_all(team.stack, team.bank, told[0])
    assert digest(team) == told
    team.bob.reconnect(before)
    seen = team.bob.json("team", "sync", "--dry-run")
    assert seen["reconcile"] == "CURSOR_BEFORE_HORIZON"
    synced = team.bob.json("team", "sync")
    assert (
        synced["reconciled"] == "CURSOR_BEFORE_HORIZON"
        and synced["verified"]
        and synced["erasures_confirmed"]
    )
    assert synced["pushed"]["stored"] == 1 and team.bob.traces("Wolframlantern") == []
    assert team.alice.json("team", "sync")["reconciled"] == "", "who is at the horizon goes on"
    seq, count, total = digest(team)
    assert count == 6
    trim_all(team.stack, team.bank, seq)
    # A new clone of the same repository, on a bank whose beginning is gone.
    carol = type(team.bob)(tmp_path / "carol/home", team.bob.clone)
    carol.home.mkdir(parents=True)
    token = asyncio.run(team.stack.token("user:carol", ("project:*", "read write forget")))
    carol.run("team", "join", "--server", team.server, "--token", token, "--yes")
    assert len(carol.json("memory", "list")["memories"]) == 6
    for laptop in (team.alice, team.bob, carol):
        assert laptop.json("team", "sync")["verified"]
        assert own_digest(laptop, team.bank) == (count, total)


def test_what_was_erased_while_a_laptop_had_left_with_its_mirror_goes_when_it_joins_again(team: Team) -> None:
    team.alice.run("memory", "add", "The launch is called Wolframlantern.")
    team.alice.run("memory", "add", f"Something else: {uuid.uuid4().hex}.")
    team.join()
    [launch] = [m for m in team.alice.json("memory", "list")["memories"] if "Wolfram" in m["text"]]
    team.bob.run("team", "leave", "--keep-mirror")
    assert team.bob.traces("Wolframlantern")
    team.alice.run("memory", "forget", launch["id"], "--team")
    trim_all(team.stack, team.bank, digest(team)[0])
    team.join("bob")
    assert team.bob.traces("Wolframlantern") == []
    assert len(team.bob.json("memory", "list")["memories"]) == 1
    assert team.bob.json("team", "sync")["verified"]


async def test_as_of_over_the_wire(stack: RunningStack) -> None:
    bank = f"project:as-of-{uuid.uuid4().hex[:8]}"
    writer = stack.credential(await stack.token("user:as-of", (bank, "read write forget")))
    stranger = stack.credential(await stack.token("user:as-of-stranger", ("project:other-1", "read")))
    ids = [uuid.uuid4().hex[:16] for _ in range(3)]
    async with stack.channel("sync") as channel, stack.channel("feed") as reading:
        feed = stack.feed(reading)
        for memory_id in ids:
            record = sync_pb2.Record(id=memory_id, text=f"{uuid.uuid4()} {uuid.uuid4()}")
            await stack.sync(channel).Push(sync_pb2.PushRequest(bank=bank, records=[record]), metadata=writer)
        await stack.sync(channel).Forget(
            sync_pb2.ForgetRequest(bank=bank, memory_ids=ids[:1]), metadata=writer
        )
        await stack.sync(channel).Forget(
            sync_pb2.ForgetRequest(bank=bank, memory_ids=ids[1:2], erase=True), metadata=writer
        )

        async def listed(as_of: int, token: str = "", size: int = 0) -> feed_pb2.ListLiveResponse:
            request = feed_pb2.ListLiveRequest(bank=bank, as_of=as_of, page_token=token, page_size=size)
            return await feed.ListLive(request, metadata=writer)

        async def refused(as_of: int, token: str = "", who: object = writer) -> tuple[str, str]:
            request = feed_pb2.ListLiveRequest(bank=bank, as_of=as_of, page_token=token)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await feed.ListLive(request, metadata=who)
            return outcome_of(caught.value).reason, caught.value.code().name

        for as_of, expected in (
            (1, ids[:1]),
            (3, [ids[0], ids[2]]),
            (4, [ids[2]]),
            (5, [ids[2]]),
            (0, [ids[2]]),
        ):
            assert {memory.id for memory in (await listed(as_of)).memories} == set(expected), as_of
        for as_of in (-1, 6, 2**62):
            assert await refused(as_of) == ("FIELD_INVALID", "INVALID_ARGUMENT")
            assert (await refused(as_of, who=stranger))[0] == "PERMISSION_DENIED"
        token = (await listed(3, size=1)).next_page_token
        assert len((await listed(3, token)).memories) == 1
        for other in (0, 2):
            assert await refused(other, token) == ("CURSOR_INVALID", "INVALID_ARGUMENT"), (
                "a page of another moment"
            )
        await asyncio.to_thread(trim_all, stack, bank, 5)
        assert await refused(4) == ("CURSOR_BEFORE_HORIZON", "OUT_OF_RANGE")
        assert await refused(3, token) == ("CURSOR_BEFORE_HORIZON", "OUT_OF_RANGE")
        assert [memory.id for memory in (await listed(5)).memories] == [ids[2]]
