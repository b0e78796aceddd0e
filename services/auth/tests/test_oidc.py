"""What is believed of an OIDC issuer: its keys, kept through outages, and claims that may be hostile."""

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from kit.errors import Refusal
from services.auth import oidc
from services.auth.oidc import Issuer, IssuerAway, IssuerKeys, SignIns, get_json, read_claims

URL = "https://issuer.example"
WELL_KNOWN = f"{URL}/.well-known/openid-configuration"
SCOPES, ALGORITHMS = ("openid",), ("RS256", "ES256", "EdDSA")
ISSUER = Issuer(URL, "teamlore", SCOPES, ALGORITHMS, groups_claim="groups")
KEYS: Mapping[str, Any] = {
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "RS256": rsa.generate_private_key(65537, 2048),
}
WEAK = rsa.generate_private_key(65537, 1024)


def jwk_of(algorithm: str, key: Any, kid: str) -> dict[str, Any]:
    made = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
    return {**made, "kid": kid, "use": "sig"}


class Fake:
    """An issuer that counts what it is asked."""

    def __init__(self, *keys: dict[str, Any]) -> None:
        self.keys = list(keys)
        self.now = 1000.0
        self.asked = 0
        self.down = False
        self.discovery: dict[str, Any] = {"issuer": URL, "jwks_uri": f"{URL}/jwks"}

    async def get(self, url: str) -> Mapping[str, Any]:
        await asyncio.sleep(0)
        if url == WELL_KNOWN:
            self.asked += 1
        if self.down:
            raise IssuerAway("down")
        return self.discovery if url == WELL_KNOWN else {"keys": self.keys}

    def cache(self) -> IssuerKeys:
        return IssuerKeys(URL, self.get, lambda: self.now)


def ed(kid: str) -> dict[str, Any]:
    return jwk_of("EdDSA", KEYS["EdDSA"], kid)


async def refused(cache: IssuerKeys, kid: str, algorithm: str = "EdDSA") -> str:
    with pytest.raises(Refusal) as found:
        await cache.find(kid, algorithm)
    return found.value.reason


