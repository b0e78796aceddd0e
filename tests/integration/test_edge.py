"""A real Envoy in front of real services: JSON over HTTP as a person with curl sees it, and gRPC through the same port."""

import contextlib
import http.client
import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import pytest
from teamlore.feed.v1 import feed_pb2, feed_pb2_grpc
from teamlore.index.v1 import index_pb2, index_pb2_grpc

from stack.ports import LOOPBACK
from tests.integration.conftest import RunningStack
from tests.integration.edge import Edge, bank_of, mark, record, running_edge
from tests.integration.test_walking_slice import reason_of


@pytest.fixture(scope="module")
def edge(stack: RunningStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    with running_edge(stack, Path(tmp_path_factory.mktemp("edge"))) as running:
        yield running


# What is served


def test_a_push_by_curl_is_read_by_another_with_the_authors_name(edge: Edge) -> None:
    bank, alice, bob = bank_of("walk"), edge.token("read write"), edge.token("read", "user:bob")
    sent = record(
        "We use SQS for the order queue.",
        tags=["queue"],
        fact_type="decision",
        metadata={"source": "codex", "pages": 3, "draft": False},
        occurred_at="2026-03-01T10:00:00Z",
    )
    pushed = edge.push(bank, alice, sent)
    assert pushed.status == 200 and pushed.headers["content-type"] == "application/json"
    results = [{"id": sent["id"], "status": "stored", "reason": "", "duplicate_of": ""}]
    assert pushed.body == {"results": results, "dedup_skipped": pushed.body["dedup_skipped"]}
    listed = edge.call("GET", f"/v1/banks/{bank}/changes", token=bob)
    (change,) = listed.body.pop("changes")
    cursor = listed.body.pop("next_cursor")
    assert (listed.status, listed.body) == (200, {"after_seq": "0", "through_seq": "1", "has_more": False})
    assert set(change) == {
        "id", "text", "tags", "metadata", "occurred_at", "fact_type", "deleted", "seq", "changed_at", "retained_at",
        "derivation", "author", "lane", "status", "version", "trust", "may_be_stale", "superseded_by", "citations",
    }  # fmt: skip
    served = {"author": "user:alice", "seq": "1", "deleted": False, "version": 1, **sent}
    assert {name: change[name] for name in served} == served
    path = f"/v1/banks/{quote(bank, safe='')}/changes?cursor={mark(cursor)}&limit=5"
    again = edge.call("GET", path, token=bob)
    assert (again.status, again.body["changes"], again.body["after_seq"]) == (200, [], "1")


def test_what_is_empty_is_still_written_out(edge: Edge) -> None:
    digest = edge.call("GET", f"/v1/banks/{bank_of('nobody-home')}/digest", token=edge.token("read"))
    assert (digest.status, digest.body) == (200, {"seq": "0", "count": "0", "sum": "0"})


def test_public_keys_need_no_credential(edge: Edge) -> None:
    keys = edge.call("GET", "/v1/auth/jwks")
    assert keys.status == 200
    assert [set(key) for key in keys.body["keys"]] == [{"kty", "crv", "kid", "alg", "use", "x"}]


def test_a_large_push_and_a_large_page_pass(edge: Edge) -> None:
    bank, token = bank_of("large"), edge.token("read write")
    edge.sql("select memory.open_bank($1)", bank)
    edge.sql("update memory.banks set near_duplicates = 'off' where bank = $1", bank)
    pushed = edge.push(bank, token, *[record(f"{number} " + "word " * 8000) for number in range(98)])
    assert pushed.status == 200 and {result["status"] for result in pushed.body["results"]} == {"stored"}
    listed = edge.call("GET", f"/v1/banks/{bank}/changes?limit=1000", token=token)
    assert listed.status == 200
    assert sum(len(change["text"]) for change in listed.body["changes"]) > 2_000_000
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in "word ") * 8000
    body = json.dumps({"records": [record("@")] * 12}).replace("@", escaped)
    assert len(body) > 2_000_000
    assert edge.call("POST", f"/v1/banks/{bank}/sync/push", body.encode(), token).status == 200


def test_a_body_without_end_is_refused(edge: Edge) -> None:
    token = edge.token("read write")
    named = edge.push(bank_of("large"), token, *[record("word " * 9000)] * 100)
    assert named.refused_fields() == ["records"]
    assert edge.push(bank_of("large"), token, *[record("word " * 8000)] * 250).status == 429
    assert edge.push(bank_of("large"), token, *[record("word " * 8000)] * 450).status == 413


