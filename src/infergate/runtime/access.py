"""Builds the ``Authorizer`` from the ``access`` section of the configuration, and authenticates
requests to the admin listener.

The packages for tokens and for Redis are imported only if the configuration needs them, because
each package takes memory in every process.
"""

# ruff: noqa: PLC0415 - see the module's docstring

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from infergate.access import rejection as rejections
from infergate.access.authenticator import Authenticator, KeyRing
from infergate.access.authorizer import Authorizer, AuthorizerSettings, RouteLabelLookup
from infergate.access.credentials import read_credential
from infergate.access.keys import ApiKeys, parse_file
from infergate.access.rate_limits import Rate, RateBuckets, RateLimit, RateLimits
from infergate.access.rejection import AccessRejected
from infergate.access.rules import KEY_PREFIX, AccessRule, AccessRules, ClientShare, RulePermit
from infergate.access.watched_file import WatchedFile
from infergate.assembly.engines import load_engine
from infergate.config import compile as compiled
from infergate.config.access import AccessConfig, ConfiguredRate, JwtConfig, RateConfig
from infergate.config.schema import Config
from infergate.config.values import Url
from infergate.core.errors import GatewayError, backend_garbage, error_headers
from infergate.core.limits import MIB, Limits
from infergate.core.log_events import AUDIT, with_fields
from infergate.core.request_context import RequestContext
from infergate.core.wire import HttpRequest, HttpResponse, join_parts
from infergate.gateway.audit import log_denied
from infergate.observe.metrics import Metrics
from infergate.runtime.admin import text_response
from infergate.runtime.running import GatewayParts
from infergate.runtime.worker_group import WorkerGroup
from infergate.transport.base import HttpApp, HttpUpstream

if TYPE_CHECKING:
    from infergate.access.jwks import JwkSource
    from infergate.access.tokens import JwtVerifier

__all__ = ["Authorizer", "authorize_admin", "make_authorizer"]
_audit = logging.getLogger("infergate.audit")

_FETCH_TIMEOUT_SECONDS: Final = 5.0
"""Timeout for fetching a key set from a URL."""
_READ_METHODS: Final = frozenset({"GET", "HEAD"})
_MAX_LOGGED_PATH: Final = 256

T = TypeVar("T")
CloseCallbacks = list[Callable[[], Awaitable[None]]]


def make_authorizer(
    config: Config,
    route_of: RouteLabelLookup,
    limits: Limits,
    group: WorkerGroup,
    previous: GatewayParts | None = None,
) -> Authorizer:
    """Return the authorizer of ``config``, which must have an ``access`` section.

    The authorizer of ``previous`` is reused if none of its settings has changed, and uses the old
    routes until ``GatewayParts.activate``. A new authorizer keeps the rate limit buckets if the
    rate limits are unchanged. Raises OSError if a key file cannot be read or is invalid."""
    access, metrics = config.access, group.metrics
    assert access is not None
    buckets: RateBuckets | None = None
    if previous and previous.config.access and previous.authorizer:
        if _dependencies(previous.config, previous.limits) == _dependencies(config, limits):
            return previous.authorizer
        if previous.authorizer.rates and previous.config.access.rates == access.rates:
            buckets = previous.authorizer.rates.buckets
    rules = AccessRules(
        [
            AccessRule(item.who, item.models, frozenset(item.operations), item.claims)
            for item in access.rules
        ],
        [ClientShare(item.who, item.weight, item.highest_priority) for item in access.shares],
    )
    closing: CloseCallbacks = []
    make_http = load_engine(config.engine).make_http_upstream
    make_upstream = partial(make_http, replace(limits, body=MIB), None)
    keys = _make_key_ring(access, metrics)
    tokens = (
        _make_token_verifier(access, rules, make_upstream, metrics, closing) if access.jwt else None
    )
    return Authorizer(
        AuthorizerSettings(
            open_health=access.open_health,
            has_shared_memory=config.control.shared_memory,
            on_rejected=lambda reason: metrics.access_refused.labels(reason).inc(),
            on_change_denied=log_denied,
        ),
        Authenticator(rules, keys, tokens),
        _make_rate_limits(access, buckets, group, closing),
        route_label=route_of,
        close_callbacks=closing,
    )


def _dependencies(config: Config, limits: Limits) -> tuple[object, ...]:
    return config.access, config.control.shared_memory, config.engine, limits


def _failure_counter(metrics: Metrics, source: str) -> Callable[[], None]:
    failures = metrics.access_failures.labels(source)
    return failures.inc


def _make_key_ring(access: AccessConfig, metrics: Metrics) -> KeyRing:
    static_keys = ApiKeys([item.key for item in access.keys])
    if access.keys_file is None:
        return KeyRing(static_keys, None)

    def parse(data: bytes) -> ApiKeys:
        return ApiKeys(parse_file(data))

    path = access.keys_file
    initial = _parse_configured_file(path, parse, "access.keys_file")
    return KeyRing(
        static_keys, WatchedFile(path, parse, initial, _failure_counter(metrics, "keys_file"))
    )


def _parse_configured_file(path: Path, parse: Callable[[bytes], T], key: str) -> T:
    """Parse the file that the configuration names in ``key``. Raises OSError if the file cannot be
    read or is invalid: the file may have changed since the configuration was checked."""
    try:
        return parse(path.read_bytes())
    except ValueError as error:
        raise OSError(f"{key}: the file '{path}': {error}") from error


