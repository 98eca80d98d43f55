"""Data for the console beyond metrics: recent failures, and counts of pipelines.

*Rule.* It has no headers, tensor data, or clients' addresses or identities. The request id leads to
the access log, which has more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from prometheus_client.core import Metric

from infergate.core.call import Call
from infergate.observe.counted import Flow
from infergate.observe.metrics import Metrics

KEPT: Final = 100
"""Maximum number of failures that a process keeps."""
_LONGEST: Final = 256  # characters of a client's text that are kept
_LONGEST_ERROR: Final = 1024


class Failure(NamedTuple):
    """A failed request, with some of the fields of its access log line."""

    when: float
    """The wall clock time at which the request ended."""
    kind: str
    """The value of its ``core.errors.Kind``."""
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


Ways = dict[tuple[str, str, str], int]
"""Number of inferences by client protocol, backend protocol, and ``forward`` or ``translate``."""


class Recent:
    """The recent failures and pipeline counts of a process. Not thread-safe."""

    def __init__(self) -> None:
        self.ways: Final[Ways] = {}
        self.failures: Final[deque[Failure]] = deque(maxlen=KEPT)

    def failed(self, call: Call, seconds: float, now: float) -> None:
        """Record a request that failed after ``seconds``, at wall clock time ``now``."""
        self.failures.append(
            Failure(
                now,
                call.outcome,
                call.error[:_LONGEST_ERROR],
                call.detail[:_LONGEST_ERROR],
                call.protocol,
                call.operation,
                call.model[:_LONGEST],
                call.route,
                call.backend,
                call.backend_protocol,
                call.request_id,
                seconds,
            )
        )


class Recalled(NamedTuple):
    """A snapshot of a process for the console. ``worker`` is None for a single process."""

    worker: int | None
    ways: Ways
    failures: tuple[Failure, ...]
    flows: Sequence[Flow]
    families: Sequence[Metric]
    """Metric families other than those of requests."""


def recalled(recent: Recent, metrics: Metrics, worker: int | None = None) -> Recalled:
    """Return a snapshot, which may be kept or sent to another process."""
    return Recalled(
        worker,
        dict(recent.ways),
        tuple(recent.failures),
        metrics.flows(),
        metrics.at_a_glance(),
    )
