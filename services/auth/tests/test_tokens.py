"""Tokens: who may make, see, renew and end them."""

import asyncio
import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from teamlore.auth.v1 import access_pb2 as pb
from teamlore.auth.v1 import auth_pb2

from kit.authorising import access_of
from services.auth import pages
from services.auth.bootstrap import bootstrap
from services.auth.tests.conftest import Auth
from tests.test_descriptors import methods

ROOT = Path(__file__).resolve().parents[3]


def create(
    principal: str, *grants: tuple[str, str], kind: str = "agent", **more: Any
) -> pb.CreateTokenRequest:
    parts = [pb.Grant(pattern=p, permissions=w.split()) for p, w in grants]
    return pb.CreateTokenRequest(principal=principal, kind=kind, grants=parts, **more)


async def test_only_an_admin_of_the_deployment_hands_out_more_than_its_own(auth: Auth) -> None:
    scoped = await auth.token("user:mal", ("project:mal-*", "read admin"))
    own = ("project:mal-1", "read")
    assert (await auth("CreateToken", create("user:mal", own), scoped)).token.startswith("tlk_")
    for request in (
        create("user:bob", own),
        create("user:mal", own, groups=["team:api"]),
        create("user:mal"),
        create("user:mal", ("project:*", "read")),
        create("user:mal", ("project:mal-1", "comply")),
        create("user:mal", own, kind="person"),
    ):
        assert (await auth.refusal("CreateToken", request, scoped)).reason == "PERMISSION_DENIED"
    made = await auth("CreateToken", create("user:bob", groups=["team:api"], note="ci"))
    assert list((await auth.who(made.token)).groups) == ["team:api"]


async def test_comply_is_handed_out_by_who_holds_it_alone(auth: Auth) -> None:
    plain = await auth.token("user:plain", ("*", "read write forget admin"))
    request = create("user:bob", ("project:x", "read comply"))
    refused = await auth.refusal("CreateToken", request, plain)
    assert (refused.reason, refused.metadata) == ("PERMISSION_DENIED", {"permission": "comply"})
    officer = await auth("CreateToken", request)
    rotate = pb.RotateTokenRequest(token_id=officer.token_id)
    assert (await auth.refusal("RotateToken", rotate, plain)).metadata == {"permission": "comply"}
    assert (await auth("RotateToken", rotate)).token


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (create("service:sync"), "principal"),
        (create("user:x", kind="service"), "kind"),
        (create("agent:x", kind="service"), "kind"),
        (create("user:x", ("a:*", "read"), ("a:*", "write")), "grants.pattern"),
        (create("user:*"), "principal"),
        (create("agent:x", kind="person"), "kind"),
    ],
)
async def test_what_nobody_may_make(auth: Auth, request_: pb.CreateTokenRequest, field: str) -> None:
    refused = await auth.refusal("CreateToken", request_, await auth.present())
    assert (refused.reason, refused.fields) == ("FIELD_INVALID", [field])


async def test_a_personal_key_needs_a_person_and_never_does_more_than_it(auth: Auth) -> None:
    await auth("PutGrant", pb.PutGrantRequest(grant=pb.AccessGrant(
        subject="user:ann", pattern="project:*", permissions=["read", "write"], effect="allow")))  # fmt: skip
    agent = await auth.token("user:ann", ("space:x", "read"))
    narrow = pb.CreatePersonalKeyRequest(
        grants=[pb.Grant(pattern="project:a*", permissions=["read", "admin"])], note="laptop"
    )
    assert (await auth.refusal("CreatePersonalKey", narrow, agent)).reason == "PERSON_REQUIRED"
    session = await auth.session("user:ann")
    key = await auth("CreatePersonalKey", narrow, session)
    days = (key.expires_at.ToDatetime(tzinfo=UTC) - datetime.now(UTC)) / timedelta(days=1)
    assert 89.9 < days < 90.1
    who = await auth.who(key.token, "project:api")
    assert (list(who.permissions), who.kind, who.person_present) == (["read"], "agent", False)
    assert who.expires_at.seconds == key.expires_at.seconds
    assert not (await auth.who(key.token, "project:b")).permissions
    whole = await auth("CreatePersonalKey", pb.CreatePersonalKeyRequest(), session)
    assert list((await auth.who(whole.token, "project:b")).permissions) == ["read", "write"]
    late = pb.CreatePersonalKeyRequest()
    late.expires_at.FromSeconds(int(time.time()) + 367 * 86400)
    assert (await auth.refusal("CreatePersonalKey", late, session)).fields == ["expires_at"]
    late.expires_at.FromSeconds(int(time.time()) + 365 * 86400)
    assert (await auth("CreatePersonalKey", late, session)).expires_at.seconds == late.expires_at.seconds


