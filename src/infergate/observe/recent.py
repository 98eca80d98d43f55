"""What the console tells besides metrics: the last failures, and which way requests went.

*Rule.* No headers, no tensor data, no client's address or name: by its id the log tells more of a
request.
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
"""Failures that a process remembers."""
_LONGEST: Final = 256  # characters of a client's string
_LONGEST_ERROR: Final = 1024


class Failure(NamedTuple):
    """A request that did not end well, as the log tells it."""

    when: float
    """The wall clock."""
    kind: str
    """``Kind``'s word."""
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
"""Inferences by the client's protocol, the backend's, and ``forward`` or ``translate``."""


class Recent:
    """Of one process. To be told and asked on one thread."""

    def __init__(self) -> None:
        self.ways: Final[Ways] = {}
        self.failures: Final[deque[Failure]] = deque(maxlen=KEPT)

    def failed(self, call: Call, seconds: float, now: float) -> None:
        """A request has ended with an error, after so many seconds."""
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
    """What one process tells. ``worker`` is its number; None: it is alone."""

    worker: int | None
    ways: Ways
    failures: tuple[Failure, ...]
    flows: Sequence[Flow]
    families: Sequence[Metric]
    """Metrics besides those of requests."""


def recalled(recent: Recent, metrics: Metrics, worker: int | None = None) -> Recalled:
    """All of that, to be kept or sent elsewhere."""
    return Recalled(
        worker,
        dict(recent.ways),
        tuple(recent.failures),
        metrics.flows(),
        metrics.at_a_glance(),
    )
