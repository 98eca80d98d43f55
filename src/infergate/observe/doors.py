"""Metrics of listeners' connections and certificates, told when a scrape asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from infergate.core.figures import ListenerFigures

_LABELS: Final = ("listener",)


class DoorMetrics(Collector):
    """Of what ``source`` tells, which may be set anew."""

    def __init__(self) -> None:
        self.source: Callable[[], Iterable[ListenerFigures]] = tuple

    def collect(self) -> Iterator[Metric]:
        """The metrics of all listeners."""
        connections = GaugeMetricFamily(
            "infergate_open_connections", "Connections of clients now.", labels=_LABELS
        )
        expiry = GaugeMetricFamily(
            "infergate_certificate_expiry_seconds",
            "Until when a listener's certificate is valid, in seconds since 1970.",
            labels=_LABELS,
            unit="seconds",
        )
        idle = CounterMetricFamily(
            "infergate_idle_connections_closed",
            "Connections that were closed because nothing was asked on them for too long.",
            labels=_LABELS,
        )
        for each in self.source():
            connections.add_metric((each.listener,), each.connections)
            idle.add_metric((each.listener,), each.idle)
            if each.expires is not None:
                expiry.add_metric((each.listener,), each.expires)
        yield from (connections, expiry, idle)
