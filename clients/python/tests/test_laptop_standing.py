"""What the team holds of a memory reaches the laptop: own ones too, older files too, and recall obeys it."""

import sqlite3
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fake_sync import run, save
from fake_team import FakeTeam
from laptop import BANK, EMBEDDER, memory, vector
from teamlore.feed.v1 import feed_pb2
from teamlore_client._laptop import Laptop
from teamlore_client._memory import Citation, Memory, Standing
from teamlore_client._schema import SCHEMA, VERSION
from teamlore_client._sharing import size
from teamlore_client._show import as_json, details, line
from teamlore_client._store import Store
from teamlore_client._wire import change_of, record_of

WRONG = Standing(2, "contradicted", "agent_verified", True, "successor-1", datetime(2026, 11, 1, tzinfo=UTC))


def hold(team: FakeTeam, id_: str, standing: Standing) -> None:
    """The team holds something else of a memory: an upsert of the same id."""
    _, known = team.rows[id_]
    team.head += 1
    team.rows[id_] = (team.head, replace(known, standing=standing))


def recalled(laptop: Laptop, text: str) -> set[str]:
    return {hit.memory.text for hit in laptop.vectors.search(BANK, laptop.embed([text])[0], text)}


def test_a_standing_is_applied_to_teammates_and_own_and_the_digests_agree(
    bob: Laptop, team: FakeTeam
) -> None:
    theirs, own = team.write(memory("theirs")), save(bob, "own").id
    run(bob, team)
    for id_ in (theirs, own):
        hold(team, id_, WRONG)
    assert run(bob, team).verified
    assert [bob.store.get(id_).standing for id_ in (theirs, own)] == [WRONG, WRONG]
    for id_ in (theirs, own):
        hold(team, id_, Standing(3))
    assert run(bob, team).verified
    assert [bob.store.get(id_).standing for id_ in (theirs, own)] == [Standing(3), Standing(3)]
    assert run(bob, team, from_start=True).verified


@pytest.mark.parametrize(
    ("status", "is_recalled"),
    [("current", True), ("suspect", True), ("contradicted", False), ("superseded", False)],
)
def test_recall_leaves_out_what_no_longer_holds(
    bob: Laptop, team: FakeTeam, status: str, is_recalled: bool
) -> None:
    id_ = team.write(replace(memory("we use Kafka"), standing=Standing(2, status)))
    run(bob, team)
    assert ("we use Kafka" in recalled(bob, "we use Kafka")) is is_recalled
    shown = bob.store.get(id_)
    assert as_json(shown)["status"] == status
    assert (f"[{status}]" in line(shown).plain) is (status != "current")
    assert any(status in row.plain for row in details(shown, "")) is (status != "current")


def test_what_is_left_out_takes_no_place_of_another(bob: Laptop, team: FakeTeam) -> None:
    for number in range(5):
        team.write(replace(memory(f"queue {number}"), standing=Standing(2, "superseded")))
    team.write(memory("queue that holds"))
    run(bob, team)
    hits = bob.vectors.search(BANK, bob.embed(["queue 1"])[0], "queue", limit=1)
    assert [hit.memory.text for hit in hits] == ["queue that holds"]


def test_a_standing_that_breaks_a_rule_stops_nothing(bob: Laptop, team: FakeTeam) -> None:
    known = team.write(memory("known"))
    run(bob, team)
    hold(team, known, Standing(2, "of a newer release"))
    team.write(memory("after it"))
    assert run(bob, team).pulled.stored == 1
    assert bob.store.get(known).standing == Standing()


def test_a_file_of_the_first_version_is_brought_up(tmp_path: Path) -> None:
    import apsw
    from teamlore_client._schema import load_vectors
    from teamlore_client._sqlite import connect

    path = tmp_path / "old.db"
    old = connect(path, load_vectors)
    old.execute(SCHEMA)
    old.execute("PRAGMA user_version=1")
    old.execute(
        "INSERT INTO memories (id, bank, visibility, team_id, text, tags, metadata, derivation, created_at)"
        " VALUES ('memory-1', ?1, 'team', ?1, 'kept', '[]', '{}', 'fact', 0)",
        (BANK,),
    )
    old.close()
    with Store(path, EMBEDDER) as store:
        assert store.get("memory-1").standing == Standing()
        new: Memory = memory("new")
        store.add(new, vector(1))
        store.put_standing([replace(new, standing=WRONG)])
        assert store.get(new.id).standing == WRONG
    with sqlite3.connect(path) as look:
        assert look.execute("PRAGMA user_version").fetchone() == (VERSION,)
    assert apsw.Connection(str(path)).execute("PRAGMA user_version").fetchall() == [(VERSION,)]


def test_what_a_teammate_cites_is_kept_shown_and_sent_as_it_came(bob: Laptop, team: FakeTeam) -> None:
    cited = (Citation("https://wiki.example.com/queues"), Citation("repo:docs/adr/3.md", "we keep \x1b[31mSQS"))
    id_ = team.write(replace(memory("a claim"), fact_type="claim", citations=cited))
    run(bob, team)
    kept = bob.store.get(id_)
    assert kept.citations == cited
    told = "\n".join(each.plain for each in details(kept, ""))
    assert cited[0].uri in told and "we keep \\x1b[31mSQS" in told
    assert as_json(kept)["citations"][1] == {"uri": "repo:docs/adr/3.md", "excerpt": "we keep \x1b[31mSQS"}
    record = record_of(kept)
    change = feed_pb2.Change(id=id_, seq=1, text=record.text, citations=record.citations)
    assert change_of(BANK, change).memory.citations == cited
    many = replace(kept, citations=(Citation(excerpt="x" * 2000),) * 20)
    assert size(many) >= record_of(many).ByteSize()
