"""What the team forgot does not come back from a laptop that has the same words; what it says of words reaches them."""

import asyncio
import uuid

import pytest
from teamlore.sync.v1 import sync_pb2

from tests.integration.test_laptops import Team, digest, team
from tests.integration.test_trimmed import trim_all

__all__ = ["team"]

SAID = "repeats what was forgotten for the team"


def saved_by_both(team: Team, text: str) -> tuple[str, str]:
    """Alice's memory, and Bob's that was answered its duplicate."""
    theirs = team.alice.json("memory", "add", text)["id"]
    team.alice.run("team", "sync")
    mine = team.bob.json("memory", "add", text)["id"]
    assert team.bob.json("team", "sync")["pushed"]["duplicate"] == 1
    assert team.bob.json("memory", "show", mine)["team"] == f"duplicate:{theirs}"
    return theirs, mine


@pytest.mark.parametrize("how", ["next sync", "from start", "joined again", "trimmed", "trimmed and joined again"])
def test_what_was_erased_for_everyone_stays_gone_however_late_a_laptop_hears_of_it(team: Team, how: str) -> None:
    team.join()
    text = f"The launch {uuid.uuid4().hex} is called Wolframlantern."
    theirs, mine = saved_by_both(team, text)
    team.alice.run("memory", "forget", theirs, "--team")
    if "joined again" in how:
        team.bob.run("team", "leave")
    if "trimmed" in how:
        trim_all(team.stack, team.bank, digest(team)[0])
    if "joined again" in how:
        team.join("bob")
    else:
        synced = team.bob.json("team", "sync", *(["--from-start"] if how == "from start" else []))
        assert (synced["kept_here"], synced["requeued"], synced["verified"]) == (1, 0, True)
        assert synced["reconciled"] == {"trimmed": "CURSOR_BEFORE_HORIZON", "from start": "asked for"}.get(how, "")
    assert digest(team)[1] == 0
    assert SAID in team.bob.run("team", "status") and team.bob.json("team", "status")["kept_here"] == 1
    assert SAID.split(" what ")[1] in team.bob.json("memory", "show", mine)["team"]
    assert [each["id"] for each in team.bob.json("memory", "recall", "Wolframlantern")["memories"]] == [mine]
    again = team.bob.json("team", "sync", "--from-start")
    assert (sum(again["pushed"].values()), again["kept_here"], again["verified"]) == (0, 0, True)
    assert team.alice.json("team", "sync")["pulled"]["stored"] == 0 and team.alice.traces("Wolframlantern") == []
    team.bob.run("memory", "add", text)
    assert team.bob.json("team", "sync")["pushed"]["stored"] == 1, "who saves it anew wants it shared"


def test_what_the_team_says_of_a_memory_reaches_the_laptop_that_saved_the_same_words(team: Team) -> None:
    team.join()
    text = f"We use Kafka for the orders of {uuid.uuid4().hex}."
    theirs, mine = saved_by_both(team, text)

    def says(version: int, status: str) -> None:
        async def call() -> None:
            request = sync_pb2.UpdateStatusRequest(bank=team.bank, id=theirs, version=version, status=status)
            async with team.stack.channel("sync") as channel:
                credential = team.stack.credential(team.tokens["alice"])
                await team.stack.sync(channel).UpdateStatus(request, metadata=credential)

        asyncio.run(call())

    says(1, "contradicted")
    assert team.bob.json("team", "sync")["verified"]
    assert team.bob.json("memory", "show", mine)["status"] == "contradicted"
    assert team.bob.json("memory", "recall", "Kafka")["memories"] == []
    says(2, "current")
    assert team.bob.json("team", "sync")["verified"]
    assert [each["id"] for each in team.bob.json("memory", "recall", "Kafka")["memories"]] == [mine]
    assert len(team.bob.json("memory", "list")["memories"]) == 1
