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
    """To a new worker: serve ``config``. Response: None, when it accepts connections."""

    config: Config
    sockets: SocketLayout


@dataclass(frozen=True, slots=True)
class PrepareConfig:
    """To a worker: perform every step of activating ``config`` that can fail. Response: None."""

    config: Config
    sockets: SocketLayout


class WorkerCommand(enum.Enum):
    """The messages to a worker that have no fields."""

    APPLY_PREPARED = enum.auto()
    """Activate the prepared configuration. Response: None."""
    DISCARD_PREPARED = enum.auto()
    """Discard the prepared configuration, if any. Response: None."""
    GET_RECENT = enum.auto()
    """Return the console's data. Response: ProcessSnapshot."""
    CHECK_READY = enum.auto()
    """Check whether the worker can serve. Response: bool."""
    DRAIN = enum.auto()
    """Fail readiness. Response: None."""


@dataclass(frozen=True, slots=True)
class CollectMetrics:
    """To a worker: return the next batch of its metrics, or the first with ``restart``. Response: a
    list of metric families; empty after the last batch."""

    restart: bool


@dataclass(frozen=True, slots=True)
class PerformConsoleAction:
    """To a worker: perform a console action. Response: JSON data, or ErrorResponse."""

    action: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """A response that carries a GatewayError, which cannot be pickled."""

    kind: Kind
    public: str


@dataclass(frozen=True, slots=True)
class Stop:
    """To a worker: stop accepting, let requests finish for ``grace`` seconds, then exit. It may be
    repeated to shorten the grace period. Response: None, immediately."""

    grace: float


@dataclass(frozen=True, slots=True)
class GetModelStatistics:
    """Return the statistics of ``model`` and ``version``: a worker returns its own statistics, the
    supervisor the sum over all workers. Response: ModelStatistics."""

    model: str
    version: str
