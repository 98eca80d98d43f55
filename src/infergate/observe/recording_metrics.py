"""Metrics of recordings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from infergate.core.counters import RecordingCounters
from infergate.observe.family import MetricFamily, rows_by_label


class RecordingMetrics(Collector):
    """The metrics of a process's recordings. ``is_active`` returns whether the process records, or
    None if no route is recorded."""

    def __init__(self) -> None:
        self.counters: Final = RecordingCounters()
        self.is_active: Callable[[], bool | None] = lambda: None

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        counters, is_active = self.counters, self.is_active()
        yield MetricFamily(
            "counter",
            "infergate_recorded_exchanges",
            "Inferences selected for recording, by result: recorded, or the reason of the loss.",
            ("result",),
            rows_by_label([((), counters.exchanges)]),
        )
        yield MetricFamily(
            "counter",
            "infergate_recorded_bytes",
            "Bytes written to recordings.",
            (),
            [((), counters.bytes)],
            unit="bytes",
        )
        yield MetricFamily(
            "counter",
            "infergate_recording_failures",
            "How often recording stopped because a file could not be written or the space was used "
            "up.",
            (),
            [((), counters.failures)],
        )
        yield MetricFamily(
            "gauge",
            "infergate_recording_active",
            "Processes that record inferences now. It is absent if no route has 'record'.",
            (),
            [] if is_active is None else [((), float(is_active))],
        )