async def test_one_read_serves_all_who_wait() -> None:
    issuer = Fake(ed("a"))
    cache = issuer.cache()
    waiting = [asyncio.create_task(cache.find("a", "EdDSA")) for _ in range(20)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    assert [key["kid"] for key in await asyncio.gather(*waiting[1:])] == ["a"] * 19
    assert issuer.asked == 1


async def test_an_unknown_key_id_costs_one_read_in_30_seconds() -> None:
    issuer = Fake(ed("a"))
    cache = issuer.cache()
    await cache.find("a", "EdDSA")
    for _ in range(5):
        assert await refused(cache, "b") == "CREDENTIAL_INVALID"
    assert issuer.asked == 2
    issuer.keys.append(ed("b"))
    assert await refused(cache, "b") == "CREDENTIAL_INVALID"
    issuer.now += 30
    assert (await cache.find("b", "EdDSA"))["kid"] == "b"
    assert issuer.asked == 3


async def test_the_last_good_keys_outlive_an_outage_of_less_than_a_day() -> None:
    issuer = Fake(ed("a"))
    cache = issuer.cache()
    await cache.find("a", "EdDSA")
    issuer.down = True
    issuer.now += 3600
    for _ in range(5):
        await cache.find("a", "EdDSA")
    assert issuer.asked == 2, "an issuer that is down is asked twice a minute"
    assert await refused(cache, "b") == "DEPENDENCY_UNAVAILABLE"
    issuer.now += 86_400
    assert await refused(cache, "a") == "DEPENDENCY_UNAVAILABLE"
    issuer.down = False
    issuer.now += 31
    await cache.find("a", "EdDSA")


async def test_a_key_that_the_issuer_took_away_is_gone_in_five_minutes() -> None:
    issuer = Fake(ed("a"), ed("b"))
    cache = issuer.cache()
    await cache.find("a", "EdDSA")
    issuer.keys = [ed("b")]
    issuer.now += 301
    assert await refused(cache, "a") == "CREDENTIAL_INVALID"


@pytest.mark.parametrize(
    "discovery",
    [
        {"issuer": URL + "/", "jwks_uri": f"{URL}/jwks"},
        {"issuer": "https://evil.example", "jwks_uri": f"{URL}/jwks"},
        {"issuer": URL, "jwks_uri": "http://issuer.example/jwks"},
        {"issuer": URL, "jwks_uri": "file:///etc/passwd"},
        {"issuer": URL, "jwks_uri": 7},
        {},
    ],
)
async def test_a_discovery_document_that_cannot_be_right_is_not_used(discovery: dict[str, Any]) -> None:
    issuer = Fake(ed("a"))
    issuer.discovery = discovery
    assert await refused(issuer.cache(), "a") == "DEPENDENCY_UNAVAILABLE"


async def test_a_key_is_taken_for_what_it_is_meant_for() -> None:
    rs = jwk_of("RS256", KEYS["RS256"], "rs")
    issuer = Fake(
        ed("a"), {**ed("enc"), "use": "enc"}, {**rs, "alg": "RS512"}, {"kty": "oct", "k": "eA", "kid": "oct"}
    )
    cache = issuer.cache()
    assert await refused(cache, "a", "RS256") == "CREDENTIAL_INVALID"
    assert await refused(cache, "enc") == "CREDENTIAL_INVALID"
    assert await refused(cache, "rs", "RS256") == "CREDENTIAL_INVALID"
    assert (await cache.find("", "EdDSA"))["kid"] == "a"
    both = Fake(ed("a"), ed("b")).cache()
    assert await refused(both, "") == "CREDENTIAL_INVALID"


def transport(answer: Exception | tuple[int, str], **headers: str) -> httpx2.MockTransport:
    def handle(request: httpx2.Request) -> httpx2.Response:
        if isinstance(answer, Exception):
            raise answer
        return httpx2.Response(answer[0], headers=headers, stream=httpx2.ByteStream(answer[1].encode()))

    return httpx2.MockTransport(handle)


@pytest.mark.parametrize(
    ("answer", "headers", "said"),
    [
        ((500, "{}"), {}, "status 500"),
        ((302, "{}"), {"location": "https://elsewhere.example"}, "status 302"),
        ((200, "no json"), {}, "no JSON"),
        ((200, "[" * 100_000), {}, "no JSON"),
        ((200, "\x00"), {}, "no JSON"),
        ((200, '["a list"]'), {}, "no JSON object"),
        ((200, json.dumps({"a": "x" * 300_000})), {}, "too long"),
        ((200, "bomb"), {"content-encoding": "gzip"}, "compressed"),
        (httpx2.ConnectError("no route"), {}, "ConnectError"),
        (httpx2.ReadTimeout("slow"), {}, "ReadTimeout"),
    ],
    ids=["500", "redirect", "text", "deep", "nul", "list", "long", "gzip", "no-route", "slow"],
)
async def test_an_answer_that_is_none_is_no_defect(answer: Any, headers: dict[str, str], said: str) -> None:
    with pytest.raises(IssuerAway, match=said):
        await get_json(URL, transport(answer, **headers))


async def test_a_good_answer_is_read() -> None:
    assert await get_json(URL, transport((200, '{"a": 1}'))) == {"a": 1}


def claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    good = {"iss": URL, "aud": "teamlore", "sub": "1", "iat": now, "exp": now + 60}
    good |= {"email": "alice@example.com", "email_verified": True, "groups": ["api"]}
    return {key: value for key, value in {**good, **changes}.items() if value is not None}


def signed(content: dict[str, Any], algorithm: str = "EdDSA", **header: Any) -> str:
    return jwt.encode(content, KEYS[algorithm], algorithm=algorithm, headers={"kid": algorithm, **header})


def sign_ins(issuer: Issuer = ISSUER) -> SignIns:
    fake = Fake(
        *(jwk_of(algorithm, key, algorithm) for algorithm, key in KEYS.items()), jwk_of("RS256", WEAK, "weak")
    )
    return SignIns(issuer, fake.cache())


async def reason_of(token: str, issuer: Issuer = ISSUER) -> str:
    with pytest.raises(Refusal) as found:
        await sign_ins(issuer).verify(token)
    return found.value.reason


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_a_good_token_signs_in(algorithm: str) -> None:
    found = await sign_ins().verify(signed(claims(), algorithm))
    assert (found.principal, found.groups) == ("user:alice@example.com", ("team:api",))
    assert 60 < found.ends_at - time.time() < 91


NOW = int(time.time())
LATER = 4_000_000_000  # the year 2096: a name of a test must not tell the time at which it was collected


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "https://evil.example"},
        {"iss": URL + "/"},
        {"iss": None},
        {"aud": "another-app"},
        {"aud": None},
        {"aud": ["teamlore", "another-app"]},
        {"aud": ["teamlore", "another-app"], "azp": "another-app"},
        {"azp": "another-app"},
        {"sub": None},
        {"exp": None},
        {"iat": None},
        {"iat": LATER},
        {"nbf": LATER},
        {"exp": "soon"},
        {"exp": float("inf")},
        {"email": None},
        {"email": ["alice@example.com"]},
        {"email_verified": False},
        {"email_verified": None},
        {"email_verified": "true"},
        {"email": "user:bob"},
        {"email": "bob@example.com\n"},
        {"email": "\nbob@example.com"},
        {"email": "*"},
        {"email": "bob?@example.com"},
        {"email": "[b]ob@example.com"},
        {"email": "bob@example.com\0"},
        {"email": ""},
        {"email": "x" * 101},
        {"email": "\u212aim@example.com"},
        {"email": "b\u043eb@example.com"},
    ],
    ids=str,
)
async def test_other_claims_do_not(changes: dict[str, Any]) -> None:
    assert await reason_of(signed(claims(**changes))) == "CREDENTIAL_INVALID"


