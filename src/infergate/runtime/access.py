"""Builds the ``Authorizer`` from the ``access`` section of the configuration, and guards the admin
listener.

Packages for tokens and for Redis are imported only where they are configured, because each costs
every process memory.
"""

# ruff: noqa: PLC0415 - see the module's docstring

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from infergate.access import refusals
from infergate.access.credentials import presented
from infergate.access.entrance import Entrance, KeyRing, RouteOf, TokenCheck
from infergate.access.files import Watched
from infergate.access.keys import Keys, parse_file
from infergate.access.rates import InMemory, Limit, Rate, Rates, Store
from infergate.access.refusals import Refused
from infergate.access.rules import KEY, Granted, Rule, Rules
from infergate.config import compile as compiled
from infergate.config.access import AccessConfig, JwtConfig, PerTime, RateConfig
from infergate.config.schema import Config
from infergate.config.values import Url
from infergate.core.call import Call
from infergate.core.errors import GatewayError, garbage, refusal_headers
from infergate.core.limits import MIB, Limits
from infergate.core.vocabulary import AUDIT, telling
from infergate.core.wire import HttpRequest, HttpResponse, joined
from infergate.gateway.audit import denied
from infergate.observe.metrics import Metrics
from infergate.runtime.company import Company
from infergate.runtime.engines import engine
from infergate.runtime.running import Parts
from infergate.transport.base import HttpApp, HttpUpstream

if TYPE_CHECKING:
    from infergate.access.jwks import Source

__all__ = ["Entrance", "entrance", "guarded_admin"]
_audit = logging.getLogger("infergate.audit")

_FETCH_TIME: Final = 5.0
"""Seconds for fetching a key set from a URL."""
_READS: Final = frozenset({"GET", "HEAD"})
_LONGEST: Final = 256

T = TypeVar("T")
Closing = list[Callable[[], Awaitable[None]]]


def entrance(
    config: Config,
    route_of: RouteOf,
    limits: Limits,
    company: Company,
    before: Parts | None = None,
) -> Entrance:
    """Return the authorizer of ``config``, which must have an ``access`` section.

    If nothing that it depends on has changed, this is the authorizer of ``previous``, with its
    counters and its cache of verified tokens; it uses the old routes until
    ``GatewayParts.activate``. Otherwise it is a new authorizer, which keeps the in-memory counters
    if the rate limits are unchanged.
    """
    access, metrics = config.access, company.metrics
    assert access is not None
    memory: InMemory | None = None
    if before is not None and before.config.access is not None and before.access is not None:
        if _made_of(before.config, before.limits) == _made_of(config, limits):
            return before.access
        if before.config.access.rates == access.rates:
            memory = before.access.memory
    if memory is None:
        rates_json = "".join(item.model_dump_json() for item in access.rates)
        memory = InMemory(company.buckets(rates_json.encode()))
    rules = Rules(
        [
            Rule(item.who, item.models, frozenset(item.operations), item.claims)
            for item in access.rules
        ]
    )
    closing: Closing = []
    ask = partial(engine(config.engine).ask_http, replace(limits, body=MIB))
    return Entrance(
        rules=rules,
        keys=_keys(access, metrics),
        tokens=_tokens(access, rules, ask, metrics, closing) if access.jwt else None,
        rates=_rates(access, memory, metrics, closing),
        memory=memory,
        route_of=route_of,
        refused=lambda reason: metrics.access_refused.labels(reason).inc(),
        denied=denied,
        closing=closing,
        open_health=access.open_health,
        shares_memory=config.control.shared_memory,
    )


def _made_of(config: Config, limits: Limits) -> tuple[object, ...]:
    """Return everything that an authorizer depends on."""
    return config.access, config.control.shared_memory, config.engine, limits


def _failed(metrics: Metrics, source: str) -> Callable[[], None]:
    failures = metrics.access_failures.labels(source)
    return failures.inc


def _keys(access: AccessConfig, metrics: Metrics) -> KeyRing:
    static_keys = Keys([item.key for item in access.keys])
    if access.keys_file is None:
        return KeyRing(static_keys, None)

    def parse(data: bytes) -> Keys:
        return Keys(parse_file(data))

    path = access.keys_file
    initial = _read(path, parse, "access.keys_file")
    return KeyRing(static_keys, Watched(path, parse, initial, _failed(metrics, "keys_file")))


def _read(path: Path, parse: Callable[[bytes], T], key: str) -> T:
    """Parse the file named by ``key`` of the configuration. Raises OSError, also for invalid
    content: the file may have changed since the configuration was checked."""
    try:
        return parse(path.read_bytes())
    except ValueError as error:
        raise OSError(f"{key}: the file '{path}': {error}") from error


