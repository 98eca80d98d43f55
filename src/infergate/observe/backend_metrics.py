"""Metrics of backends, routes and helper processes: retries, hedges, queues, fallbacks, mirroring
and caching.

*Rule.* Label values are configured names, constants, or a limited number of output names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from operator import attrgetter
from typing import Final, TypeVar

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from infergate.core.counters import BackendCounters, RouteCounters
from infergate.core.stats import ConcurrencyStats
from infergate.observe.family import HistogramValue, MetricSpec, histogram_value
from infergate.observe.label_names import MetricNames

T = TypeVar("T")


def _rejections(counters: BackendCounters) -> dict[str, int]:
    return {"full": counters.queue_rejected, "expired": counters.queue_expired}


def _queue_wait(counters: BackendCounters) -> HistogramValue | None:
    wait = counters.queue_wait
    return histogram_value(wait) if any(wait.counts) else None


_BACKEND_METRICS: Final[tuple[MetricSpec[BackendCounters], ...]] = (
    MetricSpec("counter", "infergate_retries", attrgetter("retries"), ("reason",),
        "Retries by reason: not_sent, broken, timeout or declined."),
    MetricSpec("counter", "infergate_retry_budget_exhausted", attrgetter("budget_exhausted"), (),
        "Retries and hedges that were not sent because the retry budget was exhausted."),
    MetricSpec("counter", "infergate_hedges",
        lambda each: {"won": each.hedges_won, "lost": each.hedges_lost}, ("outcome",),
        "Hedged requests by outcome: won (the response of the hedge was used) or lost."),
    MetricSpec("gauge", "infergate_queue_requests", attrgetter("queued"), (),
        "Inferences waiting in a backend's queue."),
    MetricSpec("gauge", "infergate_queue_priority_requests", attrgetter("queued_by_priority"),
        ("priority",),
        "Inferences waiting in a backend's queue, by priority (1 is the highest)."),
    MetricSpec("histogram", "infergate_queue_seconds", _queue_wait, (),
        "Waiting time of queued inferences, in seconds."),
    MetricSpec("counter", "infergate_queue_refusals", _rejections, ("reason",),
        "Inferences rejected by a backend's queue: full, or expired (waited past the deadline)."),
    MetricSpec("counter", "infergate_queue_shed", attrgetter("shed_by_priority"), ("priority",),
        "Inferences rejected or displaced because a backend's queue was full, by priority."),
)  # fmt: skip
_CONCURRENCY: Final[MetricSpec[ConcurrencyStats]] = MetricSpec(
    "gauge", "infergate_backend_places",
    lambda each: {"taken": each.in_use, "free": max(each.max_concurrent - each.in_use, 0)},
    ("state",), "Concurrency slots (limits.max_requests) of a backend, by state: taken or free.",
)  # fmt: skip
_ROUTE_METRICS: Final[tuple[MetricSpec[RouteCounters], ...]] = (
    MetricSpec("counter", "infergate_fallbacks", attrgetter("fallbacks"), (),
        "Inferences sent to a route's fallback backend."),
    MetricSpec("counter", "infergate_mirrored_requests", attrgetter("mirrored"), ("outcome",),
        "Mirrored inferences by outcome: ok, failed, or dropped (a limit was reached)."),
    MetricSpec("counter", "infergate_comparisons", attrgetter("comparisons"), ("result",),
        "Comparisons of mirrored responses with the served responses, by result: equal, "
        "within_noise, different, error (not compared), or dropped (a limit was reached)."),
    MetricSpec("counter", "infergate_output_differences", attrgetter("differences"),
        ("output", "cause"),
        "Mirrored outputs that differ from served outputs, by cause."),
    MetricSpec("counter", "infergate_mismatches", attrgetter("mismatches"), ("outcome",),
        "Inferences whose responses differ, by result of storing: stored, full (a limit of the "
        "folder was reached), or failed."),
    MetricSpec("counter", "infergate_cache_requests", attrgetter("cache"), ("result",),
        "Inferences on routes with a response cache: hit, miss, collapsed (waited for the same "
        "inference of another client), or bypass (not looked up)."),
)  # fmt: skip
_HELPER_METRICS: Final[tuple[MetricSpec[BackendCounters], ...]] = (
    MetricSpec("gauge", "infergate_helper_queue_jobs", attrgetter("queued"), (),
        "Messages waiting for a helper process."),
    MetricSpec("histogram", "infergate_helper_queue_seconds",
        lambda each: histogram_value(each.queue_wait), (),
        "Waiting time of messages that were queued for a helper process, in seconds."),
    MetricSpec("counter", "infergate_helper_queue_refusals", _rejections, ("reason",),
        "Messages rejected by the helper processes' queue: full (too many of one client), or "
        "expired (waited too long)."),
)  # fmt: skip


class BackendMetrics(Collector):
    """The counters of the backends and routes of a process. Not thread-safe. ``concurrency``
    returns the usage of backends with ``limits.max_requests``. ``names`` returns the routes and
    backends whose counters are kept, or None for all. A scrape drops all other counters."""

    def __init__(self) -> None:
        self.concurrency: Callable[[], Iterable[ConcurrencyStats]] = tuple
        self.names: Callable[[], MetricNames | None] = lambda: None
        self.helpers: Final = BackendCounters()
        """Counters of the helper processes' queue. Only the queue fields are used."""
        self._backends: Final[dict[str, BackendCounters]] = {}
        self._routes: Final[dict[str, RouteCounters]] = {}

    def backend_counters(self, backend: str) -> BackendCounters:
        """Return the counters of ``backend``, which are created on first use."""
        return self._backends.setdefault(backend, BackendCounters())

    def route_counters(self, route: str) -> RouteCounters:
        """Return the counters of ``route``, which are created on first use."""
        return self._routes.setdefault(route, RouteCounters())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all backends, routes and helper processes."""
        names = self.names()
        if names is not None:
            _drop_others(self._backends, names.backends)
            _drop_others(self._routes, names.routes)
        backends = [((backend,), counters) for backend, counters in self._backends.items()]
        for spec in _BACKEND_METRICS:
            yield spec.family(("backend",), backends)
        yield _CONCURRENCY.family(
            ("backend",), (((stats.backend,), stats) for stats in self.concurrency())
        )
        routes = [((route,), counters) for route, counters in self._routes.items()]
        for route_spec in _ROUTE_METRICS:
            yield route_spec.family(("route",), routes)
        for spec in _HELPER_METRICS:
            yield spec.family((), [((), self.helpers)])


def _drop_others(counters: dict[str, T], names: AbstractSet[str]) -> None:
    for name in counters.keys() - names:
        del counters[name]