def test_fields_and_words_that_nobody_knows(edge: Edge) -> None:
    bank, token = bank_of("unknown"), edge.token("read write")
    body = {"records": [record("We keep what we know.", colour="blue")], "unknown": {"deep": 1}}
    dropped = edge.call("POST", f"/v1/banks/{bank}/sync/push", body, token)
    assert (dropped.status, dropped.body["results"][0]["status"]) == (200, "stored")
    assert edge.call("GET", f"/v1/banks/{bank}/changes?colour=blue", token=token).status == 400
    assert edge.call("GET", "/v1/nowhere", token=token).status == 404
    assert edge.call("PUT", f"/v1/banks/{bank}/changes", {}, token).status in (404, 405)


# What is refused


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("sync/push", {"records": []}, "records"),
        ("forget", {"memory_ids": ["short"]}, "memory_ids[0]"),
        ("forget", {"memory_ids": []}, "memory_ids"),
    ],
)
def test_a_bad_field_is_named(edge: Edge, path: str, body: Any, field: str) -> None:
    token = edge.token("read write forget")
    answer = edge.call("POST", f"/v1/banks/{bank_of('bad')}/{path}", body, token)
    assert answer.refused_fields() == [field]


def test_a_bad_word_in_a_grant_is_named(edge: Edge) -> None:
    grants = [{"pattern": "project:*", "permissions": ["read"]}]
    body = {"principal": "user:alice", "kind": "robot", "grants": grants}
    assert edge.call("POST", "/v1/admin/tokens", body, edge.stack.admin).refused_fields() == ["kind"]


@pytest.mark.parametrize("moment", ["yesterday", "0000-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00"])
def test_a_time_that_json_cannot_name_is_refused_by_the_edge_with_its_batch(edge: Edge, moment: str) -> None:
    """As the platform's guide says; a time that it can name is the record's own matter."""
    bank, token = bank_of(f"time-{uuid.uuid4().hex[:6]}"), edge.token("read write")
    refused = edge.push(bank, token, record("We keep what we know."), record("When was that?", occurred_at=moment))
    assert refused.status == 400 and refused.headers["content-type"] == "text/plain"
    assert edge.call("GET", f"/v1/banks/{bank}/digest", token=token).body["count"] == "0"


@pytest.mark.parametrize("body", [b"{", b'{"records": 7}', b'{"records": [{"id": 7, "text": {}}]}', b"\xff"])
def test_what_is_no_json_of_the_request_is_refused_by_the_edge(edge: Edge, body: bytes) -> None:
    path = f"/v1/banks/{bank_of('bad')}/sync/push"
    assert edge.call("POST", path, body, edge.token("write")).status == 400


@pytest.mark.parametrize(
    ("token", "reason"), [("", "CREDENTIAL_MISSING"), ("tlk_" + "A" * 43, "CREDENTIAL_INVALID")]
)
def test_without_a_credential_and_with_an_unknown_one(edge: Edge, token: str, reason: str) -> None:
    answer = edge.call("GET", f"/v1/banks/{bank_of('walk')}/changes", token=token)
    answer.refused(401, grpc.StatusCode.UNAUTHENTICATED, reason)