async def all_tokens(auth: Auth, token: str, size: int, principal: str = "") -> list[pb.Token]:
    found: list[pb.Token] = []
    more = ""
    while True:
        request = pb.ListTokensRequest(principal=principal, page_size=size, page_token=more)
        answer = await auth("ListTokens", request, token)
        assert len(answer.tokens) <= size
        found += answer.tokens
        more = answer.next_page_token
        if not more:
            return found


async def test_tokens_are_listed_by_page_without_their_secret(auth: Auth) -> None:
    secrets = [await auth.token("user:ann", ("project:x", "read"), note=f"n{i}") for i in range(5)]
    session = await auth.session("user:ann")
    await auth("CreatePersonalKey", pb.CreatePersonalKeyRequest(note="key"), session)
    while not await auth.database.fetchval(
        "select count(*) from auth.tokens where last_used_at is not null and note = 'n0'"
    ):
        await all_tokens(auth, secrets[0], 2)
        await asyncio.sleep(0.1)
    own = await all_tokens(auth, secrets[0], 2)
    assert [token.note for token in own] == ["key", "", "n4", "n3", "n2", "n1", "n0"]
    assert [token.personal for token in own] == [True, True, False, False, False, False, False]
    assert [token.session for token in own] == [False, True, False, False, False, False, False]
    assert own[-1].grants[0].pattern == "project:x" and own[-1].created_by == "user:root"
    assert own[-1].HasField("last_used_at") and not own[-2].HasField("last_used_at")
    text = " ".join(str(token) for token in own)
    assert not any(secret in text for secret in secrets)
    assert len(await all_tokens(auth, auth.root, 3)) == 8
    assert len(await all_tokens(auth, auth.root, 3, "user:root")) == 1
    other = pb.ListTokensRequest(principal="user:root")
    assert (await auth.refusal("ListTokens", other, secrets[0])).reason == "PERMISSION_DENIED"


@pytest.mark.parametrize("garbage", ["x", "%%", "bnVsbA", "IiI", "eyJhIjoxfQ", "A" * 720])
async def test_a_page_token_that_no_call_gave_is_named(auth: Auth, garbage: str) -> None:
    refused = await auth.refusal("ListTokens", pb.ListTokensRequest(page_token=garbage))
    assert (refused.reason, refused.fields) == ("FIELD_INVALID", ["page_token"])


async def test_a_page_token_goes_on_only_where_and_for_whom_it_was_given(auth: Auth) -> None:
    ann = await auth.token("user:ann", ("*", "admin"))
    given = (await auth("ListTokens", pb.ListTokensRequest(page_size=1))).next_page_token
    assert (await auth("ListTokens", pb.ListTokensRequest(page_token=given))).tokens
    changed = given[:40] + ("A" if given[40] != "A" else "B") + given[41:]
    for call, more, token in (
        ("ListTokens", {"page_token": given}, ann),
        ("ListTokens", {"page_token": changed}, auth.root),
        ("ListTokens", {"page_token": given, "principal": "user:ann"}, auth.root),
        ("ListGroups", {"page_token": given}, auth.root),
        ("ListGrants", {"page_token": given, "pattern": "*"}, auth.root),
    ):
        refused = await auth.refusal(call, getattr(pb, f"{call}Request")(**more), token)
        assert (refused.reason, refused.fields) == ("FIELD_INVALID", ["page_token"])


