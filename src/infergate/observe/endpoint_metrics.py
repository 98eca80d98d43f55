"""Metrics of endpoints: health, requests, ejections, health checks and DNS.

*Rule.* The label ``endpoint`` is the name or URL in the configuration. The changing addresses of a
host name are counted together, so that the configuration bounds the number of series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import tee
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from infergate.core.stats import EndpointStats
from infergate.observe.family import MetricFamily, rows_by_label

_LABELS: Final = ("backend", "endpoint")


class EndpointMetrics(Collector):
    """Endpoint metrics, read from ``source`` at each scrape."""

    def __init__(self) -> None:
        self.source: Callable[[], Iterable[EndpointStats]] = tuple

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all endpoints."""
        iterators = iter(tee(self.source(), 6))  # the source is read once, by the first family
        yield MetricFamily(
            "gauge",
            "infergate_endpoint_addresses",
            "Addresses of an endpoint by state: available, down (failed health checks), or ejected "
            "(by outlier detection).",
            (*_LABELS, "state"),
            rows_by_label(
                (
                    (stats.backend, stats.endpoint),
                    {"available": stats.available, "down": stats.down, "ejected": stats.ejected},
                )
                for stats in next(iterators)
            ),
        )
        yield MetricFamily(
            "gauge",
            "infergate_endpoint_active_requests",
            "Requests in progress at an endpoint.",
            _LABELS,
            (((stats.backend, stats.endpoint), stats.active) for stats in next(iterators)),
        )
        yield _outcome_counter(
            "infergate_endpoint_requests",
            "Attempts by outcome: ok, or failed (unreachable, connection broken, timed out, or "
            "declined as unavailable).",
            ((stats, stats.ok, stats.failed) for stats in next(iterators)),
        )
        yield MetricFamily(
            "counter",
            "infergate_endpoint_ejections",
            "Ejections of addresses by outlier detection.",
            _LABELS,
            (((stats.backend, stats.endpoint), stats.ejections) for stats in next(iterators)),
        )
        yield _outcome_counter(
            "infergate_endpoint_checks",
            "Active health checks by outcome: ok or failed.",
            ((stats, stats.checks_ok, stats.checks_failed) for stats in next(iterators)),
        )
        yield MetricFamily(
            "counter",
            "infergate_endpoint_lookup_failures",
            "Failed DNS lookups of an endpoint's host name, which keeps its last addresses.",
            _LABELS,
            (((stats.backend, stats.endpoint), stats.lookups_failed) for stats in next(iterators)),
        )


def _outcome_counter(
    name: str, documentation: str, counts: Iterable[tuple[EndpointStats, int, int]]
) -> MetricFamily:
    """Return a counter with the label ``outcome``: ``ok`` or ``failed``."""
    rows = (
        ((stats.backend, stats.endpoint), {"ok": ok, "failed": failed})
        for stats, ok, failed in counts
    )
    labels = (*_LABELS, "outcome")
    return MetricFamily("counter", name, documentation, labels, rows_by_label(rows))
