"""What a configuration would serve, as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from infergate.config.routes import RewriteConfig, RouteConfig
from infergate.config.schema import Config
from infergate.config.values import duration_text, shown_urls

_HEADINGS: Final = ("MODEL", "VERSION", "BACKEND", "PROTOCOL", "ENDPOINTS", "TIMEOUT", "REWRITE")


def summary(config: Config) -> str:
    """The listeners, the routes with their backends, and the limits that are not the defaults."""
    blocks: list[tuple[str, list[Sequence[str]]]] = [
        ("listeners", _listeners(config)),
        ("routes, the first that matches is taken", _routes(config)),
        ("declared models", [[name] for name in config.models]),
        ("access, what no rule allows is refused", list(_access(config))),
        ("limits that are not the defaults", list(_limits(config))),
    ]
    return "\n".join(f"{title}\n{_aligned(rows)}" for title, rows in blocks if rows)


def _listeners(config: Config) -> list[Sequence[str]]:
    on = config.listeners
    shared = {"http": on.http, "grpc": on.grpc, "admin": on.admin}
    rows: list[Sequence[str]] = [
        (name, "off" if listener is None else str(listener.address), "")
        for name, listener in shared.items()
    ]
    rows += [
        (f"graphpipe[{index}]", str(each.address), f"{each.model}, {each.framing}")
        for index, each in enumerate(on.graphpipe)
    ]
    return rows


def _routes(config: Config) -> list[Sequence[str]]:
    return [_HEADINGS, *(_route(config, route) for route in config.routes)]


def _route(config: Config, route: RouteConfig) -> Sequence[str]:
    backend = config.backends[route.backend]
    timeout = backend.timeout if route.timeout is None else route.timeout
    return (
        route.model,
        route.version or "any",
        route.backend,
        backend.protocol,
        " ".join(shown_urls(backend.endpoints)) or "-",
        duration_text(timeout),
        ", ".join((*_rewrite(route.rewrite), *_cast(route))) or "-",
    )


def _rewrite(rewrite: RewriteConfig) -> Iterator[str]:
    if rewrite.model:
        yield f"model: {rewrite.model}"
    if rewrite.version:
        yield f"version: {rewrite.version}"
    for side, names in (("input", rewrite.inputs), ("output", rewrite.outputs)):
        for ours, theirs in names.items():
            yield f"{side} {ours}: {theirs}"


def _cast(route: RouteConfig) -> Iterator[str]:
    for datatype, to in route.cast.items():
        yield f"cast {datatype}: {to.value}"


def _access(config: Config) -> Iterator[Sequence[str]]:
    access = config.access
    if access is None:
        return
    for rule in access.rules:
        claims = (f"{name}: {' '.join(values)}" for name, values in rule.claims.items())
        who = " ".join(rule.who), ", ".join(claims) or "-"
        yield (*who, " ".join(rule.models), " ".join(rule.operations))
    for rate in access.rates:
        told = [f"{rate.requests} requests"] if rate.requests else []
        told += [f"{rate.bytes} of bodies"] if rate.bytes else []
        counted = f"for each {' and '.join(rate.each)}" if rate.each else "together"
        yield " ".join(rate.who), "-", " ".join(rate.models), f"{', '.join(told)} {counted}"


def _limits(config: Config) -> Iterator[Sequence[str]]:
    given = config.limits.model_dump(mode="json", by_alias=True)
    defaults = type(config.limits)().model_dump(mode="json", by_alias=True)
    for name, value in given.items():
        if value != defaults[name]:
            yield name, str(value), f"(default {defaults[name] or 'by listener'})"


def _aligned(rows: list[Sequence[str]]) -> str:
    """``rows`` in columns, indented, a line each."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join(
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        + "\n"
        for row in rows
    )
