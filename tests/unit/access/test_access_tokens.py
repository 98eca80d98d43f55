"""The verification of JSON Web Tokens, and the cache of verified tokens."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from access_tokens import (
    AUDIENCE,
    ISSUER,
    claims,
    ec_key,
    ed_key,
    jwk,
    jwks,
    public_pem,
    rsa_key,
    token,
)
from infergate.access.jwks import JwkSet
from infergate.access.rejection import AccessRejected, RejectionReason
from infergate.access.rules import AccessRule, AccessRules
from infergate.access.tokens import MAX_CACHED_TOKENS, Issuer, JwtVerifier
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import InferRequest

KEYS = JwkSet("idp", jwks(jwk(rsa_key(), kid="1"), jwk(ec_key(), kid="2"), jwk(ed_key(), kid="3")))


class KeySourceStub:
    """A source of keys that a test changes."""

    def __init__(self, keys: JwkSet | None = KEYS, later: JwkSet | None = None) -> None:
        self.keys = keys
        self.later = later
        self.refresh_count = 0

    async def current(self, now: float) -> JwkSet | None:
        return self.keys

    async def refreshed(self, now: float) -> JwkSet | None:
        self.refresh_count += 1
        self.keys = self.later or self.keys
        return self.keys


def issuer(source: Any = None, **changed: Any) -> Issuer:
    fields: dict[str, Any] = {
        "name": "idp",
        "issuer": ISSUER,
        "audiences": (AUDIENCE, "second"),
        "algorithms": ("RS256", "ES256", "EdDSA"),
        "leeway": 10.0,
        "subject": "sub",
        "source": source or KeySourceStub(),
        **changed,
    }
    return Issuer(**fields)


RULES = AccessRules(
    [AccessRule(("jwt:idp:*",)), AccessRule(("*",), ("secret",), claims={"groups": ("ml-*",)})]
)


def make_verifier(*issuers: Issuer) -> JwtVerifier:
    return JwtVerifier(issuers or (issuer(),), RULES)


async def verify(text: str, verifier: JwtVerifier | None = None, now: float | None = None) -> Any:
    return await (verifier or make_verifier()).verify(text, 0.0, now or time.time())


async def expect_rejection(
    text: str,
    verifier: JwtVerifier | None = None,
    reason: RejectionReason = RejectionReason.INVALID_TOKEN,
) -> GatewayError:
    with pytest.raises(AccessRejected) as caught:
        await verify(text, verifier)
    assert caught.value.reason is reason
    error = caught.value.error
    texts = error.public + error.detail
    assert not any(len(part) > 8 and part in texts for part in text.split("."))
    return error


@pytest.mark.parametrize(
    ("key", "algorithm", "kid"),
    [(rsa_key, "RS256", "1"), (ec_key, "ES256", "2"), (ed_key, "EdDSA", "3")],
)
async def test_a_valid_token_identifies_the_client(key: Any, algorithm: str, kid: str) -> None:
    permit = await verify(token(key(), algorithm, kid))
    assert permit.identity == "jwt:idp:alice"
    assert permit.allows(InferRequest, "m")


async def test_claims_reach_the_rules() -> None:
    rules = AccessRules([AccessRule(("*",), ("secret",), claims={"groups": ("ml-*",)})])
    for groups, is_allowed in ((["ml-eu"], True), (None, False)):
        permit = await verify(token(groups=groups), JwtVerifier((issuer(),), rules))
        assert permit.allows(InferRequest, "secret") is is_allowed


async def test_the_identity_claim_is_configurable() -> None:
    verifier = make_verifier(issuer(subject="email"))
    assert (await verify(token(email="a@b"), verifier)).identity == "jwt:idp:a@b"
    await expect_rejection(token(), verifier)


async def test_one_matching_audience_suffices() -> None:
    assert await verify(token(aud=["x", "second"]))


def unsigned(header: dict[str, Any], body: dict[str, Any], signature: bytes = b"") -> str:
    parts = [json.dumps(header).encode(), json.dumps(body).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(each).rstrip(b"=").decode() for each in parts)


def token_signed_with_the_public_key() -> str:
    """Return a token of an algorithm confusion attack: its HMAC secret is the public key."""
    header, body = {"alg": "HS256", "typ": "JWT", "kid": "1"}, claims()
    signed = unsigned(header, body)[:-1]
    mac = hmac.new(public_pem(rsa_key()), signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


def token_with_another_body() -> str:
    head, _, signature = token().split(".")
    body = base64.urlsafe_b64encode(json.dumps(claims(sub="admin")).encode()).rstrip(b"=").decode()
    return f"{head}.{body}.{signature}"


def token_with_a_critical_header() -> str:
    headers = {"kid": "1", "crit": ["exp"], "exp": 1}
    return jwt.encode(claims(), rsa_key(), "RS256", headers)


ATTACKS = {
    "alg none": lambda: unsigned({"alg": "none", "kid": "1"}, claims()),
    "alg None": lambda: unsigned({"alg": "None", "kid": "1"}, claims()),
    "alg missing": lambda: unsigned({"kid": "1"}, claims()),
    "alg is a list": lambda: unsigned({"alg": ["RS256"], "kid": "1"}, claims()),
    "algorithm confusion": token_signed_with_the_public_key,
    "no signature": lambda: token().rpartition(".")[0] + ".",
    "an attacker's key": lambda: token(rsa_key("mallory")),
    "an attacker's key without a key id": lambda: token(rsa_key("mallory"), kid=None),
    "an attacker's key in the header": lambda: jwt.encode(
        claims(), rsa_key("mallory"), "RS256", {"kid": "1", "jwk": jwk(rsa_key("mallory"))}
    ),
    "an algorithm that is not allowed": lambda: token(algorithm="PS256"),
    "a key of another kind": lambda: token(ec_key(), "ES256", kid="1"),
    "an unknown key id": lambda: token(kid="9"),
    "a changed body": token_with_another_body,
    "a critical header": token_with_a_critical_header,
    "another issuer": lambda: token(iss="https://evil.example"),
    "no issuer": lambda: token(iss=None),
    "no audience": lambda: token(aud=None),
    "another audience": lambda: token(aud="other"),
    "no expiry time": lambda: token(exp=None),
    "an expiry time out of range": lambda: token(exp=10**400),
    "an expiry time of NaN": lambda: token(exp=float("nan")),
    "an infinite start time": lambda: token(nbf=float("inf")),
    "a key id that is a list": lambda: unsigned({"alg": "RS256", "kid": ["1"]}, claims()),
    "a start time in the future": lambda: token(nbf=int(time.time()) + 60),
    "an issue time in the future": lambda: token(iat=int(time.time()) + 60),
    "no subject": lambda: token(sub=None),
    "an empty subject": lambda: token(sub=""),
    "a subject with a line break": lambda: token(sub="a\nb"),
    "a long subject": lambda: token(sub="a" * 257),
    "three parts that are not base64 of JSON": lambda: "a.b.c",
    "three empty parts": lambda: "..",
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_an_invalid_token_is_rejected(attack: str) -> None:
    assert (await expect_rejection(ATTACKS[attack]())).kind is Kind.UNAUTHENTICATED


async def test_an_expired_token_is_reported_only_with_a_valid_signature() -> None:
    expiry = int(time.time()) - 11
    await expect_rejection(token(exp=expiry), reason=RejectionReason.EXPIRED_TOKEN)
    await expect_rejection(token(rsa_key("mallory"), exp=expiry))
    assert await verify(token(exp=expiry + 5))  # expired for 6 s, within the leeway of 10 s


@given(st.text("abcXYZ019-_=.~+/", max_size=200))
async def test_arbitrary_tokens_are_rejected(text: str) -> None:
    assert (await expect_rejection(text)).kind is Kind.UNAUTHENTICATED


@given(
    st.dictionaries(
        st.sampled_from(["alg", "kid", "typ", "crit", "b64", "jku", "x5u", "cty"]),
        st.none()
        | st.booleans()
        | st.text(max_size=5)
        | st.sampled_from(["RS256", "1", "HS256"])
        | st.lists(st.text(max_size=3), max_size=2),
    ),
    st.recursive(st.none() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=2)),
)
async def test_arbitrary_token_headers_are_rejected(head: dict[str, Any], value: Any) -> None:
    body = {**claims(), "sub": value, "exp": value}
    assert (await expect_rejection(unsigned(head, body, b"x"))).kind is Kind.UNAUTHENTICATED


async def test_an_unknown_key_id_triggers_one_fetch() -> None:
    source = KeySourceStub(JwkSet("idp", jwks(jwk(ec_key(), kid="2"))), later=KEYS)
    assert await verify(token(), make_verifier(issuer(source)))
    assert source.refresh_count == 1


async def test_without_keys_the_error_does_not_call_a_token_invalid() -> None:
    verifier = make_verifier(issuer(KeySourceStub(None)))
    error = await expect_rejection(token(), verifier, RejectionReason.KEYS_UNAVAILABLE)
    assert error.kind is Kind.OVERLOADED
    assert error.retry_after


async def test_a_token_is_verified_with_its_issuers_keys_only() -> None:
    other = JwkSet("idp", jwks(jwk(rsa_key("other"), kid="1")))
    url = "https://two.example"
    verifier = make_verifier(issuer(), issuer(KeySourceStub(other), name="two", issuer=url))
    assert (await verify(token(), verifier)).identity == "jwt:idp:alice"
    assert (await verify(token(rsa_key("other"), iss=url), verifier)).identity == "jwt:two:alice"
    await expect_rejection(token(iss=url), verifier)
    await expect_rejection(token(rsa_key("other")), verifier)


# ---- the cache of verified tokens


async def test_a_verified_token_is_cached_until_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    verifier, text, now = make_verifier(), token(), time.time()
    first = await verify(text, verifier, now)
    monkeypatch.setattr(jwt, "decode", lambda *_, **__: pytest.fail("the token was verified again"))
    assert await verify(text, verifier, now + 599) is first


async def test_a_cached_token_still_expires() -> None:
    verifier, now = make_verifier(), time.time()
    text = token(exp=int(now) - 8)  # within the leeway for two more seconds
    assert await verify(text, verifier, now)
    entry = next(iter(verifier._cache.values()))
    assert entry.expires_at == int(now) - 8 + 10
    assert await verify(text, verifier, entry.expires_at - 0.1)
    before = dict(verifier._cache)
    await verify(text, verifier, entry.expires_at)  # expired in the cache: verified again
    assert next(iter(verifier._cache.values())) is not next(iter(before.values()))


async def test_new_keys_invalidate_cached_tokens() -> None:
    source = KeySourceStub()
    verifier, text = make_verifier(issuer(source)), token()
    assert await verify(text, verifier)
    source.keys = JwkSet("idp", jwks(jwk(rsa_key("other"), kid="1")))
    await expect_rejection(text, verifier)


async def test_the_cache_is_bounded_and_holds_no_token() -> None:
    verifier = make_verifier()
    await verify(token(), verifier)
    assert all(isinstance(each, bytes) and len(each) == 32 for each in verifier._cache)
    entry = next(iter(verifier._cache.values()))
    for number in range(MAX_CACHED_TOKENS):
        verifier._cache[number.to_bytes(32)] = entry
    await verify(token(sub="bob"), verifier)
    assert len(verifier._cache) <= MAX_CACHED_TOKENS + 1