async def test_a_rotated_token_has_the_same_rights_and_the_old_one_an_end(auth: Auth) -> None:
    old = await auth("CreateToken", create("user:ann", ("project:x", "read"), groups=["team:a"], note="ci"))
    new = await auth("RotateToken", pb.RotateTokenRequest(token_id=old.token_id, overlap_seconds=3600))
    first, second = await all_tokens(auth, new.token, 10)
    assert (first.token_id, second.token_id) == (new.token_id, old.token_id)
    for name in ("principal", "kind", "grants", "groups", "note", "personal"):
        assert getattr(first, name) == getattr(second, name)
    assert not first.HasField("expires_at")
    assert 3590 < second.expires_at.seconds - time.time() < 3610
    assert (await auth.who(old.token)).principal == "user:ann"
    again = await auth("RotateToken", pb.RotateTokenRequest(token_id=old.token_id))
    assert (await auth.refusal("WhoAmI", auth_pb2.WhoAmIRequest(), old.token)).reason == "CREDENTIAL_EXPIRED"
    assert (await auth.who(new.token)).principal == "user:ann"
    # A token that had an end before keeps it: the overlap never lengthens a life.
    await auth("RotateToken", pb.RotateTokenRequest(token_id=again.token_id, overlap_seconds=604800))
    kept = next(t for t in await all_tokens(auth, new.token, 10) if t.token_id == again.token_id)
    assert kept.expires_at.seconds - time.time() < 3610


async def test_what_cannot_be_rotated(auth: Auth) -> None:
    ended = await auth("CreateToken", create("user:ann", ("project:x", "read")))
    await auth("RevokeToken", pb.RevokeTokenRequest(token_id=ended.token_id))
    for token_id in (ended.token_id, "0" * 16):
        refused = await auth.refusal("RotateToken", pb.RotateTokenRequest(token_id=token_id))
        assert (refused.reason, refused.fields) == ("NOT_FOUND", ["token_id"])
    session = (await auth.who(await auth.session("user:ann"))).token_id
    refused = await auth.refusal("RotateToken", pb.RotateTokenRequest(token_id=session))
    assert (refused.reason, refused.fields) == ("FIELD_INVALID", ["token_id"])


async def test_one_revokes_its_own_and_learns_nothing_of_others(auth: Auth) -> None:
    ann, bob = await auth.token("user:ann", ("a:x", "read")), await auth.token("user:bob", ("a:x", "read"))
    bobs, anns = (await auth.who(bob)).token_id, (await auth.who(ann)).token_id
    unknown = await auth.refusal("RevokeToken", pb.RevokeTokenRequest(token_id="0" * 16), ann)
    others = await auth.refusal("RevokeToken", pb.RevokeTokenRequest(token_id=bobs), ann)
    assert str(unknown) == str(others) and unknown.reason == "NOT_FOUND"
    session = await auth.session("user:ann")
    assert (await auth("RevokeToken", pb.RevokeTokenRequest(token_id=anns), session)).revoked
    assert not (await auth("RevokeToken", pb.RevokeTokenRequest(token_id=anns), session)).revoked
    assert (await auth.refusal("WhoAmI", auth_pb2.WhoAmIRequest(), ann)).reason == "CREDENTIAL_REVOKED"
    assert (await auth("RevokeToken", pb.RevokeTokenRequest(token_id=bobs))).revoked
    assert (await auth.audited()).count("access.token_revoked") == 2


async def test_an_agent_s_credential_ends_itself_and_what_it_made_alone(auth: Auth) -> None:
    person = await auth("CreateToken", create("user:ann", ("a:*", "read"), kind="person"), await auth.present())
    start = auth_pb2.StartSessionRequest(person_token=person.token)
    session = (await auth("StartSession", start)).session_token
    key = await auth("CreatePersonalKey", pb.CreatePersonalKeyRequest(), session)
    other = await auth("CreatePersonalKey", pb.CreatePersonalKeyRequest(), session)
    plain = await auth("CreateToken", create("user:ann", ("a:*", "read admin")))
    made = await auth("CreateToken", create("user:ann", ("a:x", "read")), plain.token)
    sessions_id = (await auth.who(session)).token_id

    def end(token_id: str) -> pb.RevokeTokenRequest:
        return pb.RevokeTokenRequest(token_id=token_id)

    unknown = await auth.refusal("RevokeToken", end("0" * 16), plain.token)
    for secret in (plain.token, key.token):
        for token_id in (person.token_id, sessions_id, other.token_id):
            assert str(await auth.refusal("RevokeToken", end(token_id), secret)) == str(unknown)
    assert (await auth("RevokeToken", end(made.token_id), plain.token)).revoked
    for ended in (plain, key):
        assert (await auth("RevokeToken", end(ended.token_id), ended.token)).revoked
    assert (await auth("RevokeToken", end(other.token_id), session)).revoked
    assert (await auth("RevokeToken", end(person.token_id), session)).revoked


