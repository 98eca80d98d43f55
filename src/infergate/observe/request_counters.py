"""Counters and histograms of finished requests.

prometheus_client's counters take a lock for every update. All requests of a process finish on one
thread, so this module uses plain numbers, and converts them to metrics at a scrape."""

from __future__ import annotations

import operator
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from prometheus_client.core import Exemplar, Metric
from prometheus_client.registry import Collector

from infergate.core.compilation import mypyc_attr
from infergate.core.duration_histogram import GATEWAY_BUCKETS, REQUEST_BUCKETS, DurationHistogram
from infergate.core.errors import CLIENT_ERRORS
from infergate.core.request_record import RequestRecord
from infergate.observe.family import MetricSpec, histogram_value
from infergate.observe.label_names import MetricNames

_LABELS: Final = ("route", "protocol", "backend", "backend_protocol", "operation")
CLIENT_OUTCOMES: Final = frozenset(kind.value for kind in CLIENT_ERRORS)
MAX_FLOWS: Final = 2000
"""Maximum number of flows that ``flows`` lists individually."""
BUCKETS: Final = len(REQUEST_BUCKETS) + 1
"""Number of latency buckets of a flow."""


class RequestFlow(NamedTuple):
    """A snapshot of the counters of one combination of labels. ``counts`` are the requests in each
    of ``REQUEST_BUCKETS`` and above the last bucket, not cumulative. ``backend`` is the number of
    requests to the backend and the total seconds that the backend took. ``own`` is the number of
    requests whose gateway time was measured, and the total gateway time in seconds."""

    labels: tuple[str, ...]
    """The values of ``route``, ``protocol``, ``backend``, ``backend_protocol`` and
    ``operation``."""
    outcomes: dict[str, int]
    counts: tuple[int, ...]
    seconds: float
    backend: tuple[int, float]
    own: tuple[int, float]
    bytes_in: int
    bytes_out: int
    listed_since: float = 0.0
    """The wall-clock time since which ``flows`` lists the flow, or 0 if every call listed it.
    Between two snapshots with different values, the increase of the counters is unknown."""


def client_errors(outcomes: Mapping[str, float]) -> float:
    """Return the number of ``outcomes`` that clients caused."""
    return sum(count for outcome, count in outcomes.items() if outcome in CLIENT_OUTCOMES)


class _Series:
    __slots__ = (
        "backend",
        "bytes_in",
        "bytes_out",
        "exemplars",
        "is_left_out",
        "listed_since",
        "outcomes",
        "own",
        "seconds",
        "slowest",
    )

    def __init__(self) -> None:
        self.seconds: Final = DurationHistogram(REQUEST_BUCKETS)
        self.backend: Final = DurationHistogram(REQUEST_BUCKETS)
        self.own: Final = DurationHistogram(GATEWAY_BUCKETS)
        self.bytes_in = 0
        self.bytes_out = 0
        self.slowest = 0.0
        """The longest duration in seconds since ``restart_slowest``."""
        self.is_left_out = False
        """Whether the last call of ``flows`` left this flow out."""
        self.listed_since = 0.0
        self.outcomes: Final[dict[str, int]] = {}
        self.exemplars: Final[dict[str, dict[int, Exemplar]]] = {}
        """The latest exemplar of each bucket, keyed by histogram."""

    def add_exemplars(self, trace_id: str, **observed: float | None) -> None:
        """Keep exemplars of ``observed``, which maps a histogram's name to a value."""
        now = time.time()
        for name, value in observed.items():
            if value is not None:
                bucket = getattr(self, name).bucket_index(value)
                exemplar = Exemplar({"trace_id": trace_id}, value, now)
                self.exemplars.setdefault(name, {})[bucket] = exemplar


def _urgency(outcomes: dict[str, int]) -> tuple[int, int]:
    """Return the number of failures, excluding client errors, and the number of requests."""
    total = sum(outcomes.values())
    return total - outcomes.get("ok", 0) - int(client_errors(outcomes)), total


def _flow(labels: tuple[str, ...], counters: _Series) -> RequestFlow:
    return RequestFlow(
        labels,
        dict(counters.outcomes),
        tuple(counters.seconds.counts),
        counters.seconds.sum,
        (sum(counters.backend.counts), counters.backend.sum),
        (sum(counters.own.counts), counters.own.sum),
        counters.bytes_in,
        counters.bytes_out,
        counters.listed_since,
    )


def _sums(series: Iterable[tuple[tuple[str, ...], _Series]]) -> list[RequestFlow]:
    """Return the sums of ``series`` by route and backend. The other labels are empty."""
    sums: dict[tuple[str, str], tuple[dict[str, int], list[int]]] = {}
    for (route, _, backend, *_), counters in series:
        totals = sums.get((route, backend))
        if totals is None:
            totals = sums[route, backend] = {}, [0] * BUCKETS
        outcomes, counts = totals
        for outcome, count in counters.outcomes.items():
            outcomes[outcome] = outcomes.get(outcome, 0) + count
        counts[:] = map(operator.add, counts, counters.seconds.counts)
    return [
        RequestFlow((route, "", backend, "", ""), outcomes, tuple(counts), 0, (0, 0), (0, 0), 0, 0)
        for (route, backend), (outcomes, counts) in sums.items()
    ]


