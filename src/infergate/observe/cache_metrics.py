"""Metrics of the response cache, except the counters of routes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from infergate.core.stats import CacheStats
from infergate.observe.family import MetricFamily


class CacheMetrics(Collector):
    """The metrics of a process's response cache. ``stats`` returns its usage, or None without a
    cache."""

    def __init__(self) -> None:
        self.stats: Callable[[], CacheStats | None] = lambda: None
        self._redis_failures = 0

    def count_redis_failure(self) -> None:
        """Count a request to which Redis did not respond."""
        self._redis_failures += 1

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        stats = self.stats()
        yield MetricFamily(
            "gauge",
            "infergate_cache_entries",
            "Responses in the memory of the response cache, which all workers share.",
            (),
            [] if stats is None else [((), stats.entries)],
        )
        yield MetricFamily(
            "gauge",
            "infergate_cache_bytes",
            "Memory of the response cache, which all workers share, in bytes.",
            (),
            [] if stats is None else [((), stats.bytes)],
            unit="bytes",
        )
        yield MetricFamily(
            "counter",
            "infergate_cache_evictions",
            "Cached responses dropped because the memory was full.",
            (),
            [] if stats is None else [((), stats.evictions)],
        )
        yield MetricFamily(
            "counter",
            "infergate_cache_redis_failures",
            "Requests of the response cache to Redis that failed.",
            (),
            [] if stats is None else [((), self._redis_failures)],
        )
