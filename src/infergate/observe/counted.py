"""What is counted of finished requests, in plain numbers.

*Strategy.* prometheus_client's counters take a lock for each number of each request. Requests
finish on one thread, so plain numbers will do; they become metrics when a scrape asks for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from prometheus_client.core import Exemplar, Metric
from prometheus_client.registry import Collector

from infergate.core.call import Call
from infergate.core.times import OWN, REQUEST, Times
from infergate.observe.family import Family, Labels, times
from infergate.observe.names import Names

_LABELS: Final = ("route", "protocol", "backend", "backend_protocol", "operation")


FLOWS: Final = 2000
"""Those of a process that are told at a glance: the busiest."""


class Flow(NamedTuple):
    """What is counted under one combination of labels, to be kept. ``counts`` are of requests by
    the bounds ``REQUEST`` of seconds, not added up; ``backend`` and ``own`` are how many and
    seconds."""

    labels: tuple[str, ...]
    """``route``, ``protocol``, ``backend``, ``backend_protocol`` and ``operation``."""
    outcomes: dict[str, int]
    counts: tuple[int, ...]
    seconds: float
    backend: tuple[int, float]
    own: tuple[int, float]
    bytes_in: int
    bytes_out: int


class _Series:
    """What is counted under one combination of labels."""

    __slots__ = ("backend", "bytes_in", "bytes_out", "exemplars", "outcomes", "own", "seconds")

    def __init__(self) -> None:
        self.seconds: Final = Times(REQUEST)
        self.backend: Final = Times(REQUEST)
        self.own: Final = Times(OWN)
        self.bytes_in = 0
        self.bytes_out = 0
        self.outcomes: Final[dict[str, int]] = {}
        self.exemplars: Final[dict[str, dict[int, Exemplar]]] = {}
        """Of each histogram, the latest in each bucket."""


class Counted(Collector):
    """All of one process. To be told and asked on one thread. ``names`` are those that the
    configuration has now; None: nobody knows. What was counted of others is forgotten."""

    def __init__(self) -> None:
        self.names: Callable[[], Names | None] = lambda: None
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
        waited = call.backend_seconds
        if waited:
            series.backend.add(waited)
        if call.received and call.messages is None:
            own = seconds - call.received + call.started - waited
            series.own.add(max(own, 0.0))  # several backends may be asked at once
        outcomes = series.outcomes
        outcomes[call.outcome] = outcomes.get(call.outcome, 0) + 1

    def record_traced(self, call: Call, seconds: float) -> None:
        """The same, where requests are traced."""
        self.record(call, seconds)
        trace = call.trace.id if call.trace is not None else ""
        if not trace:
            return
        labels = call.route, call.protocol, call.backend, call.backend_protocol, call.operation
        series, now = self._series[labels], time.time()

        def keep(name: str, times: Times, value: float) -> None:
            kept = series.exemplars.setdefault(name, {})
            kept[times.place(value)] = Exemplar({"trace_id": trace}, value, now)

        keep("seconds", series.seconds, seconds)
        if call.backend_seconds:
            keep("backend", series.backend, call.backend_seconds)
        if call.received and call.messages is None:
            own = seconds - call.received + call.started - call.backend_seconds
            keep("own", series.own, max(own, 0.0))

    def flows(self) -> list[Flow]:
        """The busiest, at a thousandth of what ``collect`` costs."""
        series = list(self._series.items())
        if len(series) > FLOWS:
            series.sort(key=lambda pair: sum(pair[1].outcomes.values()), reverse=True)
        return [
            Flow(
                labels,
                dict(each.outcomes),
                tuple(each.seconds.counts),
                each.seconds.sum,
                (sum(each.backend.counts), each.backend.sum),
                (sum(each.own.counts), each.own.sum),
                each.bytes_in,
                each.bytes_out,
            )
            for labels, each in series[:FLOWS]
        ]

    def collect(self) -> Iterator[Metric]:
        """The metrics of what was counted, of what there is now."""
        self._forget()
        there = list(self._series.items())
        yield Family(
            "counter",
            "infergate_requests",
            "Requests answered; outcome is ok or the kind of the error.",
            (*_LABELS, "outcome"),
            (
                ((*labels, outcome), count)
                for labels, series in there
                for outcome, count in list(series.outcomes.items())
            ),
        )
        yield _histogram(
            "infergate_request_seconds",
            "From a request's headers to the end of its answer's making, in seconds.",
            ((labels, series.seconds, series.exemplars.get("seconds")) for labels, series in there),
        )
        yield _histogram(
            "infergate_backend_seconds",
            "The part of infergate_request_seconds spent waiting for the backend, in seconds.",
            ((labels, series.backend, series.exemplars.get("backend")) for labels, series in there),
        )
        yield _histogram(
            "infergate_gateway_seconds",
            "The part of infergate_request_seconds that was the gateway's own work (reading, "
            "routing, translating): neither a body's way in nor the backend, in seconds. Not of "
            "streams.",
            ((labels, series.own, series.exemplars.get("own")) for labels, series in there),
            OWN,
        )
        yield Family(
            "counter",
            "infergate_request_bytes",
            "Bytes of request bodies and messages.",
            _LABELS,
            ((labels, series.bytes_in) for labels, series in there),
            unit="bytes",
        )
        yield Family(
            "counter",
            "infergate_response_bytes",
            "Bytes of answer bodies and messages.",
            _LABELS,
            ((labels, series.bytes_out) for labels, series in there),
            unit="bytes",
        )

    def _forget(self) -> None:
        names = self.names()
        if names is None:
            return
        gone = [
            labels
            for labels in self._series
            if not (labels[0] in names.routes and labels[2] in names.backends)
        ]
        for labels in gone:
            del self._series[labels]


def _histogram(
    name: str,
    documentation: str,
    told: Iterable[tuple[Labels, Times, Mapping[int, Exemplar] | None]],
    bounds: tuple[float, ...] = REQUEST,
) -> Family:
    rows = ((labels, times(each, exemplars)) for labels, each, exemplars in told)
    return Family("histogram", name, documentation, _LABELS, rows, unit="seconds", bounds=bounds)