async def test_the_clocks_may_differ_by_half_a_minute() -> None:
    await sign_ins().verify(signed(claims(iat=NOW + 20, nbf=NOW + 20)))
    assert (await sign_ins().verify(signed(claims(exp=int(time.time()) - 20)))).ends_at > time.time()
    assert await reason_of(signed(claims(exp=int(time.time()) - 40))) == "CREDENTIAL_EXPIRED"


async def test_several_audiences_name_the_one_that_signed_in() -> None:
    await sign_ins().verify(signed(claims(aud=["teamlore", "another-app"], azp="teamlore")))


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@pytest.mark.filterwarnings("ignore:The RSA key is 1024 bits")
async def test_no_signature_but_the_issuers_counts() -> None:
    good = signed(claims(), "RS256")
    body = part(claims())
    public = KEYS["RS256"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    head = part({"alg": "HS256", "kid": "RS256", "typ": "JWT"})
    mac = base64.urlsafe_b64encode(hmac.new(public, f"{head}.{body}".encode(), hashlib.sha256).digest())
    bad = [
        f"{part({'alg': 'none', 'kid': 'RS256'})}.{body}.",
        f"{part({'alg': 'None', 'kid': 'RS256'})}.{body}.",
        f"{part({'kid': 'RS256'})}.{body}.",
        f"{part({'alg': ['RS256'], 'kid': 'RS256'})}.{body}.",
        f"{part({'alg': 'RS256', 'kid': 7})}.{body}.eA",
        f"{head}.{body}.{mac.decode().rstrip('=')}",
        good[:-8] + "AAAAAAAA",
        ".".join([good.split(".")[0], part(claims(email="bob@example.com")), good.split(".")[2]]),
        jwt.encode(
            claims(), ed25519.Ed25519PrivateKey.generate(), algorithm="EdDSA", headers={"kid": "EdDSA"}
        ),
        jwt.encode(claims(), WEAK, algorithm="RS256", headers={"kid": "weak"}),
        jwt.encode(claims(), KEYS["RS256"], algorithm="RS512", headers={"kid": "RS256"}),
        signed(claims(), typ="at+jwt"),
        signed(claims(), typ="logout+jwt"),
        signed(claims(), crit=["x"], x=1),
        "",
        "..",
        "a.b.c",
        "\ud800.x.x",
        part({"alg": "EdDSA"}) + "." + base64.urlsafe_b64encode(b"[" * 100_000).decode() + ".x",
    ]
    for token in bad:
        assert await reason_of(token) == "CREDENTIAL_INVALID", token[:80]


async def test_a_token_of_another_issuer_costs_this_one_no_request() -> None:
    fake = Fake(ed("EdDSA"))
    with pytest.raises(Refusal):
        await SignIns(ISSUER, fake.cache()).verify(signed(claims(iss="https://evil.example")))
    assert fake.asked == 0


async def test_without_an_issuer_no_id_token_is_taken() -> None:
    assert await reason_of(signed(claims()), Issuer()) == "CREDENTIAL_INVALID"


async def test_a_second_signature_is_the_same_use() -> None:
    """Of ECDSA anybody can make a second good signature from the first."""
    token = signed(claims(), "ES256")
    head, body, signature = token.split(".")
    raw = base64.urlsafe_b64decode(signature + "==")
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    other = raw[:32] + (order - int.from_bytes(raw[32:], "big")).to_bytes(32, "big")
    twin = f"{head}.{body}.{base64.urlsafe_b64encode(other).decode().rstrip('=')}"
    first, second = await sign_ins().verify(token), await sign_ins().verify(twin)
    assert twin != token
    assert first.token_hash == second.token_hash


def test_claims_become_principal_and_groups() -> None:
    issuer = Issuer(URL, "c", SCOPES, ALGORITHMS, "sub", "user:corp.", "roles", "team:idp-")
    listed = ["api", "b c", 7, "*", "a\n", "user:bob", "api", "x" * 200, *(f"g{n}" for n in range(300))]
    principal, groups = read_claims(issuer, {"sub": "Ab-1", "roles": listed})
    assert principal == "user:corp.Ab-1"
    assert groups[:2] == ("team:idp-api", "team:idp-g0")
    assert len(groups) == 200
    assert read_claims(issuer, {"sub": "a", "roles": "admins"})[1] == ()
    assert read_claims(issuer, {"sub": "a"})[1] == ()
    assert read_claims(ISSUER, claims(email="Alice@Example.com"))[0] == "user:alice@example.com"


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "http://issuer.example"},
        {"url": "https://user:pw@issuer.example"},
        {"url": "https://issuer.example?x=1"},
        {"url": "ftp://issuer.example"},
        {"url": "https://"},
        {"url": "https://issuer.example:x"},
        {"audience": ""},
        {"algorithms": ("none",)},
        {"algorithms": ("RS256", "HS256")},
        {"algorithms": ()},
        {"principal_prefix": "agent:"},
        {"principal_prefix": ""},
        {"principal_prefix": "user:*"},
        {"group_prefix": ""},
        {"scopes": ("email",)},
        {"principal_claim": ""},
    ],
    ids=str,
)
def test_settings_that_cannot_be_meant_are_refused(wrong: dict[str, Any]) -> None:
    good: dict[str, Any] = {"url": URL, "audience": "c", "scopes": SCOPES, "algorithms": ALGORITHMS}
    Issuer(**good)
    with pytest.raises(RuntimeError, match="TEAMLORE_OIDC_"):
        Issuer(**{**good, **wrong})


def test_http_is_for_loopback_alone() -> None:
    assert all(oidc._safe(f"http://{host}:9") for host in ("127.0.0.1", "127.1.2.3", "[::1]", "localhost"))
    assert not any(
        oidc._safe(f"http://{host}") for host in ("127.0.0.1.evil.example", "10.0.0.1", "localhost.x", "0")
    )