def _make_token_verifier(
    access: AccessConfig,
    rules: AccessRules,
    make_upstream: Callable[[], HttpUpstream],
    metrics: Metrics,
    close_callbacks: CloseCallbacks,
) -> JwtVerifier:
    from infergate.access.tokens import Issuer, JwtVerifier

    failed = _failure_counter(metrics, "jwks")
    upstream = make_upstream()
    tokens = JwtVerifier(
        [
            Issuer(
                name,
                jwt.issuer,
                jwt.audiences,
                jwt.algorithms,
                jwt.leeway,
                jwt.subject,
                _make_key_source(name, jwt, upstream, failed, close_callbacks),
            )
            for name, jwt in access.jwt.items()
        ],
        rules,
    )
    close_callbacks.append(upstream.close)  # close the upstream after the key sources that use it
    return tokens


def _make_key_source(
    name: str,
    config: JwtConfig,
    upstream: HttpUpstream,
    on_failure: Callable[[], None],
    close_callbacks: CloseCallbacks,
) -> JwkSource:
    from infergate.access.jwks import JwkSet, JwkUrlSource

    path = config.jwks_file
    if path is not None:
        parse = partial(JwkSet, name)
        initial = _parse_configured_file(path, parse, f"access.jwt.{name}.jwks_file")
        return WatchedFile(path, parse, initial, on_failure)
    assert config.jwks_url is not None
    source = JwkUrlSource(name, _make_fetch(config.jwks_url, upstream), config.refresh, on_failure)
    close_callbacks.append(source.close)
    return source


def _make_fetch(url: Url, upstream: HttpUpstream) -> Callable[[], Awaitable[bytes]]:
    server = compiled.endpoint(url)._replace(path="")
    path = url.path or "/"

    async def fetch() -> bytes:
        wire = HttpRequest("GET", path, headers={"accept": "application/json"})
        response = await upstream.exchange(wire, server, _FETCH_TIMEOUT_SECONDS)
        if response.status != 200:
            raise backend_garbage(f"{url} responded with HTTP {response.status}")
        return bytes(join_parts(response.body))

    return fetch


def _make_rate_limits(
    access: AccessConfig,
    buckets: RateBuckets | None,
    group: WorkerGroup,
    close_callbacks: CloseCallbacks,
) -> RateLimits | None:
    if not access.rates:
        return None
    if buckets is None:
        rates_json = "".join(item.model_dump_json() for item in access.rates)
        buckets = group.rate_buckets(rates_json.encode())
    limits, redis = list(map(_make_rate_limit, access.rates)), access.redis
    if redis is None:
        return RateLimits(limits, buckets)
    from infergate.access.redis_rates import RedisRateStore, redis_client

    client = redis_client(redis.url, redis.timeout)
    failed = _failure_counter(group.metrics, "redis")
    store = RedisRateStore(client, redis.timeout, redis.when_unavailable, failed, buckets)
    close_callbacks.append(store.close)
    return RateLimits(limits, buckets, store)


def _make_rate_limit(config: RateConfig) -> RateLimit:
    return RateLimit(
        config.who,
        config.models,
        "identity" in config.each,
        "route" in config.each,
        _make_rate(config.requests, config.requests_burst),
        _make_rate(config.bytes, config.bytes_burst),
    )


def _make_rate(configured: ConfiguredRate | None, burst: int | None) -> Rate | None:
    if configured is None:
        return None
    return Rate(configured.amount, configured.seconds, burst or configured.amount)


# ---- admin listener


def authorize_admin(app: HttpApp, config: Config, metrics: Metrics) -> HttpApp:
    """If the admin listener has keys, wrap ``app`` so that changes require a key."""
    listener = config.listeners.admin
    if listener is None or not listener.keys:
        return app
    return _AuthorizedAdmin(app, ApiKeys([entry.key for entry in listener.keys]), metrics)


@dataclass(frozen=True, slots=True, eq=False)
class _AuthorizedAdmin:
    """An HttpApp that requires a key for changes, and logs each attempted change to
    ``infergate.audit``."""

    app: HttpApp
    keys: ApiKeys
    metrics: Metrics

    async def respond(self, wire: HttpRequest, context: RequestContext) -> HttpResponse:
        """Pass GET and HEAD requests to the app, and other requests only with a valid key."""
        if wire.method in _READ_METHODS:
            return await self.app.respond(wire, context)
        try:
            context.permit = self._authenticate(context)
        except AccessRejected as rejection:
            self.metrics.access_refused.labels(rejection.reason.value).inc()
            error = rejection.error
            response = text_response(401, error.public, error_headers(error))
        else:
            response = await self.app.respond(wire, context)
        fields = {
            "method": wire.method[:20],
            "path": wire.path[:_MAX_LOGGED_PATH],
            "peer": context.peer,
            "status": response.status,
            "identity": context.identity,
        }
        _audit.info(
            "admin %s %r peer=%s status=%d identity=%r",
            *fields.values(),
            extra=with_fields(AUDIT, operation="admin", **fields),
        )
        return response

    def _authenticate(self, context: RequestContext) -> RulePermit:
        credential = read_credential(context.headers)
        if credential is None:
            raise rejections.no_credentials()
        name = self.keys.find_owner(credential.secret)
        if name is None:
            raise rejections.unknown_key()
        return RulePermit(KEY_PREFIX + name, ())

    def refuse(
        self, error: GatewayError, wire: HttpRequest, context: RequestContext
    ) -> HttpResponse:
        return self.app.refuse(error, wire, context)