_METRICS: Final[tuple[MetricSpec[_Series], ...]] = (
    MetricSpec("counter", "infergate_requests", lambda each: each.outcomes, ("outcome",),
        "Finished requests by outcome: ok, or the kind of error."),
    MetricSpec("histogram", "infergate_request_seconds",
        lambda each: histogram_value(each.seconds, each.exemplars.get("seconds")), (),
        "Duration of requests in seconds, from the request headers to the complete response."),
    MetricSpec("histogram", "infergate_backend_seconds",
        lambda each: histogram_value(each.backend, each.exemplars.get("backend")), (),
        "The part of infergate_request_seconds spent waiting for the backend, in seconds."),
    MetricSpec("histogram", "infergate_gateway_seconds",
        lambda each: histogram_value(each.own, each.exemplars.get("own")), (),
        "The part of infergate_request_seconds that the gateway added (parsing, routing, "
        "translation), excluding the arrival of the body and the backend, in seconds. Streams "
        "are not included.", GATEWAY_BUCKETS),
    MetricSpec("counter", "infergate_request_bytes", lambda each: each.bytes_in, (),
        "Bytes of request bodies and messages received from clients."),
    MetricSpec("counter", "infergate_response_bytes", lambda each: each.bytes_out, (),
        "Bytes of response bodies and messages sent to clients."),
)  # fmt: skip


@mypyc_attr(native_class=False)
class RequestCounters(Collector):
    """The request metrics of a process. The object is not thread-safe. ``names`` returns the routes
    and backends of all configurations in use, or None if they are unknown. A scrape drops the
    counters of all other routes and backends."""

    def __init__(self) -> None:
        self.names: Callable[[], MetricNames | None] = lambda: None
        self._series: Final[dict[tuple[str, ...], _Series]] = {}

    def record(self, record: RequestRecord, seconds: float, trace_id: str = "") -> bool:
        """Count a finished request, with exemplars if ``trace_id`` is not empty. Return whether the
        request is the slowest with the same labels since ``restart_slowest``."""
        labels = (
            record.route,
            record.protocol,
            record.backend,
            record.backend_protocol,
            record.operation,
        )
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = _Series()
        durations = series.seconds  # inlined ``observe``: three calls would slow down each request
        durations.counts[bisect_left(REQUEST_BUCKETS, seconds)] += 1
        durations.sum += seconds
        series.bytes_in += record.bytes_in
        series.bytes_out += record.bytes_out
        at_backend, own = record.backend_seconds, None
        if at_backend:
            durations = series.backend
            durations.counts[bisect_left(REQUEST_BUCKETS, at_backend)] += 1
            durations.sum += at_backend
        if record.received_at and record.response_count is None:
            own = seconds - record.received_at + record.started_at - at_backend
            own = max(own, 0.0)  # a request may wait for several backends concurrently
            durations = series.own
            durations.counts[bisect_left(GATEWAY_BUCKETS, own)] += 1
            durations.sum += own
        outcomes = series.outcomes
        outcomes[record.outcome] = outcomes.get(record.outcome, 0) + 1
        if trace_id:
            series.add_exemplars(trace_id, seconds=seconds, backend=at_backend or None, own=own)
        if seconds > series.slowest:
            series.slowest = seconds
            return True
        return False

    def restart_slowest(self) -> None:
        """Reset the longest durations."""
        for series in self._series.values():
            series.slowest = 0.0

    def flows(self) -> tuple[list[RequestFlow], list[RequestFlow]]:
        """Return snapshots of up to ``MAX_FLOWS`` flows, and the sums of the other flows by route
        and backend, without bytes and total durations. If there are more flows, the flows with the
        most failures (except client errors) take precedence, then the busiest flows, so that a
        failing route with few requests is listed. A call takes a thousandth of the time of
        ``collect``."""
        series = list(self._series.items())
        if len(series) > MAX_FLOWS:
            series.sort(key=lambda pair: _urgency(pair[1].outcomes), reverse=True)
        others = series[MAX_FLOWS:]
        del series[MAX_FLOWS:]
        for _, counters in series:
            if counters.is_left_out:
                counters.is_left_out, counters.listed_since = False, time.time()
        for _, counters in others:
            counters.is_left_out = True
        return [_flow(labels, counters) for labels, counters in series], _sums(others)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the routes and backends in ``names``. Drop all other counters."""
        self._drop_stale_series()
        items = list(self._series.items())
        for spec in _METRICS:
            yield spec.family(_LABELS, items)

    def _drop_stale_series(self) -> None:
        names = self.names()
        if names is None:
            return
        removed = [
            labels
            for labels in self._series
            if not (labels[0] in names.routes and labels[2] in names.backends)
        ]
        for labels in removed:
            del self._series[labels]
