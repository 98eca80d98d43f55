"""What is counted of finished requests, in plain numbers.

*Strategy.* prometheus_client's counters take a lock for each number of each request. Requests
finish on one thread, so plain numbers will do; they become metrics when a scrape asks for them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from infergate.core.call import Call

_BUCKETS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0
)  # fmt: skip
"""Seconds: from a tiny echo to the default timeout."""
_BOUNDS: Final = tuple(map(floatToGoString, (*_BUCKETS, float("inf"))))
_LABELS: Final = ("route", "protocol", "backend", "backend_protocol", "operation")


class _Times:
    """A histogram of seconds."""

    __slots__ = ("_counts", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * len(_BOUNDS)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        self._counts[bisect_left(_BUCKETS, seconds)] += 1
        self._sum += seconds

    def tell(self, family: HistogramMetricFamily, labels: tuple[str, ...]) -> None:
        """Add what was counted to ``family``."""
        buckets = zip(_BOUNDS, map(float, accumulate(self._counts)), strict=True)
        family.add_metric(labels, list(buckets), self._sum)


class _Series:
    """What is counted under one combination of labels."""

    __slots__ = ("backend", "bytes_in", "bytes_out", "outcomes", "seconds")

    def __init__(self) -> None:
        self.seconds: Final = _Times()
        self.backend: Final = _Times()
        self.bytes_in = 0
        self.bytes_out = 0
        self.outcomes: Final[dict[str, int]] = {}


class Counted(Collector):
    """All of one process. To be told and asked on one thread."""

    def __init__(self) -> None:
        self._series: Final[dict[tuple[str, ...], _Series]] = {}

    def record(self, call: Call, seconds: float) -> None:
        """Count a finished request."""
        labels = (
            call.route,
            call.protocol,
            call.backend,
            call.backend_protocol,
            call.operation,
        )
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = _Series()
        series.seconds.add(seconds)
        series.bytes_in += call.bytes_in
        series.bytes_out += call.bytes_out
        if call.backend_seconds:
            series.backend.add(call.backend_seconds)
        outcomes = series.outcomes
        outcomes[call.outcome] = outcomes.get(call.outcome, 0) + 1

    def collect(self) -> Iterator[Metric]:
        """The metrics of what was counted."""
        requests = CounterMetricFamily(
            "infergate_requests",
            "Requests answered; outcome is ok or the kind of the error.",
            labels=(*_LABELS, "outcome"),
        )
        seconds = HistogramMetricFamily(
            "infergate_request_seconds",
            "From a request's headers to the end of its answer's making, in seconds.",
            labels=_LABELS,
        )
        backend = HistogramMetricFamily(
            "infergate_backend_seconds",
            "The part of infergate_request_seconds spent waiting for the backend, in seconds.",
            labels=_LABELS,
        )
        bytes_in = CounterMetricFamily(
            "infergate_request_bytes", "Bytes of request bodies and messages.", labels=_LABELS
        )
        bytes_out = CounterMetricFamily(
            "infergate_response_bytes", "Bytes of answer bodies and messages.", labels=_LABELS
        )
        for labels, series in self._series.items():
            for outcome, count in series.outcomes.items():
                requests.add_metric((*labels, outcome), count)
            series.seconds.tell(seconds, labels)
            series.backend.tell(backend, labels)
            bytes_in.add_metric(labels, series.bytes_in)
            bytes_out.add_metric(labels, series.bytes_out)
        yield from (requests, seconds, backend, bytes_in, bytes_out)
