"""From the configuration's ``access`` to what keeps the doors.

*Why late.* Tokens and Redis each need a package that is loaded where they are configured: it would
be memory of every process.
"""

# ruff: noqa: PLC0415 - see the module

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
"""Seconds that a URL of keys has."""
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
    """That of ``config``, which has ``access``. The one of ``before`` stays where all is as it was,
    and with it what was counted and which tokens were checked, and its routes until others serve
    (``Parts.begin``); what was counted in memory stays where rates do."""
    access, metrics = config.access, company.metrics
    assert access is not None
    memory: InMemory | None = None
    if before is not None and before.config.access is not None and before.access is not None:
        if _made_of(before.config, before.limits) == _made_of(config, limits):
            return before.access
        if before.config.access.rates == access.rates:
            memory = before.access.memory
    if memory is None:
        told = "".join(each.model_dump_json() for each in access.rates)
        memory = InMemory(company.buckets(told.encode()))
    rules = Rules(
        [
            Rule(each.who, each.models, frozenset(each.operations), each.claims)
            for each in access.rules
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
    """What an entrance depends on."""
    return config.access, config.control.shared_memory, config.engine, limits


def _failed(metrics: Metrics, source: str) -> Callable[[], None]:
    failures = metrics.access_failures.labels(source)
    return failures.inc


def _keys(access: AccessConfig, metrics: Metrics) -> KeyRing:
    given = Keys([each.key for each in access.keys])
    if access.keys_file is None:
        return KeyRing(given, None)

    def parse(data: bytes) -> Keys:
        return Keys(parse_file(data))

    path = access.keys_file
    found = _read(path, parse, "access.keys_file")
    return KeyRing(given, Watched(path, parse, found, _failed(metrics, "keys_file")))


def _read(path: Path, parse: Callable[[bytes], T], key: str) -> T:
    """What is in the file that ``key`` of the configuration names. Raises OSError: it may have
    changed since that was checked."""
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
    made = Tokens(
        [
            Issuer(
                name,
                each.issuer,
                each.audiences,
                each.algorithms,
                each.leeway,
                each.subject,
                _source(name, each, upstream, failed, closing),
            )
            for name, each in access.jwt.items()
        ],
        rules,
    )
    closing.append(upstream.close)  # after those that ask it
    return made


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
        found = _read(path, KeySet, f"access.jwt.{name}.jwks_file")
        return FileSource(Watched(path, KeySet, found, failed))
    assert config.jwks_url is not None
    source = UrlSource(name, _fetch(config.jwks_url, upstream), config.refresh, failed)
    closing.append(source.close)
    return source


def _fetch(url: Url, upstream: HttpUpstream) -> Callable[[], Awaitable[bytes]]:
    server = replace(compiled.endpoint(url), path="")
    path = url.path or "/"

    async def fetch() -> bytes:
        wire = HttpRequest("GET", path, headers={"accept": "application/json"})
        answer = await upstream.exchange(wire, server, _FETCH_TIME)
        if answer.status != 200:
            raise garbage(f"{url} answers with HTTP {answer.status}")
        return bytes(joined(answer.body))

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


# ---- the admin listener


def guarded_admin(app: HttpApp, config: Config, metrics: Metrics) -> HttpApp:
    """``app``, with a key before what changes anything, where the configuration has some."""
    listener = config.listeners.admin
    if listener is None or not listener.keys:
        return app
    return _GuardedAdmin(app, Keys([each.key for each in listener.keys]), metrics)


class _GuardedAdmin:
    """An HttpApp. Each attempt to change something is told to the log ``infergate.audit``."""

    def __init__(self, app: HttpApp, keys: Keys, metrics: Metrics) -> None:
        self._app: Final = app
        self._keys: Final = keys
        self._metrics: Final = metrics

    async def respond(self, wire: HttpRequest, call: Call) -> HttpResponse:
        """See HttpApp."""
        if wire.method in _READS:
            return await self._app.respond(wire, call)
        try:
            call.permit = self._permit(call)
        except Refused as refusal:
            self._metrics.access_refused.labels(refusal.reason.value).inc()
            answer = _refused(refusal.error)
        else:
            answer = await self._app.respond(wire, call)
        _audit.info(
            "admin %s %r peer=%s status=%d identity=%r",
            wire.method[:20],
            wire.path[:_LONGEST],
            call.peer,
            answer.status,
            call.identity,
            extra=telling(
                AUDIT,
                operation="admin",
                method=wire.method[:20],
                path=wire.path[:_LONGEST],
                peer=call.peer,
                status=answer.status,
                identity=call.identity,
            ),
        )
        return answer

    def _permit(self, call: Call) -> Granted:
        credential = presented(call.headers)
        if credential is None:
            raise refusals.no_credentials()
        name = self._keys.find(credential.secret)
        if name is None:
            raise refusals.unknown_key()
        return Granted(KEY + name, ())

    def refuse(self, error: GatewayError, wire: HttpRequest, call: Call) -> HttpResponse:
        """See HttpApp."""
        return self._app.refuse(error, wire, call)


def _refused(error: GatewayError) -> HttpResponse:
    headers = {"content-type": "text/plain; charset=utf-8", **refusal_headers(error)}
    return HttpResponse(401, headers, [f"{error.public}\n".encode()])
