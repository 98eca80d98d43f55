"""Connects the metrics of a process to the running gateway, so that they report its state."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from infergate.backends.base import Backend, SupportsConcurrencyLimit, SupportsHealthWatch
from infergate.core.stats import CacheStats, ConcurrencyStats, EndpointStats
from infergate.observe.label_names import NO_NAME, MetricNames
from infergate.observe.metrics import Metrics
from infergate.runtime.descriptors import max_client_connections
from infergate.runtime.plugins import plugin_names
from infergate.runtime.running import ADMIN, GatewayParts, RunningGateway

_CONNECTIONS: Final = "connections"
_EXPORTED_LIMITS: Final = (_CONNECTIONS, "in_flight", "in_flight_bytes")
"""The limits that are exported as metrics, because other metrics report how much of each limit is
used."""


def export_state(running: RunningGateway, metrics: Metrics) -> None:
    """Make ``metrics`` report the state of ``running``."""
    metrics.generations.set_function(lambda: running.generation_count)
    metrics.listeners.source = lambda: running.gates
    metrics.endpoints.source = lambda: _endpoint_stats(running.gateway.backends)
    metrics.backends.concurrency = lambda: _concurrency_stats(running.gateway.backends)
    metrics.restrict_labels(lambda: _label_names(running.all_parts))
    metrics.plugins.names = lambda: set().union(
        *(plugin_names(parts.config) for parts in running.all_parts)
    )
    metrics.recording.is_active = lambda: running.is_recording
    metrics.cache.stats = lambda: _cache_stats(running)
    metrics.draining.set_function(lambda: running.gateway.readiness.is_draining)
    for name in _EXPORTED_LIMITS:
        metrics.limits.labels(name).set_function(functools.partial(_limit_value, running, name))


def _endpoint_stats(backends: Iterable[Backend]) -> Iterator[EndpointStats]:
    return chain.from_iterable(
        backend.endpoint_stats() for backend in backends if isinstance(backend, SupportsHealthWatch)
    )


def _cache_stats(running: RunningGateway) -> CacheStats | None:
    cache = next(iter(running.all_parts)).cache
    return None if cache is None else cache.stats()


def _concurrency_stats(backends: Iterable[Backend]) -> Iterator[ConcurrencyStats]:
    all_stats = (
        item.concurrency_stats for item in backends if isinstance(item, SupportsConcurrencyLimit)
    )
    return (item for item in all_stats if item is not None)


def _label_names(generations: Iterable[GatewayParts]) -> MetricNames:
    routes, backends = {NO_NAME}, {NO_NAME}
    for generation in generations:
        routes.update(binding.label for binding in generation.gateway.bindings)
        backends.update(generation.config.backends)
    return MetricNames(routes, backends)


def _limit_value(running: RunningGateway, name: str) -> int:
    """Return the limit ``name``, or 0 in a process without client listeners, because the limits are
    summed over the processes that serve clients."""
    if running.listeners.keys() <= {ADMIN}:
        return 0
    value: int = getattr(next(iter(running.all_parts)).limits, name)
    return max_client_connections(value) if name == _CONNECTIONS else value
