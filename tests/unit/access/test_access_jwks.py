"""Public key sets: selection of the key for a token, and fetching."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from access_tokens import ec_key, ed_key, jwk, jwks, rsa_key
from infergate.access.jwks import (
    ALGORITHMS,
    FETCH_INTERVAL_SECONDS,
    INITIAL_FETCH_INTERVAL_SECONDS,
    JwkSet,
    JwkUrlSource,
)
from infergate.config.access import JwtConfig
from infergate.core.errors import GatewayError, Kind

RSA = jwk(rsa_key(), kid="1")


def usable_algorithms(key: dict[str, Any]) -> set[str]:
    try:
        keys = JwkSet("idp", jwks(key))
    except ValueError:
        return set()
    return {each for each in ("HS256", "none", *ALGORITHMS) if keys.find(key.get("kid"), each)}


def test_allowed_algorithms_are_supported() -> None:
    choices = JwtConfig.model_json_schema()["properties"]["algorithms"]["items"]["enum"]
    assert set(choices) == ALGORITHMS


def test_a_key_supports_only_algorithms_of_its_type() -> None:
    rsa_algorithms = {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
    assert usable_algorithms(RSA) == rsa_algorithms
    assert usable_algorithms(jwk(ec_key(), kid="1")) == {"ES256"}
    assert usable_algorithms(jwk(ed_key(), kid="1")) == {"EdDSA"}


@pytest.mark.parametrize(
    "key",
    [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "1", "alg": "HS256"},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "1", "alg": "RS256"},
        {**RSA, "use": "enc"},
        {**RSA, "key_ops": ["sign"]},
        {**RSA, "key_ops": "verify"},
        {**RSA, "alg": "HS256"},
        {**RSA, "alg": "none"},
        {**RSA, "alg": "ES256"},
        {**RSA, "kty": ["RSA"]},
        {**RSA, "n": "!"},
        {"kty": "RSA", "kid": "1"},
        {"kty": "EC", "crv": "secp256k1", "kid": "1"},
        {},
    ],
)
def test_keys_without_a_supported_algorithm_are_not_used(
    key: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert usable_algorithms(key) == set()
    assert "c2VjcmV0" not in caplog.text


def test_the_log_names_the_issuer_and_the_id_of_an_unusable_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert JwkSet("idp", jwks({**RSA, "n": "!"})).find(None, "RS256") is None
    assert "jwt 'idp': the key with kid '1' cannot be used: " in caplog.text


def test_a_key_with_an_algorithm_supports_no_other_algorithm() -> None:
    assert usable_algorithms({**RSA, "alg": "PS256"}) == {"PS256"}


def test_a_token_selects_its_key_by_id_or_as_the_only_match() -> None:
    other = jwk(rsa_key("other"), kid="2")
    assert JwkSet("idp", jwks(RSA, jwk(ec_key(), kid="3"))).find(None, "RS256") is not None
    assert JwkSet("idp", jwks(RSA, other)).find(None, "RS256") is None
    assert JwkSet("idp", jwks(RSA, other)).find("2", "RS256") is not None
    assert JwkSet("idp", jwks(RSA, other)).find("3", "RS256") is None
    assert JwkSet("idp", jwks(RSA, {**other, "kid": "1"})).find("1", "RS256") is None  # ambiguous


@pytest.mark.parametrize(
    "document", [b"", b"[]", b"{}", b'{"keys": {}}', b'{"keys": []}', b'{"keys": [1]}', b"\xff"]
)
def test_invalid_key_sets_are_rejected(document: bytes) -> None:
    with pytest.raises(ValueError, match=r"the document is not|the document has no key"):
        JwkSet("idp", document)


@given(
    st.binary(max_size=100)
    | st.recursive(
        st.none() | st.text(max_size=5) | st.integers(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["keys", "kty", "crv", "alg", "kid", "use", "key_ops", "n", "e"]),
                inner,
                max_size=6,
            )
        ),
        max_leaves=8,
    ).map(lambda document: json.dumps(document).encode())
)
def test_arbitrary_documents_are_parsed_or_rejected(document: bytes) -> None:
    try:
        keys = JwkSet("idp", document)
    except ValueError:
        return
    for algorithm in ALGORITHMS:
        keys.find(None, algorithm)
        keys.find("1", algorithm)


# ---- key sets from a URL


class Server:
    """A key server that returns ``document``, or raises it if it is an exception."""

    def __init__(self, document: bytes | Exception) -> None:
        self.document = document
        self.requests = 0
        self.failed = 0
        self.gate: asyncio.Event | None = None
        self.entered = asyncio.Event()

    async def __call__(self) -> bytes:
        self.requests += 1
        if self.gate is not None:
            self.entered.set()
            await self.gate.wait()
        if isinstance(self.document, Exception):
            raise self.document
        return self.document

    def fail(self) -> None:
        self.failed += 1


def source(server: Server, refresh: float = 300.0) -> JwkUrlSource:
    return JwkUrlSource("idp", server, refresh, server.fail)


CONNECTION_REFUSED = GatewayError(Kind.CONNECT, "connection refused")


async def test_keys_are_fetched_on_demand_and_on_expiry() -> None:
    server = Server(jwks(RSA))
    keys = source(server)
    first = await keys.current(0.0)
    assert await keys.current(299.0) is first
    assert server.requests == 1
    assert await keys.current(300.0) is first  # an unchanged document keeps verified tokens valid
    assert server.requests == 2
    server.document = jwks(jwk(rsa_key("other"), kid="2"))
    changed = await keys.current(600.0)
    assert changed is not None
    assert changed.find("2", "RS256") is not None


async def test_an_unknown_key_id_triggers_one_fetch_per_interval() -> None:
    server = Server(jwks(RSA))
    keys = source(server)
    await keys.current(0.0)
    for moment in (1.0, 2.0, FETCH_INTERVAL_SECONDS - 1):
        await keys.refreshed(moment)
    assert server.requests == 1
    for moment in (0.0, 1.0, FETCH_INTERVAL_SECONDS - 1):
        await keys.refreshed(FETCH_INTERVAL_SECONDS + moment)
    assert server.requests == 2


@pytest.mark.parametrize("unusable", [CONNECTION_REFUSED, b"<html>", b'{"keys": []}'])
async def test_keys_are_kept_while_the_url_is_unavailable(
    unusable: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(jwks(RSA))
    keys = source(server)
    first = await keys.current(0.0)
    server.document = unusable
    caplog.set_level(logging.ERROR, "infergate.access")
    for moment in range(300, 3000, 10):
        assert await keys.current(float(moment)) is first
    assert server.failed == server.requests - 1
    assert server.failed == pytest.approx(2700 / FETCH_INTERVAL_SECONDS, abs=1)
    assert "stay valid" in caplog.text


async def test_keys_that_were_never_loaded_are_fetched_more_often() -> None:
    server = Server(CONNECTION_REFUSED)
    keys = source(server)
    assert await keys.current(0.0) is None
    assert await keys.current(INITIAL_FETCH_INTERVAL_SECONDS / 2) is None
    assert server.requests == 1
    server.document = jwks(RSA)
    assert await keys.current(INITIAL_FETCH_INTERVAL_SECONDS) is not None


async def test_requests_use_the_old_keys_during_a_refresh() -> None:
    server = Server(jwks(RSA))
    keys = source(server)
    first = await keys.current(0.0)
    server.gate = asyncio.Event()
    pending = asyncio.ensure_future(keys.current(300.0))
    await server.entered.wait()
    assert await asyncio.wait_for(keys.current(300.0), 5) is first
    server.gate.set()
    await pending


async def test_a_cancelled_leading_fetch_still_serves_its_waiters() -> None:
    """If cancelling a caller ended the fetch, a reconnecting client could cause any number of
    fetches."""
    server = Server(jwks(RSA))
    server.gate = asyncio.Event()
    keys = source(server)
    for moment in range(5):
        pending = asyncio.ensure_future(keys.current(float(moment)))
        await server.entered.wait()
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)
    server.gate.set()
    assert await keys.current(5.0) is not None
    assert server.requests == 1


@pytest.mark.parametrize("document", [jwks(RSA), CONNECTION_REFUSED])
async def test_waiters_for_a_slow_url_get_its_response(document: Any) -> None:
    server = Server(document)
    server.gate = asyncio.Event()
    keys = source(server)
    waiting = [asyncio.ensure_future(keys.current(2.0 * moment)) for moment in range(10)]
    await server.entered.wait()
    await asyncio.sleep(0)
    server.gate.set()
    key_sets = await asyncio.wait_for(asyncio.gather(*waiting), 5)
    assert [each is None for each in key_sets] == [document is CONNECTION_REFUSED] * 10
    assert (server.requests, server.failed) == (1, document is CONNECTION_REFUSED)


async def test_nothing_is_fetched_after_close() -> None:
    server = Server(jwks(RSA))
    server.gate = asyncio.Event()
    keys = source(server)
    pending = asyncio.ensure_future(keys.current(0.0))
    await server.entered.wait()
    await keys.close()
    await asyncio.wait({pending}, timeout=5)
    assert pending.cancelled()
