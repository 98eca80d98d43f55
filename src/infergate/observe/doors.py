"""Metrics of listeners' connections and certificates, told when a scrape asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from infergate.core.figures import ListenerFigures
from infergate.observe.family import Family

_LABELS: Final = ("listener",)


class DoorMetrics(Collector):
    """Of what ``source`` tells, which may be set anew."""

    def __init__(self) -> None:
        self.source: Callable[[], Iterable[ListenerFigures]] = tuple

    def collect(self) -> Iterator[Metric]:
        """The metrics of all listeners."""
        listeners = list(self.source())
        yield Family(
            "gauge",
            "infergate_open_connections",
            "Connections of clients now.",
            _LABELS,
            [((each.listener,), each.connections) for each in listeners],
        )
        yield Family(
            "gauge",
            "infergate_certificate_expiry_seconds",
            "Until when a listener's certificate is valid, in seconds since 1970.",
            _LABELS,
            [((each.listener,), each.expires) for each in listeners if each.expires is not None],
            unit="seconds",
        )
        yield Family(
            "counter",
            "infergate_idle_connections_closed",
            "Connections that were closed because nothing was asked on them for too long.",
            _LABELS,
            [((each.listener,), each.idle) for each in listeners],
        )