def _tokens(
    access: AccessConfig,
    rules: Rules,
    ask: Callable[[], HttpUpstream],
    metrics: Metrics,
    closing: Closing,
) -> TokenCheck:
    from infergate.access.tokens import Issuer, Tokens

    failed = _failed(metrics, "jwks")
    upstream = ask()
    tokens = Tokens(
        [
            Issuer(
                name,
                jwt.issuer,
                jwt.audiences,
                jwt.algorithms,
                jwt.leeway,
                jwt.subject,
                _source(name, jwt, upstream, failed, closing),
            )
            for name, jwt in access.jwt.items()
        ],
        rules,
    )
    closing.append(upstream.close)  # after the key sources that use it
    return tokens


def _source(
    name: str,
    config: JwtConfig,
    upstream: HttpUpstream,
    failed: Callable[[], None],
    closing: Closing,
) -> Source:
    from infergate.access.jwks import FileSource, KeySet, UrlSource

    path = config.jwks_file
    if path is not None:
        initial = _read(path, KeySet, f"access.jwt.{name}.jwks_file")
        return FileSource(Watched(path, KeySet, initial, failed))
    assert config.jwks_url is not None
    source = UrlSource(name, _fetch(config.jwks_url, upstream), config.refresh, failed)
    closing.append(source.close)
    return source


def _fetch(url: Url, upstream: HttpUpstream) -> Callable[[], Awaitable[bytes]]:
    server = replace(compiled.endpoint(url), path="")
    path = url.path or "/"

    async def fetch() -> bytes:
        wire = HttpRequest("GET", path, headers={"accept": "application/json"})
        response = await upstream.exchange(wire, server, _FETCH_TIME)
        if response.status != 200:
            raise garbage(f"{url} responded with HTTP {response.status}")
        return bytes(joined(response.body))

    return fetch


def _rates(
    access: AccessConfig, memory: InMemory, metrics: Metrics, closing: Closing
) -> Rates | None:
    if not access.rates:
        return None
    store: Store = memory
    if access.redis is not None:
        from infergate.access.redis_rates import InRedis, redis_at

        redis = access.redis
        client = redis_at(redis.url, redis.timeout)
        failed = _failed(metrics, "redis")
        shared = InRedis(client, redis.timeout, redis.away, failed, memory.buckets)
        closing.append(shared.close)
        store = shared
    return Rates(list(map(_limit, access.rates)), store)


def _limit(config: RateConfig) -> Limit:
    return Limit(
        config.who,
        config.models,
        "identity" in config.each,
        "route" in config.each,
        _rate(config.requests, config.requests_burst),
        _rate(config.bytes, config.bytes_burst),
    )


def _rate(told: PerTime | None, burst: int | None) -> Rate | None:
    return None if told is None else Rate(told.amount, told.seconds, burst or told.amount)


# ---- admin listener


def guarded_admin(app: HttpApp, config: Config, metrics: Metrics) -> HttpApp:
    """Wrap ``app`` so that requests that change something need a key, if the admin listener has
    keys."""
    listener = config.listeners.admin
    if listener is None or not listener.keys:
        return app
    return _GuardedAdmin(app, Keys([entry.key for entry in listener.keys]), metrics)


class _GuardedAdmin:
    """An HttpApp that logs each attempt to change something to ``infergate.audit``."""

    def __init__(self, app: HttpApp, keys: Keys, metrics: Metrics) -> None:
        self._app: Final = app
        self._keys: Final = keys
        self._metrics: Final = metrics

    async def respond(self, wire: HttpRequest, call: Call) -> HttpResponse:
        """Respond to a read directly, and to any other method only with a valid key."""
        if wire.method in _READS:
            return await self._app.respond(wire, call)
        try:
            call.permit = self._permit(call)
        except Refused as rejection:
            self._metrics.access_refused.labels(rejection.reason.value).inc()
            response = _refused(rejection.error)
        else:
            response = await self._app.respond(wire, call)
        _audit.info(
            "admin %s %r peer=%s status=%d identity=%r",
            wire.method[:20],
            wire.path[:_LONGEST],
            call.peer,
            response.status,
            call.identity,
            extra=telling(
                AUDIT,
                operation="admin",
                method=wire.method[:20],
                path=wire.path[:_LONGEST],
                peer=call.peer,
                status=response.status,
                identity=call.identity,
            ),
        )
        return response

    def _permit(self, call: Call) -> Granted:
        credential = presented(call.headers)
        if credential is None:
            raise refusals.no_credentials()
        name = self._keys.find(credential.secret)
        if name is None:
            raise refusals.unknown_key()
        return Granted(KEY + name, ())

    def refuse(self, error: GatewayError, wire: HttpRequest, call: Call) -> HttpResponse:
        """Answer a request that the transport rejected."""
        return self._app.refuse(error, wire, call)


def _refused(error: GatewayError) -> HttpResponse:
    headers = {"content-type": "text/plain; charset=utf-8", **refusal_headers(error)}
    return HttpResponse(401, headers, [f"{error.public}\n".encode()])