def test_with_a_revoked_credential(edge: Edge) -> None:
    made, path = edge.grant("user:carol", "read"), f"/v1/banks/{bank_of('walk')}/head"
    assert edge.call("GET", path, token=made["token"]).status == 200
    revoked = edge.call("DELETE", f"/v1/admin/tokens/{made['token_id']}", token=edge.stack.admin)
    assert (revoked.status, revoked.body) == (200, {"revoked": True})
    deadline = time.monotonic() + 2
    while (answer := edge.call("GET", path, token=made["token"])).status == 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    answer.refused(401, grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_REVOKED")


def test_a_token_id_that_nobody_has(edge: Edge) -> None:
    unknown = edge.call("DELETE", "/v1/admin/tokens/0123456789abcdef", token=edge.stack.admin)
    unknown.refused(404, grpc.StatusCode.NOT_FOUND, "NOT_FOUND")
    malformed = edge.call("DELETE", "/v1/admin/tokens/zz", token=edge.stack.admin)
    assert malformed.refused_fields() == ["token_id"]


def test_ids_that_nobody_has_are_not_forgotten(edge: Edge) -> None:
    path, body = f"/v1/banks/{bank_of('no-ids')}/forget", {"memory_ids": ["abcdefgh"]}
    answer = edge.call("POST", path, body, edge.token("read write forget"))
    assert (answer.status, answer.body) == (200, {"deleted_count": 0, "erased_count": 0, "erasure_id": ""})


def test_without_the_permission(edge: Edge) -> None:
    answer = edge.push(bank_of("walk"), edge.token("read", "user:bob"), record("no"))
    answer.refused(403, grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED")
    assert answer.detail("ErrorInfo")["metadata"] == {"permission": "write"}


def test_a_cursor_that_is_garbage(edge: Edge) -> None:
    path = f"/v1/banks/{bank_of('walk')}/changes?cursor=garbage"
    answer = edge.call("GET", path, token=edge.token("read"))
    answer.refused(400, grpc.StatusCode.INVALID_ARGUMENT, "CURSOR_INVALID")


@pytest.mark.parametrize("erase", [False, True])
def test_a_held_bank(edge: Edge, erase: bool) -> None:
    bank, token, sent = bank_of(f"held-{erase}"), edge.token("read write forget"), record("For the court.")
    assert edge.push(bank, token, sent).status == 200
    edge.sql("select memory.place_hold($1, $2, 'M-1', 'user:officer', null)", bank, uuid.uuid4().hex)
    body = {"memory_ids": [sent["id"]], "erase": erase}
    answer = edge.call("POST", f"/v1/banks/{bank}/forget", body, token)
    answer.refused(423, grpc.StatusCode.FAILED_PRECONDITION, "BANK_HELD")


def test_a_service_that_is_away(edge: Edge) -> None:
    path = f"/v1/banks/{bank_of('walk')}/search"
    assert edge.call("POST", path, {"query": "queue"}, edge.token("read")).status == 503


# gRPC through the same port


def test_a_cursor_of_a_history_that_is_gone_by_http_and_by_grpc(edge: Edge) -> None:
    bank, token = bank_of("diverged"), edge.token("read write")
    assert edge.push(bank, token, record("Before the restore.")).status == 200
    cursor = edge.call("GET", f"/v1/banks/{bank}/head", token=token).body["cursor"]
    edge.sql("update memory.changes set nonce = nonce - 1 where bank = $1", bank)
    answer = edge.call("GET", f"/v1/banks/{bank}/changes?cursor={mark(cursor)}", token=token)
    answer.refused(410, grpc.StatusCode.FAILED_PRECONDITION, "CURSOR_DIVERGED")
    # The same refusal, asked for in gRPC through the same port, is a gRPC refusal with all its parts, under HTTP 200.
    request = feed_pb2.ListChangesRequest(bank=bank, cursor=cursor)
    headers = {"authorization": f"Bearer {token}"}
    with edge.channel() as channel, pytest.raises(grpc.RpcError) as caught:
        feed_pb2_grpc.FeedServiceStub(channel).ListChanges(
            request, metadata=tuple(headers.items()), timeout=10
        )
    error: Any = caught.value
    assert (error.code(), reason_of(error)) == (grpc.StatusCode.FAILED_PRECONDITION, "CURSOR_DIVERGED")
    raw = request.SerializeToString()
    headers |= {"content-type": "application/grpc", "te": "trailers"}
    with contextlib.closing(http.client.HTTPConnection(LOOPBACK, edge.port, timeout=10)) as connection:
        frame = b"\0" + len(raw).to_bytes(4, "big") + raw
        connection.request("POST", "/teamlore.feed.v1.FeedService/ListChanges", frame, headers)
        plain = connection.getresponse()
        assert (plain.status, plain.getheader("grpc-status")) == (200, "9")


def test_a_watcher_hears_through_the_edge(edge: Edge) -> None:
    bank, token, sent = bank_of("watch"), edge.token("read write"), record("Heard at once.")
    with edge.channel() as channel:
        watch = feed_pb2_grpc.FeedServiceStub(channel).WatchChanges(
            feed_pb2.WatchChangesRequest(bank=bank),
            metadata=(("authorization", f"Bearer {token}"),),
            timeout=30,
        )
        assert next(watch).bookmark.seq == 0
        assert edge.push(bank, token, sent).status == 200
        assert [change.id for change in next(watch).batch.changes] == [sent["id"]]
        watch.cancel()


def test_calls_between_services_do_not_pass_the_edge(edge: Edge) -> None:
    near = index_pb2.FindNearDuplicatesRequest(bank=bank_of("walk"))
    with edge.channel() as channel:
        internal = channel.unary_unary(
            "/teamlore.compliance.v1.ErasureParticipantService/EraseObjects",
        )
        health = channel.unary_unary("/grpc.health.v1.Health/Check")
        find = index_pb2_grpc.IndexServiceStub(channel).FindNearDuplicates
        for call, request in ((find, near), (internal, b""), (health, b"")):
            with pytest.raises(grpc.RpcError) as caught:
                call(request, timeout=10)
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
