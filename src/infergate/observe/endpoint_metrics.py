"""Metrics of endpoints: health, requests, ejections, health checks, DNS and watches.

*Rule.* The label ``endpoint`` is the name or URL in the configuration. The changing addresses of a
host name are counted together, which bounds the number of series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import tee
from operator import attrgetter
from typing import Final, TypeVar

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from infergate.core.stats import EndpointStats
from infergate.observe.family import Labels, MetricFamily, rows_by_label

T = TypeVar("T")

_LABELS: Final = ("backend", "endpoint")


class EndpointMetrics(Collector):
    """Endpoint metrics, read from ``source`` at each scrape."""

    def __init__(self) -> None:
        self.source: Callable[[], Iterable[EndpointStats]] = tuple

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all endpoints."""
        iterators = iter(tee(self.source(), 8))  # the source is read once, by the first family

        def rows(read: Callable[[EndpointStats], T]) -> Iterator[tuple[Labels, T]]:
            return (((stats.backend, stats.endpoint), read(stats)) for stats in next(iterators))

        yield MetricFamily(
            "gauge",
            "infergate_endpoint_addresses",
            "Addresses of an endpoint by state: available, down (failed health checks), or ejected "
            "(by outlier detection).",
            (*_LABELS, "state"),
            rows_by_label(
                rows(lambda s: {"available": s.available, "down": s.down, "ejected": s.ejected})
            ),
        )
        yield MetricFamily(
            "gauge",
            "infergate_endpoint_active_requests",
            "Requests in progress at an endpoint.",
            _LABELS,
            rows(attrgetter("active")),
        )
        yield MetricFamily(
            "counter",
            "infergate_endpoint_requests",
            "Attempts by outcome: ok, or failed (unreachable, connection broken, timed out, or "
            "declined as unavailable).",
            (*_LABELS, "outcome"),
            rows_by_label(rows(lambda s: {"ok": s.ok, "failed": s.failed})),
        )
        yield MetricFamily(
            "counter",
            "infergate_endpoint_ejections",
            "Ejections of addresses by outlier detection.",
            _LABELS,
            rows(attrgetter("ejections")),
        )
        yield MetricFamily(
            "counter",
            "infergate_endpoint_checks",
            "Active health checks by outcome: ok or failed.",
            (*_LABELS, "outcome"),
            rows_by_label(rows(lambda s: {"ok": s.checks_ok, "failed": s.checks_failed})),
        )
        yield MetricFamily(
            "counter",
            "infergate_endpoint_lookup_failures",
            "Failed DNS lookups of an endpoint's host name, which keeps its last addresses.",
            _LABELS,
            rows(attrgetter("lookups_failed")),
        )
        yield MetricFamily(
            "gauge",
            "infergate_endpoint_watches",
            "Watches of an endpoint's addresses (backends.*.kubernetes) by state: current, or "
            "failing, in which case the last addresses stay in use.",
            (*_LABELS, "state"),
            rows_by_label(
                rows(
                    lambda s: (
                        {}
                        if s.watch_failures is None
                        else {"current": s.watches_current, "failing": s.watches_failing}
                    )
                )
            ),
        )
        yield MetricFamily(
            "counter",
            "infergate_endpoint_watch_failures",
            "Failed attempts to watch an endpoint's addresses.",
            _LABELS,
            (
                (labels, failures)
                for labels, failures in rows(attrgetter("watch_failures"))
                if failures is not None
            ),
        )
