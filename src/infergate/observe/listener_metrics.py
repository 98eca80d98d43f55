"""Metrics of listeners: connections and certificates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from infergate.core.stats import ListenerStats
from infergate.observe.family import MetricSpec

_METRICS: Final[tuple[MetricSpec[ListenerStats], ...]] = (
    MetricSpec("gauge", "infergate_open_connections", attrgetter("connections"), (),
        "Open client connections."),
    MetricSpec("gauge", "infergate_certificate_expiry_seconds", attrgetter("certificate_expiry"),
        (), "Expiry of a listener's certificate, in seconds since 1970."),
    MetricSpec("counter", "infergate_idle_connections_closed", attrgetter("closed_idle"), (),
        "Client connections closed by the idle timeout."),
)  # fmt: skip


class ListenerMetrics(Collector):
    """Listener metrics, read from ``source`` at each scrape."""

    def __init__(self) -> None:
        self.source: Callable[[], Iterable[ListenerStats]] = tuple

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all listeners."""
        listeners = [((stats.listener,), stats) for stats in self.source()]
        for spec in _METRICS:
            yield spec.family(("listener",), listeners)