async def test_the_last_admin_keeps_a_token(auth: Auth) -> None:
    last = pb.RevokeTokenRequest(token_id=(await auth.who(auth.root)).token_id)
    refused = await auth.refusal("RevokeToken", last)
    assert (refused.reason, refused.fields) == ("FIELD_INVALID", ["token_id"])
    await auth.token("user:second", ("*", "admin"))
    assert (await auth("RevokeToken", last)).revoked


async def test_an_admin_whose_token_ends_is_no_last_admin(auth: Auth) -> None:
    root = pb.RevokeTokenRequest(token_id=(await auth.who(auth.root)).token_id)
    soon = create("user:second", ("*", "read write forget comply admin"))
    soon.expires_at.FromSeconds(int(time.time()) + 86400)
    second = await auth("CreateToken", soon)
    for token in ("", second.token):
        assert (await auth.refusal("RevokeToken", root, token)).fields == ["token_id"]
    # Whom the identity provider named comes back without a token.
    await auth("PutGrant", pb.PutGrantRequest(grant=pb.AccessGrant(
        subject="user:ann", pattern="*", permissions=["admin"], effect="allow")))  # fmt: skip
    assert (await auth.refusal("RevokeToken", root, second.token)).fields == ["token_id"]
    await auth.session("user:ann")
    assert (await auth("RevokeToken", root, second.token)).revoked


async def test_bootstrap_rescues_a_deployment_without_a_working_admin(auth: Auth) -> None:
    assert await bootstrap(auth.url, "user:new") is None
    await auth.database.execute("update auth.tokens set expires_at = now() - interval '1 s'")
    await auth.database.execute("select auth.bump()")
    rows = len(await auth.audited())
    rescued = await bootstrap(auth.url, "user:new")
    assert rescued and list((await auth.who(rescued, "space:x")).permissions)[-1] == "admin"
    assert (await auth.audited())[rows:] == ["access.bootstrap"]
    assert await bootstrap(auth.url, "user:other") is None
    await auth("PutGrant", pb.PutGrantRequest(grant=pb.AccessGrant(
        subject="user:ann", pattern="*", permissions=["admin"], effect="allow")), rescued)  # fmt: skip
    ann = await auth("CreateToken", create("user:ann", ("a:x", "read")), rescued)
    await auth("RevokeToken", pb.RevokeTokenRequest(token_id=(await auth.who(rescued)).token_id), ann.token)
    assert await bootstrap(auth.url, "user:other") is None, "a grant makes an admin too"


async def test_bootstrap_makes_nobody_whose_token_it_cannot_write_down(auth: Auth, tmp_path: Path) -> None:
    await auth.database.execute("update auth.tokens set expires_at = now() - interval '1 s'")

    async def run(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "services.auth.bootstrap", *arguments]
        done = await asyncio.to_thread(
            subprocess.run, command, env=os.environ | {"DATABASE_URL": auth.url}, cwd=ROOT, capture_output=True, text=True
        )
        assert "Traceback" not in done.stderr
        return done.returncode, done.stderr

    code, said = await run("--out", str(tmp_path / "nowhere" / "token"))
    assert code == 1 and "cannot be written: No such file or directory" in said
    assert (await run("--principal", "alice"))[0] == 2
    code, said = await run("--out", "")
    assert code == 2 and "--out: the name of a file" in said
    there = tmp_path / "token"
    there.write_text("an older and much longer content, which others may read " * 3)
    there.chmod(0o644)
    assert await run("--out", str(there)) == (0, "")
    assert there.stat().st_mode & 0o777 == 0o600
    assert (await auth.who(there.read_text().removesuffix("\n"))).principal == "user:admin"


