"""A record that is pushed again is the same record, whatever the bank's barriers were when it was stored."""

import asyncio
import itertools
import uuid
from pathlib import Path

import pytest
from google.protobuf.struct_pb2 import Value
from hypothesis import example, given, settings
from hypothesis import strategies as st
from teamlore.sync.v1 import sync_pb2

from kit import audit
from kit.access import Caller, Grant
from kit.database import Database
from kit.errors import Refusal
from kit.identity import set_caller
from kit.sealing import KeyStore
from services.sync.handlers import SyncHandlers
from services.sync.pushing import METADATA_DIFFERS, TAKEN, Answer
from services.sync.store import QUERIES
from services.sync.tests.test_pushing import BANK, Bench, record

KEY, OTHER_KEY = "AKIA" + "IOSFODNN7EXAMPL2", "AKIA" + "IOSFODNN7EXAMPL3"
ACTIONS = ("off", "redact", "reject")
Policy = tuple[str, str]
"""The action on secrets, and the one on personal data."""
POLICIES = st.tuples(st.sampled_from(ACTIONS), st.sampled_from(ACTIONS))
PIECES = st.sampled_from(
    [KEY, "ada@example.com", "password: hunter22", "password: ada@example.com", "token=x,", "+44 20 7946 0958", "We use SQS",
     "password = \"call ada@example.com now\"", "[redacted: EMAIL]", "[redacted: Secret Keyword]", " ", "\n", ", ", "\u200b"]
)  # fmt: skip


async def under(bench: Bench, policy: Policy, bank: str = BANK) -> None:
    """Lets a bank go on with this policy, and makes it where it is missing."""
    await bench.superuser("select memory.open_bank($1)", bank)
    await bench.superuser(
        "select memory.put_policy($1, $2, 'off', null, null, null, null, null, $3)", bank, *policy
    )


def test_no_order_of_policies_makes_a_record_another_one(database_url: str, tmp_path: Path) -> None:
    with asyncio.Runner() as runner:

        async def opened() -> Bench:
            database = await Database.connect(database_url, "sync", QUERIES)
            return Bench(database_url, database, KeyStore(tmp_path / "k.db", make=True))

        bench = runner.run(opened())

        @settings(max_examples=40)
        @given(st.lists(PIECES, min_size=1, max_size=6).map("".join), st.lists(POLICIES, min_size=2, max_size=4))
        @example("Call ada@example.com", [("redact", "off"), ("redact", "redact"), ("redact", "off")])
        @example("password: ada@example.com", [("off", "redact"), ("redact", "redact"), ("off", "off")])
        @example("token=x,ada@example.com", [("off", "redact"), ("redact", "off"), ("redact", "redact")])
        def holds(text: str, policies: list[Policy]) -> None:
            runner.run(play(bench, text, policies))

        holds()
        runner.run(bench.database.close())


async def play(bench: Bench, text: str, policies: list[Policy]) -> None:
    bank, stored = f"project:policies-{uuid.uuid4().hex[:8]}", False
    sent = record(uuid.uuid4().hex, text)
    for policy in policies:
        await under(bench, policy, bank)
        (answer,) = await bench.push(sent, bank=bank)
        if answer.status == "rejected":
            assert ("reject" in policy and "holds what looks like" in answer.reason) or not text.strip(" \n\u200b")
        else:
            assert answer == Answer(sent.id, "unchanged" if stored else "stored")
            stored = True


@pytest.mark.parametrize("then", [*itertools.product(ACTIONS[:2], repeat=2)])
async def test_only_who_knows_what_is_stored_is_told_that_it_is_the_same(bench: Bench, then: Policy) -> None:
    """A text with another secret repeats what kept its secret in no case, and what did not as it always did."""
    known = f"The key {KEY} is of ada@example.com, or so we heard"
    for now in itertools.product(ACTIONS[:2], repeat=2):
        await under(bench, then)
        memory_id = uuid.uuid4().hex
        assert (await bench.push(record(memory_id, known)))[0].status == "stored"
        await under(bench, now)
        for secret, person in itertools.product((KEY, OTHER_KEY), ("ada@example.com", "bob@example.com")):
            right = (then[0] == "redact" or secret == KEY) and (then[1] == "redact" or person[0] == "a")
            guess = known.replace(KEY, secret).replace("ada@example.com", person)
            for text, same in ((guess, right), (guess.replace("heard", "read"), False), (f"{guess} ", False)):
                expected = Answer(memory_id, "unchanged") if same else Answer(memory_id, "rejected", TAKEN)
                assert await bench.push(record(memory_id, text)) == [expected]


async def test_other_metadata_is_told_though_the_policy_changed_what_the_text_became(bench: Bench) -> None:
    await under(bench, ("off", "off"))
    sent = record("aaaaaaaa", KEY, tags=["queue"], metadata={"n": Value(number_value=1)})
    await bench.push(sent)
    await under(bench, ("redact", "off"))
    assert await bench.push(sent) == [Answer("aaaaaaaa", "unchanged")]
    sent.tags.append("more")
    assert await bench.push(sent) == [Answer("aaaaaaaa", "unchanged", METADATA_DIFFERS)]


async def test_a_text_that_tells_of_no_personal_data_taken_out_loads_no_search_for_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kit.pii._loaded", None)
    await under(bench, ("redact", "off"))
    await bench.push(record("aaaaaaaa", f"The key is {KEY}"))
    await under(bench, ("off", "off"))
    answers = await bench.push(record("aaaaaaaa", f"The key is {OTHER_KEY}"))
    assert answers == [Answer("aaaaaaaa", "unchanged")]


@pytest.mark.parametrize("erase", [False, True])
async def test_an_id_that_looks_like_a_secret_is_buried_only_where_it_is_known(bench: Bench, erase: bool) -> None:
    handlers, elsewhere = SyncHandlers(bench.store, bench.keys, bench.pusher), "project:other-1a2b3c4d"
    set_caller(Caller("user:bob", "person", "t", (Grant("project:*", frozenset({"write", "forget"})),)))

    async def forget(bank: str, *ids: str) -> int:
        with audit.calling(audit.CallContext("memory.forget", "user:bob", "t")):
            answer = await handlers.Forget(sync_pb2.ForgetRequest(bank=bank, memory_ids=ids, erase=erase), None)
        return answer.deleted_count

    try:
        await under(bench, ("off", "off"))
        await under(bench, ("off", "off"), elsewhere)
        assert (await bench.push(record(KEY)))[0].status == "stored"
        assert (await bench.push(record(OTHER_KEY), bank=elsewhere))[0].status == "stored"
        for action in ("redact", "reject"):
            await under(bench, (action, "off"))
            for unknown in (OTHER_KEY, "AKIA" + "IOSFODNN7EXAMPL4"):
                with pytest.raises(Refusal) as caught:
                    await forget(BANK, "aaaaaaaa", KEY, unknown)
                assert (caught.value.reason, caught.value.violations[0].field) == ("FIELD_INVALID", "memory_ids")
                assert "AKIA" not in str(caught.value)
        assert await bench.superuser("select count(*) from memory.tombstones") == 0
        assert await forget(BANK, "aaaaaaaa", KEY) == 1 and await forget(BANK, KEY) == 0
        await under(bench, ("off", "off"))
        assert await forget(BANK, OTHER_KEY) == 0
    finally:
        set_caller(None)
