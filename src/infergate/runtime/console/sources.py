"""Data sources of the console: this process, or all workers through the supervisor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from infergate.config.schema import Config
from infergate.observe.metrics import Metrics
from infergate.observe.recent_requests import ProcessSnapshot, RecentRequests, take_snapshot
from infergate.runtime.comparisons import encode_summaries
from infergate.transport.base import Address

if TYPE_CHECKING:
    from infergate.runtime.running import RunningGateway  # a circular import

Json = dict[str, Any]


class WorkerCounts(NamedTuple):
    """The number of worker processes: how many are configured, and how many serve requests."""

    wanted: int = 1
    serving: int = 1


class ConsoleSource(Protocol):
    """The processes that serve requests. ``Supervisor`` implements this protocol for several
    workers."""

    @property
    def config(self) -> Config:
        """The active configuration."""
        ...

    @property
    def addresses(self) -> Mapping[str, Address]:
        """The addresses of all listeners, keyed by the names in the configuration."""
        ...

    @property
    def workers(self) -> WorkerCounts:
        """The numbers of configured and of serving processes."""
        ...

    async def recent(self) -> Sequence[ProcessSnapshot]:
        """Return the recent requests and counters of each process that serves, and of the
        supervisor if there is one. Only entries of workers have a worker number. The entry of a
        worker that does not respond is empty."""
        ...

    async def reload(self, config: Config) -> None:
        """Make ``config`` active in all processes. Raises ConfigRejectedError."""
        ...

    async def run_action(self, action: str, request: Json) -> Json:
        """Perform an action in one of the processes. Raises GatewayError."""
        ...

    async def comparisons(self) -> Sequence[bytes]:
        """Return the summaries of mirror comparisons of each process that responds, as JSON."""
        ...

    async def reset_comparisons(self) -> None:
        """Start new summaries in all processes."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class SingleProcess:
    """A ``ConsoleSource`` for a single process. ``_running`` returns the gateway. ``_running`` is
    called only when data is requested, because the gateway may not exist earlier."""

    _running: Callable[[], RunningGateway]
    _metrics: Metrics
    _recent: RecentRequests

    @property
    def workers(self) -> WorkerCounts:
        return WorkerCounts()

    @property
    def config(self) -> Config:
        return self._running().config

    @property
    def addresses(self) -> Mapping[str, Address]:
        return {name: listener.address for name, listener in self._running().listeners.items()}

    async def recent(self) -> Sequence[ProcessSnapshot]:
        return (take_snapshot(self._recent, self._metrics),)

    async def reload(self, config: Config) -> None:
        await self._running().reload(config)

    async def run_action(self, action: str, request: Json) -> Json:
        from infergate.runtime.console.try_request import run_action  # noqa: PLC0415 - rarely used

        running = self._running()
        return await run_action(running.config, running.gateway, action, request)

    async def comparisons(self) -> Sequence[bytes]:
        return await encode_summaries(self._running().gateway.comparisons())

    async def reset_comparisons(self) -> None:
        self._running().gateway.reset_comparisons()
