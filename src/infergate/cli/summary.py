"""The summary of a configuration, which ``infergate --check`` and ``infergate check`` print."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from infergate.config.listeners import SocketListenerConfig
from infergate.config.rewrite import RewriteConfig
from infergate.config.route_text import endpoints_text, policies_text, targets_text
from infergate.config.routes import RouteConfig
from infergate.config.schema import Config
from infergate.config.values import duration_text
from infergate.terminal import align

_HEADINGS: Final = (
    "MODEL",
    "VERSION",
    "BACKEND",
    "PROTOCOL",
    "ENDPOINTS",
    "TIMEOUT",
    "REWRITE",
    "POLICY",
)


def summary(config: Config) -> str:
    """Return the listeners, routes, declared models, access rules and changed limits as text."""
    blocks: list[tuple[str, list[Sequence[str]]]] = [
        ("listeners", _listeners(config)),
        ("routes, first match wins", _routes(config)),
        ("declared models", [[name] for name in config.models]),
        ("access, everything else is rejected", list(_access(config))),
        ("limits that differ from the defaults", list(_limits(config))),
    ]
    return "\n".join(f"{title}\n{align(rows)}" for title, rows in blocks if rows)


def _listeners(config: Config) -> list[Sequence[str]]:
    listeners = config.listeners
    named = {"http": listeners.http, "grpc": listeners.grpc, "admin": listeners.admin}
    rows: list[Sequence[str]] = [
        (name, "off", "") if item is None else (name, str(item.address), "TLS" if item.tls else "")
        for name, item in named.items()
    ]
    rows += [
        (f"graphpipe[{index}]", str(gp.address), f"{gp.model}, {gp.framing}{_tls(gp)}")
        for index, gp in enumerate(listeners.graphpipe)
    ]
    rows += [
        (f"additional.{name}", str(item.address), f"{' '.join(item.protocols)}{_tls(item)}")
        for name, item in listeners.additional.items()
    ]
    return rows


def _tls(listener: SocketListenerConfig) -> str:
    return ", TLS" if listener.tls else ""


def _routes(config: Config) -> list[Sequence[str]]:
    return [_HEADINGS, *(_route(config, route) for route in config.routes)]


def _route(config: Config, route: RouteConfig) -> Sequence[str]:
    backend = config.backends[route.backend]
    timeout = backend.timeout if route.timeout is None else route.timeout
    return (
        route.model,
        route.version or "any",
        targets_text(route),
        backend.protocol,
        endpoints_text(backend),
        duration_text(timeout),
        ", ".join((*_rewrite(route.rewrite), *_cast(route))) or "-",
        policies_text(route),
    )


def _rewrite(rewrite: RewriteConfig) -> Iterator[str]:
    if rewrite.model:
        yield f"model: {rewrite.model}"
    if rewrite.version:
        yield f"version: {rewrite.version}"
    for side, names in (("input", rewrite.inputs), ("output", rewrite.outputs)):
        for client_name, backend_name in names.items():
            yield f"{side} {client_name}: {backend_name}"


def _cast(route: RouteConfig) -> Iterator[str]:
    for datatype, to in route.cast.items():
        yield f"cast {datatype}: {to.value}"


def _access(config: Config) -> Iterator[Sequence[str]]:
    access = config.access
    if access is None:
        return
    for rule in access.rules:
        claims = (f"{name}: {' '.join(values)}" for name, values in rule.claims.items())
        identities = " ".join(rule.who), ", ".join(claims) or "-"
        yield (*identities, " ".join(rule.models), " ".join(rule.operations))
    for rate in access.rates:
        amounts = [f"{rate.requests} requests"] if rate.requests else []
        amounts += [f"{rate.bytes} of bodies"] if rate.bytes else []
        scope = f"for each {' and '.join(rate.each)}" if rate.each else "together"
        yield " ".join(rate.who), "-", " ".join(rate.models), f"{', '.join(amounts)} {scope}"
    for share in access.shares:
        text = f"queue weight {share.weight:g}, priorities from {share.highest_priority}"
        yield " ".join(share.who), "-", "*", text


def _limits(config: Config) -> Iterator[Sequence[str]]:
    limits = config.limits.model_dump(mode="json", by_alias=True)
    defaults = type(config.limits)().model_dump(mode="json", by_alias=True)
    for name, value in limits.items():
        if value != defaults[name]:
            yield name, str(value), f"(default {defaults[name] or 'by listener'})"
