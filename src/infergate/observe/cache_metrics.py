"""Metrics of the response cache, except the counters of routes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from infergate.core.stats import CacheStats
from infergate.observe.family import MetricSpec

_METRICS: Final[tuple[MetricSpec[tuple[CacheStats, int]], ...]] = (
    MetricSpec("gauge", "infergate_cache_entries", lambda each: each[0].entries, (),
        "Responses in the memory of the response cache, which all workers share."),
    MetricSpec("gauge", "infergate_cache_bytes", lambda each: each[0].bytes, (),
        "Memory of the response cache, which all workers share, in bytes."),
    MetricSpec("counter", "infergate_cache_evictions", lambda each: each[0].evictions, (),
        "Cached responses dropped because the memory was full."),
    MetricSpec("counter", "infergate_cache_redis_failures", lambda each: each[1], (),
        "Requests of the response cache to Redis that failed."),
)  # fmt: skip


class CacheMetrics(Collector):
    """The metrics of a process's response cache. ``stats`` returns the usage of the cache, or None
    without a cache."""

    def __init__(self) -> None:
        self.stats: Callable[[], CacheStats | None] = lambda: None
        self._redis_failures = 0

    def count_redis_failure(self) -> None:
        """Count a failed request to Redis."""
        self._redis_failures += 1

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        stats = self.stats()
        rows = [] if stats is None else [((), (stats, self._redis_failures))]
        for spec in _METRICS:
            yield spec.family((), rows)
