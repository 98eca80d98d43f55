"""Data for the console that is not in the metrics: recent failures, and counts of pipelines.

*Rule.* The data has no headers, tensors, client addresses or identities. The request id identifies
the line in the access log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from prometheus_client.core import Metric

from infergate.core.request_record import RequestRecord
from infergate.observe.metrics import Metrics
from infergate.observe.request_counters import RequestFlow

MAX_FAILURES: Final = 100
_MAX_TEXT: Final = 256  # maximum number of characters of a client's text
_MAX_ERROR_TEXT: Final = 1024


class Failure(NamedTuple):
    """A failed request, with some of the fields of its access log line."""

    time: float
    """The wall-clock time at which the request ended."""
    kind: str
    """The value of the error's ``core.errors.Kind``."""
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


PipelineCounts = dict[tuple[str, str, str], int]
"""Number of inferences by client protocol, backend protocol and pipeline (``forward`` or
``translate``)."""


class RecentRequests:
    """The recent failures and pipeline counts of a process. The object is not thread-safe."""

    def __init__(self) -> None:
        self.pipelines: Final[PipelineCounts] = {}
        self.failures: Final[deque[Failure]] = deque(maxlen=MAX_FAILURES)

    def record_failure(
        self, record: RequestRecord, request_id: str, seconds: float, now: float
    ) -> None:
        """Record a request that failed after ``seconds``, at wall-clock time ``now``."""
        self.failures.append(
            Failure(
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
            )
        )


class ProcessSnapshot(NamedTuple):
    """A snapshot of a process for the console. ``worker`` is None if there is a single process."""

    worker: int | None
    pipelines: PipelineCounts
    failures: tuple[Failure, ...]
    flows: Sequence[RequestFlow]
    families: Sequence[Metric]
    """The metric families, except the families of requests."""


def take_snapshot(
    recent: RecentRequests, metrics: Metrics, worker: int | None = None
) -> ProcessSnapshot:
    """Return a snapshot, which may be kept or sent to another process."""
    return ProcessSnapshot(
        worker,
        dict(recent.pipelines),
        tuple(recent.failures),
        metrics.flows(),
        metrics.console_families(),
    )
