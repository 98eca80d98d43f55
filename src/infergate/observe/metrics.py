"""Prometheus metrics. Labels come from the config, never from what a client sends.

*Rule 1.* A label value is a route's pattern, a backend's name, a protocol, an operation or an
outcome: all bounded by the config and the code. A request that no route takes has an empty route.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from infergate import __version__
from infergate.core.call import Call

_BUCKETS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0
)  # fmt: skip
"""Seconds: from a tiny echo to the default timeout."""
_LABELS: Final = ("route", "protocol", "backend", "backend_protocol", "operation")


class _Series:
    """The children of one combination of labels, looked up once."""

    __slots__ = ("backend", "bytes_in", "bytes_out", "seconds")

    def __init__(self, metrics: Metrics, labels: tuple[str, ...]) -> None:
        self.seconds = metrics.seconds.labels(*labels)
        self.backend = metrics.backend_seconds.labels(*labels)
        self.bytes_in = metrics.bytes_in.labels(*labels)
        self.bytes_out = metrics.bytes_out.labels(*labels)


class Metrics:
    """All of one process. ``text`` is what a scrape reads."""

    content_type: Final = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry()
        Info("infergate_build", "The running infergate.", registry=self.registry).info(
            {"version": __version__}
        )
        self.requests: Final = Counter(
            "infergate_requests",
            "Requests answered; outcome is ok or the kind of the error.",
            (*_LABELS, "outcome"),
            registry=self.registry,
        )
        self.seconds: Final = Histogram(
            "infergate_request_seconds",
            "From a request's headers to the end of its answer's making, in seconds.",
            _LABELS,
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.backend_seconds: Final = Histogram(
            "infergate_backend_seconds",
            "The part of infergate_request_seconds spent waiting for the backend, in seconds.",
            _LABELS,
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.bytes_in: Final = Counter(
            "infergate_request_bytes",
            "Bytes of request bodies and messages.",
            _LABELS,
            registry=self.registry,
        )
        self.bytes_out: Final = Counter(
            "infergate_response_bytes",
            "Bytes of answer bodies and messages.",
            _LABELS,
            registry=self.registry,
        )
        self.in_flight: Final = Gauge(
            "infergate_in_flight_requests", "Requests being served now.", registry=self.registry
        )
        self.streams: Final = Gauge(
            "infergate_open_streams", "gRPC streams open now.", registry=self.registry
        )
        self.in_flight_bytes: Final = Gauge(
            "infergate_in_flight_bytes",
            "Bytes of request bodies being served now.",
            registry=self.registry,
        )
        self.log_dropped: Final = Counter(
            "infergate_access_log_dropped_lines",
            "Lines of the access log dropped because nobody read them.",
            registry=self.registry,
        )
        self._series: Final[dict[tuple[str, ...], _Series]] = {}
        self._outcomes: Final[dict[tuple[str, ...], Counter]] = {}

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
            series = self._series[labels] = _Series(self, labels)
        series.seconds.observe(seconds)
        series.bytes_in.inc(call.bytes_in)
        series.bytes_out.inc(call.bytes_out)
        if call.backend_seconds:
            series.backend.observe(call.backend_seconds)
        outcome = (*labels, call.outcome)
        counter = self._outcomes.get(outcome)
        if counter is None:
            counter = self._outcomes[outcome] = self.requests.labels(*outcome)
        counter.inc()

    def text(self) -> bytes:
        """The exposition of all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
