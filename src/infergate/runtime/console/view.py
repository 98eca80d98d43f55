"""What the console looks at: one process, or several that serve as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from infergate.config.schema import Config
from infergate.gateway.gateway import Gateway
from infergate.observe.metrics import Metrics
from infergate.observe.recent import Recalled, Recent, recalled
from infergate.transport.base import Address

Json = dict[str, Any]


class Workers(NamedTuple):
    """Processes: those that there are to be, those that serve."""

    wanted: int = 1
    serving: int = 1


class View(Protocol):
    """Those who serve."""

    @property
    def config(self) -> Config:
        """All that serves now."""
        ...

    @property
    def addresses(self) -> Mapping[str, Address]:
        """Where listeners listen, by the configuration's names."""
        ...

    @property
    def workers(self) -> Workers:
        """How many processes that is."""
        ...

    async def recent(self) -> Sequence[Recalled]:
        """What each remembers, of those that answer; one without a number may be what they have
        together."""
        ...

    async def carry_out(self, what: str, asked: Json) -> Json:
        """See ``trying.carried_out``: by one of them. Raises GatewayError."""
        ...


class _Running(Protocol):
    @property
    def config(self) -> Config: ...

    @property
    def gateway(self) -> Gateway: ...

    @property
    def listeners(self) -> Mapping[str, Any]: ...


class Alone:
    """The View of one process."""

    workers = Workers()

    def __init__(self, running: Callable[[], _Running], metrics: Metrics, recent: Recent) -> None:
        """``running`` may not be there yet while this is made."""
        self._running = running
        self._metrics = metrics
        self._recent = recent

    @property
    def config(self) -> Config:
        """See View."""
        return self._running().config

    @property
    def addresses(self) -> Mapping[str, Address]:
        """See View."""
        return {name: each.address for name, each in self._running().listeners.items()}

    async def recent(self) -> Sequence[Recalled]:
        """See View."""
        return (recalled(self._recent, self._metrics),)

    async def carry_out(self, what: str, asked: Json) -> Json:
        """See View."""
        from infergate.runtime.console.trying import carried_out  # noqa: PLC0415 - few ask for it

        running = self._running()
        return await carried_out(running.config, running.gateway, what, asked)
