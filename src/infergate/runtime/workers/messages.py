"""The requests between supervisor and workers, with the type of each response."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from infergate.config.schema import Config
from infergate.core.errors import Kind
from infergate.transport.base import Address

SocketLayout = tuple[tuple[Address, int], ...]
"""Each address with the number of its descriptors, which are sent over the other socket pair. The
first descriptor of an address is the memory with the workers' loads; the rest are its sockets."""


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """A request to a new worker to serve ``config``. Response: None, when the worker accepts
    connections."""

    config: Config
    sockets: SocketLayout


@dataclass(frozen=True, slots=True)
class PrepareConfig:
    """A request to a worker to perform every step of activating ``config`` that can fail. Response:
    None."""

    config: Config
    sockets: SocketLayout


class WorkerCommand(enum.Enum):
    """Requests to a worker that have no fields."""

    APPLY_PREPARED = enum.auto()
    """Activate the prepared configuration. Response: None."""
    DISCARD_PREPARED = enum.auto()
    """Discard the prepared configuration, if there is one. Response: None."""
    GET_RECENT = enum.auto()
    """Return the console's data. Response: ProcessSnapshot."""
    CHECK_READY = enum.auto()
    """Check whether the worker can serve. Response: bool."""
    DRAIN = enum.auto()
    """Fail readiness. Response: None."""


@dataclass(frozen=True, slots=True)
class CollectMetrics:
    """A request to a worker to return the next batch of its metrics or, with ``restart``, the first
    batch. Response: a list of metric families, which is empty after the last batch."""

    restart: bool


@dataclass(frozen=True, slots=True)
class PerformConsoleAction:
    """A request to a worker to perform a console action. Response: JSON data, or ErrorResponse."""

    action: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """A response that carries a GatewayError, which cannot be pickled."""

    kind: Kind
    public: str


@dataclass(frozen=True, slots=True)
class Stop:
    """A request to a worker to stop accepting, let requests finish for up to ``grace`` seconds,
    then exit. It may be repeated to shorten the grace period. Response: None, immediately."""

    grace: float


@dataclass(frozen=True, slots=True)
class GetModelStatistics:
    """A request for the statistics of ``model`` and ``version``. A worker returns its own
    statistics; the supervisor returns the sum over all workers. Response: ModelStatistics."""

    model: str
    version: str
