"""Metrics of listeners: connections and certificates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from infergate.core.stats import ListenerStats
from infergate.observe.family import MetricFamily

_LABELS: Final = ("listener",)


class ListenerMetrics(Collector):
    """Listener metrics, read from ``source`` at each scrape."""

    def __init__(self) -> None:
        self.source: Callable[[], Iterable[ListenerStats]] = tuple

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all listeners."""
        listeners = list(self.source())
        yield MetricFamily(
            "gauge",
            "infergate_open_connections",
            "Open client connections.",
            _LABELS,
            [((listener.listener,), listener.connections) for listener in listeners],
        )
        yield MetricFamily(
            "gauge",
            "infergate_certificate_expiry_seconds",
            "Expiry of a listener's certificate, in seconds since 1970.",
            _LABELS,
            [
                ((listener.listener,), listener.certificate_expiry)
                for listener in listeners
                if listener.certificate_expiry is not None
            ],
            unit="seconds",
        )
        yield MetricFamily(
            "counter",
            "infergate_idle_connections_closed",
            "Client connections closed by the idle timeout.",
            _LABELS,
            [((listener.listener,), listener.closed_idle) for listener in listeners],
        )
