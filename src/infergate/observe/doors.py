"""Metrics of listeners: connections and certificates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from infergate.core.figures import ListenerFigures
from infergate.observe.family import Family

_LABELS: Final = ("listener",)


class DoorMetrics(Collector):
    """Listener metrics, read from ``source`` at each scrape."""

    def __init__(self) -> None:
        self.source: Callable[[], Iterable[ListenerFigures]] = tuple

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all listeners."""
        listeners = list(self.source())
        yield Family(
            "gauge",
            "infergate_open_connections",
            "Open client connections.",
            _LABELS,
            [((listener.listener,), listener.connections) for listener in listeners],
        )
        yield Family(
            "gauge",
            "infergate_certificate_expiry_seconds",
            "Expiry of a listener's certificate, in seconds since 1970.",
            _LABELS,
            [
                ((listener.listener,), listener.expires)
                for listener in listeners
                if listener.expires is not None
            ],
            unit="seconds",
        )
        yield Family(
            "counter",
            "infergate_idle_connections_closed",
            "Client connections closed by the idle timeout.",
            _LABELS,
            [((listener.listener,), listener.idle) for listener in listeners],
        )
