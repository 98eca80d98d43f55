"""Data for the console that is not in the metrics: recent failures, slow requests, and counts of
pipelines.

*Rule.* The data has no headers, tensor data, client addresses or identities. The request id
identifies the line in the access log.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from prometheus_client.core import Metric

from infergate.core.request_record import RequestRecord
from infergate.observe.metrics import Metrics
from infergate.observe.request_counters import CLIENT_OUTCOMES, RequestFlow

MAX_FAILURES: Final = 100
"""Maximum number of failures, and of client errors, that a process keeps. The two kinds are stored
separately, so that a client with many invalid requests does not displace the failures."""
MAX_SLOW: Final = 200
"""Maximum number of slow requests that a process keeps for each window, and that a snapshot
contains."""
SLOW_WINDOW_SECONDS: Final = 600.0
"""The length of a window. The slowest requests of the current and the previous window are kept."""
_MAX_TEXT: Final = 256  # maximum number of characters of a client's text
_MAX_ERROR_TEXT: Final = 1024


class TensorShape(NamedTuple):
    """An input of a request, without its data."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class RequestSample(NamedTuple):
    """A failed or slow request, with some of the fields of its access log line."""

    time: float
    """The wall-clock time at which the request ended."""
    kind: str
    """``ok``, or the value of the error's ``core.errors.Kind``."""
    error: str
    detail: str
    protocol: str
    operation: str
    model: str
    route: str
    backend: str
    backend_protocol: str
    request_id: str
    seconds: float
    phases: tuple[tuple[str, float], ...] = ()
    """The phases of the request in their order, with their durations in seconds."""
    inputs: tuple[TensorShape, ...] = ()
    """The first inputs, if they are known."""


PipelineCounts = dict[tuple[str, str, str], int]
"""Number of inferences by client protocol, backend protocol and pipeline (``forward`` or
``translate``)."""


def newest(
    samples: Iterable[tuple[RequestSample, int | None]], limit: int
) -> list[tuple[RequestSample, int | None]]:
    """Return the newest failures and client errors in ``samples``, up to ``limit`` of each, the
    newest first. ``samples`` are pairs of a sample and a worker number."""
    ordered = sorted(samples, key=lambda pair: pair[0].time, reverse=True)
    counts = {True: 0, False: 0}
    selected = []
    for pair in ordered:
        is_client_error = pair[0].kind in CLIENT_OUTCOMES
        counts[is_client_error] += 1
        if counts[is_client_error] <= limit:
            selected.append(pair)
    return selected


class RecentRequests:
    """The recent failures, slow requests and pipeline counts of a process. The object is not
    thread-safe."""

    def __init__(self) -> None:
        self.pipelines: Final[PipelineCounts] = {}
        self._failures: Final[deque[RequestSample]] = deque(maxlen=MAX_FAILURES)
        self._client_errors: Final[deque[RequestSample]] = deque(maxlen=MAX_FAILURES)
        self._slowest: dict[tuple[str, ...], RequestSample] = {}
        """The slowest request of each route, protocol, backend and operation in this window."""
        self._previous: dict[tuple[str, ...], RequestSample] = {}
        self._window_start = 0.0

    def record_failure(self, sample: RequestSample) -> None:
        """Keep a request that failed."""
        samples = self._client_errors if sample.kind in CLIENT_OUTCOMES else self._failures
        samples.append(sample)

    def failures(self) -> tuple[RequestSample, ...]:
        """Return the recent failures and client errors."""
        return *self._failures, *self._client_errors

    def record_slowest(self, sample: RequestSample) -> None:
        """Keep ``sample``, the slowest so far of its route, protocol, backend and operation, unless
        ``MAX_SLOW`` requests that are at least as slow are kept already."""
        key = sample.route, sample.protocol, sample.backend, sample.operation
        if len(self._slowest) < MAX_SLOW or key in self._slowest:
            self._slowest[key] = sample
            return
        fastest = min(self._slowest, key=lambda each: self._slowest[each].seconds)
        if self._slowest[fastest].seconds < sample.seconds:
            del self._slowest[fastest]
            self._slowest[key] = sample

    def slowest(self) -> tuple[RequestSample, ...]:
        """Return the slowest requests, the slowest first."""
        samples = [*self._slowest.values(), *self._previous.values()]
        samples.sort(key=lambda sample: sample.seconds, reverse=True)
        return tuple(samples[:MAX_SLOW])

    def start_window_if_due(self, metrics: Metrics, now: float) -> None:
        """If the current window has ended at ``now``, start a new window and forget the requests of
        the previous window."""
        if now - self._window_start >= SLOW_WINDOW_SECONDS:
            self._previous, self._slowest, self._window_start = self._slowest, {}, now
            metrics.restart_slowest()


def sample_of(
    record: RequestRecord,
    request_id: str,
    seconds: float,
    now: float,
    inputs: tuple[TensorShape, ...] = (),
) -> RequestSample:
    """Return a sample of a request that took ``seconds`` and ended at wall-clock time ``now``."""
    return RequestSample(
        now,
        record.outcome,
        record.error[:_MAX_ERROR_TEXT],
        record.detail[:_MAX_ERROR_TEXT],
        record.protocol,
        record.operation,
        record.model[:_MAX_TEXT],
        record.route,
        record.backend,
        record.backend_protocol,
        request_id,
        seconds,
        phases_of(record, seconds),
        inputs,
    )


def phases_of(record: RequestRecord, seconds: float) -> tuple[tuple[str, float], ...]:
    """Return the phases of a request that took ``seconds``: ``receive`` (until the last byte),
    ``parse`` (authorization, parsing, routing and building the backend's request), ``queue``,
    ``connect`` (waiting for a connection), ``backend`` (including retries) and ``render`` (the
    response). Without a backend request, ``parse`` covers everything after ``receive``."""
    received = record.received_at - record.started_at if record.received_at else 0.0
    began = record.backend_started_at
    if not began or not record.received_at:
        return ("receive", received), ("parse", max(seconds - received, 0.0))
    parse = max(began - record.received_at, 0.0)
    backend = record.backend_seconds
    render = max(seconds - received - parse - backend, 0.0)
    return (
        ("receive", received),
        ("parse", parse),
        ("queue", record.queue_seconds),
        ("connect", record.connect_seconds),
        ("backend", max(backend - record.queue_seconds - record.connect_seconds, 0.0)),
        ("render", render),
    )


class ProcessSnapshot(NamedTuple):
    """A snapshot of a process for the console. ``worker`` is None for a single process and for the
    supervisor. A worker that did not respond in time has an empty snapshot, whose ``process`` is
    0."""

    worker: int | None
    pipelines: PipelineCounts
    failures: tuple[RequestSample, ...]
    """The recent failures and client errors."""
    flows: Sequence[RequestFlow]
    families: Sequence[Metric]
    """The metric families, except the families of requests."""
    slowest: tuple[RequestSample, ...] = ()
    process: int = 0
    """The ID of the process, or 0 for the supervisor and for a worker that did not respond."""
    other_flows: Sequence[RequestFlow] = ()
    """The sums of the flows that are not in ``flows``, by route and backend."""


def take_snapshot(
    recent: RecentRequests, metrics: Metrics, worker: int | None = None
) -> ProcessSnapshot:
    """Return a snapshot, which may be kept or sent to another process."""
    recent.start_window_if_due(metrics, time.monotonic())
    flows, other_flows = metrics.flows()
    return ProcessSnapshot(
        worker,
        dict(recent.pipelines),
        recent.failures(),
        flows,
        metrics.console_families(),
        recent.slowest(),
        os.getpid(),
        other_flows,
    )
