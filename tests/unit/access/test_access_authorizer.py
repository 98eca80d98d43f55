"""Authorization with keys, tokens, certificates, anonymous clients, rules and rates together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from access_tokens import AUDIENCE, ISSUER, jwk, jwks, rsa_key, token
from gateway_errors import raises_kind
from infergate.access.authenticator import Authenticator, KeyRing
from infergate.access.authorizer import Authorizer, AuthorizerSettings
from infergate.access.jwks import JwkSet
from infergate.access.keys import ApiKey, ApiKeys, digest_of
from infergate.access.rate_limits import (
    BucketCharge,
    ExceededLimit,
    LocalBuckets,
    Rate,
    RateLimit,
    RateLimits,
)
from infergate.access.rejection import RejectionReason, rate_store_unavailable
from infergate.access.rules import AccessRule, AccessRules
from infergate.access.tokens import Issuer, JwtVerifier
from infergate.codecs.base import RequestSummary
from infergate.core import messages
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import InferRequest, ServerLiveRequest
from infergate.core.request_context import RequestContext
from request_records import make_record

SECRET = "infergate_the-key-of-a"
BEARER = {"authorization": f"Bearer {SECRET}"}
INFER = RequestSummary(InferRequest, "m")
SOURCE_KEYS = JwkSet("idp", jwks(jwk(rsa_key(), kid="1")))


class FixedKeySource:
    def current_if_checked(self, now: float) -> JwkSet | None:
        return SOURCE_KEYS

    async def current(self, now: float) -> JwkSet | None:
        return SOURCE_KEYS

    async def refreshed(self, now: float) -> JwkSet | None:
        return SOURCE_KEYS


class Access:
    """An authorizer, the reasons for its rejections, and the state changes that it denied."""

    def __init__(
        self, *rules: AccessRule, limits: tuple[RateLimit, ...] = (), **changed: Any
    ) -> None:
        self.reasons: list[str] = []
        self.denied: list[tuple[type, str, Kind]] = []
        access_rules = AccessRules(
            rules or (AccessRule(("key:a", "jwt:idp:alice", "cert:spiffe://a")),)
        )
        issuer = Issuer("idp", ISSUER, (AUDIENCE,), ("RS256",), 0.0, "sub", FixedKeySource())
        fields: dict[str, Any] = {
            "keys": KeyRing(ApiKeys([ApiKey("a", digest_of(SECRET))]), None),
            "tokens": JwtVerifier((issuer,), access_rules),
            "rates": RateLimits(limits, LocalBuckets()) if limits else None,
            "route_label": lambda model, version, headers: "route",
            "close_callbacks": (),
            "open_health": True,
            "has_shared_memory": False,
            **changed,
        }
        settings = AuthorizerSettings(
            open_health=fields["open_health"],
            has_shared_memory=fields["has_shared_memory"],
            on_rejected=self.reasons.append,
            on_change_denied=lambda operation, context, error: self.denied.append(
                (operation, context.identity, error.kind)
            ),
        )
        self.authenticator = Authenticator(access_rules, fields["keys"], fields["tokens"])
        self.authorizer = Authorizer(
            settings,
            self.authenticator,
            fields["rates"],
            route_label=fields["route_label"],
            close_callbacks=fields["close_callbacks"],
        )

    async def authorize(self, summary: RequestSummary = INFER, **fields: Any) -> str:
        """Authorize a request and return the identity."""
        self.context = RequestContext("test", **fields)
        self.summary = await self.authorizer.authorize(summary, self.context)
        return self.context.identity

    async def rejection_of(
        self, kind: Kind, summary: RequestSummary = INFER, **fields: Any
    ) -> GatewayError:
        """Authorize a request that must be rejected with ``kind``, and return the error."""
        with raises_kind(kind) as caught:
            await self.authorize(summary, **fields)
        assert SECRET not in str(vars(caught.value))
        return caught.value


async def test_keys_tokens_and_certificates_identify_the_client() -> None:
    access = Access()
    assert await access.authorize(headers=BEARER) == "key:a"
    assert await access.authorize(headers={"x-api-key": SECRET}) == "key:a"
    assert await access.authorize(headers={"authorization": f"bearer {token()}"}) == "jwt:idp:alice"
    assert await access.authorize(peer_identity=("spiffe://a", "a.example")) == "cert:spiffe://a"
    assert access.reasons == []


async def test_a_credential_takes_precedence_over_the_certificate() -> None:
    access = Access(AccessRule(("cert:spiffe://a", "anonymous", "key:a")))
    credentials = {"headers": BEARER, "peer_identity": ("spiffe://a",)}
    assert await access.authorize(**credentials) == "key:a"
    for header in ("Bearer wrong", "Basic x", f"Bearer {token(aud='other')}", ""):
        fields = {"headers": {"authorization": header}, "peer_identity": ("spiffe://a",)}
        await access.rejection_of(Kind.UNAUTHENTICATED, **fields)
    assert await access.authorize() == "anonymous"


async def test_identities_of_different_kinds_differ() -> None:
    access = Access(AccessRule(("key:spiffe://a", "jwt:idp:a")))
    await access.rejection_of(Kind.FORBIDDEN, headers=BEARER)
    await access.rejection_of(Kind.FORBIDDEN, peer_identity=("spiffe://a",))


async def test_only_the_first_name_of_a_certificate_is_matched() -> None:
    access = Access(AccessRule(("cert:b.example",)))
    await access.rejection_of(Kind.FORBIDDEN, peer_identity=("a.example", "b.example"))


async def test_authenticate_sets_the_identity_or_rejects_the_client() -> None:
    access, guests = Access(), Access(AccessRule(("anonymous",)))
    for headers in ({}, {"x-api-key": "wrong"}):
        with raises_kind(Kind.UNAUTHENTICATED):
            await access.authorizer.authenticate(RequestContext("test", headers=headers))
    assert access.reasons == [
        RejectionReason.NO_CREDENTIALS.value,
        RejectionReason.UNKNOWN_KEY.value,
    ]
    for harness, headers, identity in ((access, BEARER, "key:a"), (guests, {}, "anonymous")):
        await harness.authorizer.authenticate(call := RequestContext("test", headers=headers))
        assert call.identity == identity
    access.authorizer.hand_over_to(guests.authorizer)
    await access.authorizer.authenticate(call := RequestContext("test"))
    assert call.identity == "anonymous"


async def test_anonymous_clients_must_authenticate_even_for_forbidden_models() -> None:
    access = Access()
    await access.rejection_of(Kind.UNAUTHENTICATED)
    guests = Access(AccessRule(("anonymous",), ("demo",)), AccessRule(("key:a",)))
    assert await guests.authorize(RequestSummary(InferRequest, "demo")) == "anonymous"
    await guests.rejection_of(Kind.UNAUTHENTICATED)  # not FORBIDDEN
    assert access.reasons == guests.reasons == [RejectionReason.NO_CREDENTIALS.value]


async def test_without_issuers_bearer_tokens_are_keys() -> None:
    text = token()
    keys = KeyRing(ApiKeys([ApiKey("odd", digest_of(text))]), None)
    access = Access(AccessRule(("key:odd",)), tokens=None, keys=keys)
    assert await access.authorize(headers={"authorization": f"Bearer {text}"}) == "key:odd"
    assert await access.authorize(headers={"x-api-key": text}) == "key:odd"


async def test_a_token_in_the_key_header_is_rejected() -> None:
    await Access().rejection_of(Kind.UNAUTHENTICATED, headers={"x-api-key": token()})


@pytest.mark.parametrize("operation", messages.OPERATION_NAMES)
async def test_only_health_operations_are_open(operation: type) -> None:
    access = Access()
    summary = RequestSummary(operation, "m")
    if operation in {ServerLiveRequest, messages.ServerReadyRequest}:
        assert await access.authorize(summary) == ""
        await Access(open_health=False).rejection_of(Kind.UNAUTHENTICATED, summary)
        allowed = Access(AccessRule(("*",), operations=frozenset({"health"})), open_health=False)
        assert await allowed.authorize(summary, headers=BEARER) == "key:a"
    else:
        await access.rejection_of(Kind.UNAUTHENTICATED, summary)


async def test_errors_name_the_forbidden_operation() -> None:
    access = Access(AccessRule(("key:a",), ("bert-*",)))
    gpt = RequestSummary(InferRequest, "gpt")
    error = await access.rejection_of(Kind.FORBIDDEN, gpt, headers=BEARER)
    assert error.public == "infer of model 'gpt' is not permitted for this client"
    assert access.context.identity == "key:a"  # for the log
    assert access.reasons == ["forbidden"]


@pytest.mark.parametrize(
    "summary",
    [
        RequestSummary(messages.ModelLoadRequest, "m"),
        RequestSummary(messages.LogSettingsRequest),
        RequestSummary(messages.SharedMemoryRegisterRequest),
    ],
)
async def test_rejected_changes_are_reported(summary: RequestSummary) -> None:
    access = Access()
    await access.rejection_of(Kind.FORBIDDEN, summary, headers=BEARER)
    await access.rejection_of(Kind.UNAUTHENTICATED, summary)
    await access.rejection_of(Kind.UNAUTHENTICATED, headers={"authorization": "Bearer x"})
    assert access.denied == [
        (summary.operation, "key:a", Kind.FORBIDDEN),
        (summary.operation, "", Kind.UNAUTHENTICATED),
    ]


async def test_an_exceeded_rate_rejects_only_requests_of_its_route() -> None:
    limit = RateLimit(("*",), requests=Rate(2, 3600.0, 2))
    access = Access(AccessRule(("*",)), limits=(limit,), open_health=False)
    for _ in range(2):
        await access.authorize(headers=BEARER)
    error = await access.rejection_of(Kind.RATE_LIMITED, headers=BEARER)
    assert error.retry_after == pytest.approx(1800, abs=60)
    assert access.reasons == ["requests"]
    index = RequestSummary(messages.ModelIndexRequest)
    assert await access.authorize(index, headers=BEARER) == "key:a"  # the index has no route
    await access.rejection_of(Kind.FORBIDDEN, RequestSummary(ServerLiveRequest), headers=BEARER)


async def test_bytes_are_counted_per_message() -> None:
    access = Access(limits=(RateLimit(("*",), bytes=Rate(100, 3600.0, 100)),))
    await access.authorize(headers=BEARER, record=make_record(bytes_in=60))
    await access.rejection_of(Kind.RATE_LIMITED, headers=BEARER, record=make_record(bytes_in=60))
    assert access.reasons == ["bytes"]


async def test_rejected_requests_are_not_counted() -> None:
    access = Access(
        AccessRule(("key:a",), ("m",)), limits=(RateLimit(("*",), requests=Rate(1, 3600.0, 1)),)
    )
    for _ in range(3):
        await access.rejection_of(Kind.FORBIDDEN, RequestSummary(InferRequest, "n"), headers=BEARER)
    assert await access.authorize(headers=BEARER)


class RemoteStore:
    """A store that needs I/O and is unavailable."""

    async def charge(self, charges: Sequence[BucketCharge], now: float) -> ExceededLimit | None:
        raise rate_store_unavailable()


async def test_an_unavailable_store_that_fails_closed_rejects_requests() -> None:
    limit = RateLimit(("*",), requests=Rate(1, 1.0, 1))
    access = Access(rates=RateLimits((limit,), LocalBuckets(), RemoteStore()))
    await access.rejection_of(Kind.OVERLOADED, headers=BEARER)
    assert access.reasons == ["store_away"]


async def test_messages_are_inspected_without_shared_memory_permission() -> None:
    plain, memory = frozenset({"infer"}), frozenset({"infer", "shared_memory"})
    for is_enabled, operations, can_pass_through in [
        (False, plain, True),
        (True, plain, False),
        (True, memory, True),
    ]:
        access = Access(AccessRule(("*",), operations=operations), has_shared_memory=is_enabled)
        await access.authorize(headers=BEARER)
        assert access.summary.can_pass_through is can_pass_through


async def test_the_cache_of_identities_is_bounded() -> None:
    access = Access(AccessRule(("cert:*",)))
    for number in range(5000):
        await access.authorize(peer_identity=(f"c{number}",))
    assert len(access.authenticator._permits) <= 4096


async def test_decide_gives_the_result_of_authorize_without_io() -> None:
    access = Access(AccessRule(("key:a", "jwt:idp:alice"), models=("m",)))
    decide = access.authorizer.decide
    context = RequestContext("test", headers=BEARER)
    assert decide(INFER, context) is INFER
    assert context.identity == "key:a"
    with raises_kind(Kind.FORBIDDEN):
        decide(RequestSummary(InferRequest, "other"), context)
    with raises_kind(Kind.UNAUTHENTICATED):
        decide(INFER, RequestContext("test"))
    assert access.reasons == ["forbidden", "no_credentials"]
    bearer = {"authorization": f"Bearer {token()}"}
    assert decide(INFER, RequestContext("test", headers=bearer)) is None  # not verified yet
    await access.authorize(headers=bearer)
    context = RequestContext("test", headers=bearer)
    assert decide(INFER, context) is INFER
    assert context.identity == "jwt:idp:alice"
    unknown = {"x-api-key": "infergate_unknown"}
    assert decide(INFER, RequestContext("test", headers=unknown)) is None
    assert access.reasons == ["forbidden", "no_credentials"]


def test_no_decision_without_io_if_rates_are_counted_elsewhere() -> None:
    limit = RateLimit(("*",), requests=Rate(1, 60.0, 1))
    remote = Access(rates=RateLimits([limit], LocalBuckets(), RemoteStore()))
    context = RequestContext("test", headers=BEARER)
    assert remote.authorizer.decide(INFER, context) is None
    assert context.permit is None
    assert remote.authorizer.decide(RequestSummary(ServerLiveRequest), context) is not None


def test_a_decision_charges_local_rates_once() -> None:
    access = Access(limits=(RateLimit(("*",), requests=Rate(1, 60.0, 1)),))
    assert access.authorizer.decide(INFER, RequestContext("test", headers=BEARER)) is INFER
    with raises_kind(Kind.RATE_LIMITED):
        access.authorizer.decide(INFER, RequestContext("test", headers=BEARER))


def test_decide_uses_the_successor() -> None:
    first, second = Access(), Access(AccessRule(("key:b",)))
    first.authorizer.hand_over_to(second.authorizer)
    with pytest.raises(GatewayError):
        first.authorizer.decide(INFER, RequestContext("test", headers=BEARER))
    assert first.reasons == []
    assert len(second.reasons) == 1