async def test_what_is_narrowed_or_personal_makes_no_token(auth: Auth) -> None:
    every = ("*", "read write forget comply admin")
    await auth("PutGrant", pb.PutGrantRequest(grant=pb.AccessGrant(
        subject="user:ann", pattern="*", permissions=every[1].split(), effect="allow")))  # fmt: skip
    session = await auth.session("user:ann")
    narrow = pb.CreatePersonalKeyRequest(grants=[pb.Grant(pattern="*", permissions=["read", "admin"])])
    keys = [
        (await auth("CreatePersonalKey", request, session)).token
        for request in (narrow, pb.CreatePersonalKeyRequest())
    ]
    request = create("user:ann", ("project:x", "read"))
    service = await auth.token("service:ci", every, kind="service")
    behalf = ("x-teamlore-on-behalf-of", session)
    other = (await auth("CreateToken", create("user:bob", ("project:x", "read")))).token_id
    for name, asked in (("CreateToken", request), ("RotateToken", pb.RotateTokenRequest(token_id=other))):
        for token, more in ((keys[0], ()), (keys[1], ()), (service, (behalf,))):
            refused = await auth.refusal(name, asked, token, *more)
            assert refused.reason == "PERMISSION_DENIED" and "teamlore login" in refused.message, name
    assert (await auth("CreateToken", request, session)).token
    assert (await auth("CreateToken", create("user:bob", ("project:x", "read")), service)).token


async def test_a_token_to_sign_in_with_is_made_by_who_is_present(auth: Auth) -> None:
    every = ("*", "read write forget comply admin")
    person = create("user:bob", ("project:x", "read"), kind="person")
    present = await auth.present()
    made = await auth("CreateToken", person, present)
    rotate = pb.RotateTokenRequest(token_id=made.token_id, overlap_seconds=60)
    # The last is a person's, never narrowed and never ending, and yet it lies somewhere: nobody is there.
    agent, service = [await auth.token("service:ops", every, kind=kind) for kind in ("agent", "service")]
    for stored in (agent, service, auth.root):
        for name, asked in (("CreateToken", person), ("RotateToken", rotate)):
            assert (await auth.refusal(name, asked, stored)).reason == "PERSON_REQUIRED", name
    assert (await auth("RotateToken", rotate, present)).token
    assert (await auth("CreateToken", create("user:bob", ("project:x", "read")))).token


async def test_a_personal_key_ends_no_later_than_what_its_session_came_from(auth: Auth) -> None:
    ends = int(time.time()) + 3600
    request = create("user:ann", ("project:*", "read"), kind="person")
    request.expires_at.FromSeconds(ends)
    person = await auth("CreateToken", request, await auth.present())
    session = await auth("StartSession", auth_pb2.StartSessionRequest(person_token=person.token))
    asked = pb.CreatePersonalKeyRequest()
    asked.expires_at.FromSeconds(ends + 3600)
    for each in (pb.CreatePersonalKeyRequest(), asked):
        key = await auth("CreatePersonalKey", each, session.session_token)
        assert key.expires_at.seconds == ends
        assert (await auth.who(key.token)).expires_at.seconds == ends
    renewed = await auth("RotateToken", pb.RotateTokenRequest(token_id=key.token_id))
    exact = "select expires_at from auth.tokens where token_id = $1"
    limit = await auth.database.fetchval(exact, person.token_id)
    assert await auth.database.fetchval(exact, renewed.token_id) == limit


async def test_what_a_scoped_admin_makes_ends_with_what_made_it(auth: Auth) -> None:
    ends = int(time.time()) + 3600
    request = create("user:mal", ("project:mal-*", "read admin"))
    request.expires_at.FromSeconds(ends)
    scoped = await auth("CreateToken", request)
    made = await auth("CreateToken", create("user:mal", ("project:mal-1", "read admin")), scoped.token)
    third = await auth("CreateToken", create("user:mal", ("project:mal-1", "read")), made.token)
    assert (await auth.who(third.token)).expires_at.seconds == ends
    renewed = await auth("RotateToken", pb.RotateTokenRequest(token_id=made.token_id))
    assert (await auth.who(renewed.token)).expires_at.seconds <= ends
    await auth("RevokeToken", pb.RevokeTokenRequest(token_id=scoped.token_id))
    for token in (renewed.token, third.token):
        assert (await auth.refusal("WhoAmI", auth_pb2.WhoAmIRequest(), token)).reason == "CREDENTIAL_REVOKED"


