"""Metrics of backends and routes: retries, hedges, queues, fallbacks and mirroring.

*Rule.* Label values are names from the configuration or constants of the code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Final, TypeVar

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from infergate.core.counters import BackendCounters, RouteCounters
from infergate.core.duration_histogram import REQUEST_BUCKETS
from infergate.core.stats import ConcurrencyStats
from infergate.observe.family import MetricFamily, histogram_value, rows_by_label
from infergate.observe.label_names import MetricNames

T = TypeVar("T")


class BackendMetrics(Collector):
    """The counters of backends and routes of a process. They are not thread-safe. ``concurrency``
    returns the usage of backends with ``limits.max_requests``. ``names`` returns the configured
    routes and backends, or None if they are unknown. A scrape drops the counters of all other
    routes and backends."""

    def __init__(self) -> None:
        self.concurrency: Callable[[], Iterable[ConcurrencyStats]] = tuple
        self.names: Callable[[], MetricNames | None] = lambda: None
        self.helpers: Final = BackendCounters()
        """Counters of the helper processes' queue. Only the queue fields are used."""
        self._backends: Final[dict[str, BackendCounters]] = {}
        self._routes: Final[dict[str, RouteCounters]] = {}

    def backend_counters(self, backend: str) -> BackendCounters:
        """Return the counters of ``backend``. They are created on first use."""
        return self._backends.setdefault(backend, BackendCounters())

    def route_counters(self, route: str) -> RouteCounters:
        """Return the counters of ``route``. They are created on first use."""
        return self._routes.setdefault(route, RouteCounters())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all backends, routes and helper processes."""
        names = self.names()
        if names is not None:
            _drop_others(self._backends, names.backends)
            _drop_others(self._routes, names.routes)
        rows = [((backend,), counters) for backend, counters in self._backends.items()]
        yield MetricFamily(
            "counter",
            "infergate_retries",
            "Retries by reason: not_sent, broken, timeout or declined.",
            ("backend", "reason"),
            rows_by_label((backend, counters.retries) for backend, counters in rows),
        )
        yield MetricFamily(
            "counter",
            "infergate_retry_budget_exhausted",
            "Retries and hedges not made because the retry budget was exhausted.",
            ("backend",),
            ((backend, counters.budget_exhausted) for backend, counters in rows),
        )
        yield MetricFamily(
            "counter",
            "infergate_hedges",
            "Hedged requests by outcome: won (its response was used) or lost.",
            ("backend", "outcome"),
            rows_by_label(
                (backend, {"won": counters.hedges_won, "lost": counters.hedges_lost})
                for backend, counters in rows
            ),
        )
        yield MetricFamily(
            "gauge",
            "infergate_queue_requests",
            "Inferences waiting in a backend's queue.",
            ("backend",),
            ((backend, counters.queued) for backend, counters in rows),
        )
        yield MetricFamily(
            "gauge",
            "infergate_queue_priority_requests",
            "Inferences waiting in a backend's queue, by priority (1 is the highest).",
            ("backend", "priority"),
            rows_by_label(
                (backend, _by_priority(counters.queued_by_priority)) for backend, counters in rows
            ),
        )
        yield MetricFamily(
            "histogram",
            "infergate_queue_seconds",
            "Waiting time of queued inferences, in seconds.",
            ("backend",),
            (
                (backend, histogram_value(counters.queue_wait))
                for backend, counters in rows
                if any(counters.queue_wait.counts)
            ),
            unit="seconds",
            bounds=REQUEST_BUCKETS,
        )
        yield MetricFamily(
            "counter",
            "infergate_queue_refusals",
            "Inferences refused by a backend's queue: full, or expired (waited past the deadline).",
            ("backend", "reason"),
            rows_by_label((backend, _rejections(counters)) for backend, counters in rows),
        )
        yield MetricFamily(
            "counter",
            "infergate_queue_shed",
            "Inferences refused or displaced because a backend's queue was full, by priority.",
            ("backend", "priority"),
            rows_by_label(
                (backend, _by_priority(counters.shed_by_priority)) for backend, counters in rows
            ),
        )
        yield from (self._concurrency_metrics(), *self._route_metrics(), *self._helper_metrics())

    def _concurrency_metrics(self) -> Metric:
        return MetricFamily(
            "gauge",
            "infergate_backend_places",
            "Concurrency limit (limits.max_requests) of a backend: slots taken and free.",
            ("backend", "state"),
            rows_by_label(
                (
                    (stats.backend,),
                    {"taken": stats.in_use, "free": max(stats.max_concurrent - stats.in_use, 0)},
                )
                for stats in self.concurrency()
            ),
        )

    def _helper_metrics(self) -> Iterator[Metric]:
        counters = self.helpers
        yield MetricFamily(
            "gauge",
            "infergate_helper_queue_jobs",
            "Messages waiting for a helper process.",
            (),
            [((), counters.queued)],
        )
        yield MetricFamily(
            "histogram",
            "infergate_helper_queue_seconds",
            "Waiting time of messages that were queued for a helper process, in seconds.",
            (),
            [((), histogram_value(counters.queue_wait))],
            unit="seconds",
            bounds=REQUEST_BUCKETS,
        )
        yield MetricFamily(
            "counter",
            "infergate_helper_queue_refusals",
            "Messages refused by the helper processes' queue: full (too many of one client), or "
            "expired (waited too long).",
            ("reason",),
            rows_by_label([((), _rejections(counters))]),
        )

    def _route_metrics(self) -> Iterator[Metric]:
        rows = [((route,), counters) for route, counters in self._routes.items()]
        yield MetricFamily(
            "counter",
            "infergate_fallbacks",
            "Inferences sent to a route's fallback backend.",
            ("route",),
            ((route, counters.fallbacks) for route, counters in rows),
        )
        yield MetricFamily(
            "counter",
            "infergate_mirrored_requests",
            "Mirrored inferences by outcome; dropped: too many copies were in progress.",
            ("route", "outcome"),
            rows_by_label((route, counters.mirrored) for route, counters in rows),
        )
        yield MetricFamily(
            "counter",
            "infergate_comparisons",
            "Comparisons of mirrored with served responses, by result: equal, within_noise, "
            "different, error (not compared), or dropped (a limit was reached).",
            ("route", "result"),
            rows_by_label((route, counters.comparisons) for route, counters in rows),
        )
        yield MetricFamily(
            "counter",
            "infergate_output_differences",
            "Mirrored outputs that differ from served outputs, by cause.",
            ("route", "output", "cause"),
            (
                ((*route, *output_and_cause), count)
                for route, counters in rows
                for output_and_cause, count in list(counters.differences.items())
            ),
        )
        yield MetricFamily(
            "counter",
            "infergate_mismatches",
            "Differing inferences that were to be stored: stored, full (a limit of the folder), or "
            "failed.",
            ("route", "outcome"),
            rows_by_label((route, counters.mismatches) for route, counters in rows),
        )
        yield MetricFamily(
            "counter",
            "infergate_cache_requests",
            "Inferences on routes with a response cache: hit, miss, collapsed (waited for the same "
            "inference of another client), or bypass (not looked up).",
            ("route", "result"),
            rows_by_label((route, counters.cache) for route, counters in rows),
        )


def _by_priority(counts: Mapping[int, int]) -> dict[str, int]:
    return {str(priority): count for priority, count in counts.items()}


def _rejections(counters: BackendCounters) -> dict[str, int]:
    return {"full": counters.queue_rejected, "expired": counters.queue_expired}


def _drop_others(counters: dict[str, T], names: AbstractSet[str]) -> None:
    for name in counters.keys() - names:
        del counters[name]
