"""Metrics of backends' endpoints, told when a scrape asks.

*Rule.* The label ``endpoint`` is the URL in the configuration. A name's addresses come and go and
are counted together under it, so that there are never more series than the configuration has lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from infergate.core.figures import EndpointFigures

_LABELS: Final = ("backend", "endpoint")


class EndpointMetrics(Collector):
    """Of what ``source`` tells, which may be set anew."""

    def __init__(self) -> None:
        self.source: Callable[[], Iterable[EndpointFigures]] = tuple

    def collect(self) -> Iterator[Metric]:
        """The metrics of all endpoints."""
        addresses = GaugeMetricFamily(
            "infergate_endpoint_addresses",
            "Addresses of an endpoint by state: available (asked), down (its checks fail), ejected "
            "(let alone for a while after failures).",
            labels=(*_LABELS, "state"),
        )
        active = GaugeMetricFamily(
            "infergate_endpoint_active_requests", "Requests under way now.", labels=_LABELS
        )
        requests = CounterMetricFamily(
            "infergate_endpoint_requests",
            "Attempts by outcome: ok, or failed (unreached, broken off, too slow, or it said that "
            "it cannot serve now).",
            labels=(*_LABELS, "outcome"),
        )
        ejections = CounterMetricFamily(
            "infergate_endpoint_ejections", "Times an address was ejected.", labels=_LABELS
        )
        checks = CounterMetricFamily(
            "infergate_endpoint_checks",
            "Health checks by outcome: ok or failed.",
            labels=(*_LABELS, "outcome"),
        )
        lookups = CounterMetricFamily(
            "infergate_endpoint_lookup_failures",
            "Times an endpoint's name had no address and kept those it had.",
            labels=_LABELS,
        )
        for each in self.source():
            at = (each.backend, each.endpoint)
            addresses.add_metric((*at, "available"), each.available)
            addresses.add_metric((*at, "down"), each.down)
            addresses.add_metric((*at, "ejected"), each.ejected)
            active.add_metric(at, each.active)
            requests.add_metric((*at, "ok"), each.ok)
            requests.add_metric((*at, "failed"), each.failed)
            ejections.add_metric(at, each.ejections)
            checks.add_metric((*at, "ok"), each.checks_ok)
            checks.add_metric((*at, "failed"), each.checks_failed)
            lookups.add_metric(at, each.lookups_failed)
        yield from (addresses, active, requests, ejections, checks, lookups)
