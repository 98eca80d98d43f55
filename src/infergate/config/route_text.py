"""Describes routes and backends in a few words, for tables."""

from __future__ import annotations

from collections.abc import Iterator

from infergate.config.routes import RouteConfig
from infergate.config.schema import BackendConfig
from infergate.config.transforms import kinds_of
from infergate.config.values import display_names, duration_text, hedge_text
from infergate.core.priorities import DEFAULT_PRIORITY


def targets_text(route: RouteConfig) -> str:
    """Return the backends of ``route``, for example ``a, 10% b, else c, 5% mirrored to d``."""
    texts = [route.backend, *(f"{target.percent:g}% {target.backend}" for target in route.split)]
    if route.fallback:
        texts.append(f"else {route.fallback}")
    if route.mirror is not None:
        texts.append(f"{route.mirror.percent:g}% mirrored to {route.mirror.backend}")
    return ", ".join(texts)


def policies_text(route: RouteConfig) -> str:
    """Return the policies of ``route`` that differ from the defaults, or ``-``."""
    return ", ".join(_policies(route)) or "-"


def _policies(route: RouteConfig) -> Iterator[str]:
    for name, value in route.headers.items():
        yield f"only {name}: {value}"
    yield from _retry_and_cache_policies(route)
    if route.priority != DEFAULT_PRIORITY:
        yield f"priority {route.priority}"
    if not route.validate_:
        yield "not validated"
    if route.hooks:
        yield f"hooks: {' '.join(route.hooks)}"
    if route.transforms is not None:
        steps = (*route.transforms.inputs, *route.transforms.outputs)
        yield f"transformed: {' '.join(kind for step in steps for kind in kinds_of(step))}"
    if route.record is not None:
        yield f"{route.record.percent:g}% recorded"


def _retry_and_cache_policies(route: RouteConfig) -> Iterator[str]:
    """Yield the policies on retries, hedging and caching."""
    if route.retry != type(route.retry)():
        yield f"retries: {route.retry.times}"
    if route.idempotent:
        yield "idempotent"
    if route.hedge is not None:
        yield f"hedge after {hedge_text(route.hedge.after)}"
    if route.cache is not None:
        yield f"cached for {duration_text(route.cache.ttl)}"


def endpoints_text(backend: BackendConfig) -> str:
    """Return the display names of the endpoints, with weights other than 1 and a note on watched
    EndpointSlices, or ``-`` without endpoints."""
    names = zip(backend.endpoints, display_names(backend.endpoints), strict=True)
    texts = [name if url.weight == 1 else f"{name} (weight {url.weight})" for url, name in names]
    if backend.kubernetes is not None:
        texts.append("(EndpointSlices)")
    return " ".join(texts) or "-"