async def test_a_narrowed_key_has_no_private_bank_and_no_other_tokens(auth: Auth) -> None:
    await auth("PutGrant", pb.PutGrantRequest(grant=pb.AccessGrant(
        subject="user:ann", pattern="*", permissions=["admin"], effect="allow")))  # fmt: skip
    session = await auth.session("user:ann")
    other = await auth("CreatePersonalKey", pb.CreatePersonalKeyRequest(), session)
    assert list((await auth.who(other.token, "private:user:ann")).permissions) == ["read", "write", "forget"]
    for words in (["read"], ["admin"]):
        narrow = pb.CreatePersonalKeyRequest(grants=[pb.Grant(pattern="*", permissions=words)])
        key = await auth("CreatePersonalKey", narrow, session)
        assert not (await auth.who(key.token, "private:user:ann")).permissions
        assert [token.token_id for token in await all_tokens(auth, key.token, 10)] == [key.token_id]
        revoke = pb.RevokeTokenRequest(token_id=other.token_id)
        assert (await auth.refusal("RevokeToken", revoke, key.token)).reason == "NOT_FOUND"
        assert (await auth("RevokeToken", pb.RevokeTokenRequest(token_id=key.token_id), key.token)).revoked


async def test_what_comes_from_a_token_follows_it_to_its_successor(auth: Auth) -> None:
    request = create("user:ann", ("project:*", "read write"), kind="person")
    present = await auth.present()
    person = await auth("CreateToken", request, present)

    async def start(secret: str) -> str:
        answer = await auth("StartSession", auth_pb2.StartSessionRequest(person_token=secret))
        return str(answer.session_token)

    async def held(secret: str) -> list[str]:
        return list((await auth.who(secret, "project:x")).permissions)

    session = await start(person.token)
    narrow = pb.CreatePersonalKeyRequest(grants=[pb.Grant(pattern="project:*", permissions=["read"])])
    key = await auth("CreatePersonalKey", narrow, session)
    new_key = await auth("RotateToken", pb.RotateTokenRequest(token_id=key.token_id))
    assert await held(new_key.token) == ["read"]
    person2 = await auth(
        "RotateToken", pb.RotateTokenRequest(token_id=person.token_id, overlap_seconds=3600), present
    )
    late = await start(person.token)
    last = await auth(
        "RotateToken", pb.RotateTokenRequest(token_id=person2.token_id, overlap_seconds=3600), present
    )
    later = await start(person.token)
    late_key = await auth("CreatePersonalKey", pb.CreatePersonalKeyRequest(), later)
    await auth.database.execute(
        "update auth.tokens set expires_at = now() where token_id = any ($1)", [person.token_id, person2.token_id]
    )
    await auth.database.execute("select auth.bump()")
    for secret in (session, late, later, late_key.token):
        assert await held(secret) == ["read", "write"]
    assert await held(new_key.token) == ["read"]
    await auth("RevokeToken", pb.RevokeTokenRequest(token_id=last.token_id))
    for secret in (session, late, later, late_key.token, new_key.token):
        refused = await auth.refusal("WhoAmI", auth_pb2.WhoAmIRequest(), secret)
        assert refused.reason == "CREDENTIAL_REVOKED"


async def test_a_use_is_noted_once_a_minute_and_is_no_change_of_access(auth: Auth) -> None:
    token = await auth.token("user:ann", ("a:x", "read"))
    before = await auth.version()
    for _ in range(2):
        await auth("ExchangeToken", auth_pb2.ExchangeTokenRequest(token=token))
    used = None
    while used is None:
        await asyncio.sleep(0.05)
        used = await auth.database.fetchval(
            "select last_used_at from auth.tokens where principal = 'user:ann'"
        )
    assert used.second == used.microsecond == 0
    assert await auth.version() == before


def test_a_page_fits_into_a_message_and_is_never_empty() -> None:
    assert pages.fitting([10, 10, 10], 2) == 2
    assert pages.fitting([10], 2) == 1
    assert pages.fitting([], 2) == 0
    assert pages.fitting([pages.MOST_BYTES, 1, 1], 3) == 1
    assert pages.fitting([pages.MOST_BYTES + 1, 1], 2) == 1
    assert pages.fitting([pages.MOST_BYTES - 1, 1, 1], 3) == 2


def test_the_length_of_a_page_token_tells_nothing() -> None:
    sealed = pages.PageTokens(bytes(32))
    short, long = (sealed.write("x", "user:a", key) for key in (("a", "ü"), ("b" * 108, "c" * 255)))
    assert sealed.read("x", "user:a", short, 2) == ("a", "ü")
    assert len(short) == len(long) <= 1000


async def test_every_public_call_with_a_credential_is_charged_for_bad_ones_alone(auth: Auth) -> None:
    judged = {
        method.full_name
        for method in methods()
        if access_of(method).public and any("token" in field.name for field in method.input_type.fields)
    }
    assert auth.built.judges_credentials == judged != set()
