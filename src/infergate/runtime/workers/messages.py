"""The requests between supervisor and workers, with the type of each response."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from infergate.config.schema import Config
from infergate.core.errors import Kind
from infergate.runtime.recording_actions import RecordingAction
from infergate.transport.base import Address

SocketLayout = tuple[tuple[Address, int], ...]
"""Each address with the number of its descriptors, which are sent over a second socket pair. The
first descriptor of an address refers to the memory with the workers' loads, and the others to its
sockets."""


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """A request to a new worker to serve ``config``. The response is None. It is sent when the
    worker accepts connections."""

    config: Config
    sockets: SocketLayout
    recording: RecordingAction | None = None
    """The operator's last action on the recorders of all workers, or None."""


@dataclass(frozen=True, slots=True)
class PrepareConfig:
    """A request to a worker to perform every step of activating ``config`` that can fail. The
    response is None."""

    config: Config
    sockets: SocketLayout


class WorkerCommand(enum.Enum):
    """Requests to a worker that have no fields."""

    APPLY_PREPARED = enum.auto()
    """Activate the prepared configuration. The response is None."""
    DISCARD_PREPARED = enum.auto()
    """Discard the configuration that is prepared or being prepared, if there is one. The response
    is None."""
    GET_RECENT = enum.auto()
    """Return the console's data. The response is a ProcessSnapshot."""
    GET_COMPARISONS = enum.auto()
    """Return the comparisons of mirrors. The response is a list of summaries as JSON."""
    RESET_COMPARISONS = enum.auto()
    """Start new summaries of comparisons. The response is None."""
    CHECK_READY = enum.auto()
    """Check whether the worker can serve. The response is a bool."""
    DRAIN = enum.auto()
    """Fail readiness. The response is None."""


@dataclass(frozen=True, slots=True)
class CollectMetrics:
    """A request to a worker to return the next batch of its metrics or, with ``restart``, the first
    batch. The response is a list of metric families, which is empty after the last batch."""

    restart: bool


@dataclass(frozen=True, slots=True)
class PerformConsoleAction:
    """A request to a worker to perform a console action. The response is JSON data, or an
    ErrorResponse."""

    action: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """The kind and the public text of a GatewayError. The exception itself cannot be pickled."""

    kind: Kind
    public: str


@dataclass(frozen=True, slots=True)
class Stop:
    """A request to a worker to stop accepting connections, let requests finish for up to ``grace``
    seconds, then exit. A repeated request replaces the grace period. The response is None, and is
    sent immediately."""

    grace: float


@dataclass(frozen=True, slots=True)
class GetModelStatistics:
    """A request for the statistics of ``model`` and ``version``. A worker returns its own
    statistics; the supervisor returns the sum over all workers. The response is a
    ModelStatistics."""

    model: str
    version: str
