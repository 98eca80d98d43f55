"""Metrics of endpoints: health, requests, ejections, health checks, DNS and watches.

*Rule.* The label ``endpoint`` is the name or URL in the configuration. The changing addresses of a
host name are counted together, which bounds the number of series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import tee
from operator import attrgetter
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from infergate.core.stats import EndpointStats
from infergate.observe.family import MetricSpec


def _watches(stats: EndpointStats) -> dict[str, int] | None:
    if stats.watch_failures is None:
        return None
    return {"current": stats.watches_current, "failing": stats.watches_failing}


_METRICS: Final[tuple[MetricSpec[EndpointStats], ...]] = (
    MetricSpec("gauge", "infergate_endpoint_addresses",
        lambda each: {"available": each.available, "down": each.down, "ejected": each.ejected},
        ("state",),
        "Addresses of an endpoint by state: available, down (failed health checks), or ejected "
        "(by outlier detection)."),
    MetricSpec("gauge", "infergate_endpoint_active_requests", attrgetter("active"), (),
        "Requests in progress at an endpoint."),
    MetricSpec("counter", "infergate_endpoint_requests",
        lambda each: {"ok": each.ok, "failed": each.failed}, ("outcome",),
        "Attempts by outcome: ok, or failed (unreachable, connection broken, timed out, or "
        "declined as unavailable)."),
    MetricSpec("counter", "infergate_endpoint_ejections", attrgetter("ejections"), (),
        "Ejections of addresses by outlier detection."),
    MetricSpec("counter", "infergate_endpoint_checks",
        lambda each: {"ok": each.checks_ok, "failed": each.checks_failed}, ("outcome",),
        "Active health checks by outcome: ok or failed."),
    MetricSpec("counter", "infergate_endpoint_lookup_failures", attrgetter("lookups_failed"), (),
        "Failed DNS lookups of an endpoint's host name; the endpoint keeps its addresses."),
    MetricSpec("gauge", "infergate_endpoint_watches", _watches, ("state",),
        "Watches of an endpoint's addresses (backends.*.kubernetes) by state: current, or "
        "failing, in which case the last addresses stay in use."),
    MetricSpec("counter", "infergate_endpoint_watch_failures", attrgetter("watch_failures"), (),
        "Failed attempts to watch an endpoint's addresses."),
)  # fmt: skip


class EndpointMetrics(Collector):
    """Endpoint metrics, read from ``source`` at each scrape."""

    def __init__(self) -> None:
        self.source: Callable[[], Iterable[EndpointStats]] = tuple

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all endpoints."""
        endpoints = (((stats.backend, stats.endpoint), stats) for stats in self.source())
        # The source is read once, and not before the first family is read.
        for spec, rows in zip(_METRICS, tee(endpoints, len(_METRICS)), strict=True):
            yield spec.family(("backend", "endpoint"), rows)
