"""Metrics of recordings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from infergate.core.counters import RecordingCounters
from infergate.observe.family import MetricSpec

_METRICS: Final[tuple[MetricSpec[tuple[RecordingCounters, bool | None]], ...]] = (
    MetricSpec("counter", "infergate_recorded_exchanges", lambda each: each[0].exchanges,
        ("result",),
        "Inferences selected for recording, by result: recorded, or the reason for the loss."),
    MetricSpec("counter", "infergate_recorded_bytes", lambda each: each[0].bytes, (),
        "Bytes written to recordings."),
    MetricSpec("counter", "infergate_recording_failures", lambda each: each[0].failures, (),
        "Number of times that recording stopped because a file could not be written or the "
        "space was used up."),
    MetricSpec("gauge", "infergate_recording_active", lambda each: each[1], (),
        "Processes that record inferences now. The metric is absent if no route has 'record'."),
)  # fmt: skip


class RecordingMetrics(Collector):
    """The metrics of a process's recordings. ``is_active`` returns whether the process records, or
    None if no route is recorded."""

    def __init__(self) -> None:
        self.counters: Final = RecordingCounters()
        self.is_active: Callable[[], bool | None] = lambda: None

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        recording = self.counters, self.is_active()
        for spec in _METRICS:
            yield spec.family((), [((), recording)])
