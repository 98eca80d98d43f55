"""The sockets of all workers, which the supervisor binds and keeps, and whose what of a
configuration is.

*Rule.* Workers are told real ports: where any will do, one is found here, and it stays as long as
that listener says so.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from infergate.config import compile as compiled
from infergate.config.schema import Config
from infergate.runtime.workers.messages import Given
from infergate.transport.base import Address, Bound
from infergate.transport.loads import Loads

_GRAPHPIPE: Final = "graphpipe"
_NOBODY: Final = 0
"""Whose place in the loads the supervisor's view of them is: it never tells any."""


@dataclass(frozen=True, slots=True)
class Held:
    """A listener's sockets; ``address`` with the port that it has."""

    address: Address
    bound: Bound
    loads: Loads
    _memory: int

    @property
    def descriptors(self) -> list[int]:
        """What a worker is given of it."""
        return [self._memory, *(each.fileno() for each in self.bound.sockets)]

    def close(self) -> None:
        """Workers that listen there go on."""
        self.bound.close()
        os.close(self._memory)


async def held(
    name: str, address: Address, bind: Callable[[Address], Awaitable[Bound]], workers: int
) -> Held:
    """Sockets for the listener ``name``, for so many workers. Raises OSError naming the
    address."""
    try:
        bound = await bind(address)
    except OSError as error:
        raise OSError(f"listeners.{name}: cannot listen on {address}: {error}") from error
    memory = Loads.file(workers)
    real = address if address.unix else Address(address.host, bound.port)
    return Held(real, bound, Loads(memory, _NOBODY), memory)


def given(all_held: Iterable[Held]) -> tuple[Given, list[int]]:
    """What a worker is told of those, and the descriptors that go with it."""
    listed = [(each.address, each.descriptors) for each in all_held]
    told = tuple((address, len(descriptors)) for address, descriptors in listed)
    return told, [each for _, descriptors in listed for each in descriptors]


# ---- whose what is


def wanted(config: Config) -> dict[str, Address]:
    """Where workers listen, by the config's names."""
    shared = {k: v for k, v in compiled.addresses(config).items() if k != "admin"}
    return shared | {k: v.address for k, v in compiled.bound_listeners(config).items()}


def of_worker(config: Config, addresses: Mapping[str, Address]) -> Config:
    """All of ``config`` but the admin listener; its listeners at ``addresses``."""
    on = config.listeners
    changes: dict[str, Any] = {"admin": None}
    for name in ("http", "grpc"):
        if name in addresses:
            changes[name] = _moved(getattr(on, name), addresses[name])
    changes[_GRAPHPIPE] = tuple(
        _moved(each, addresses[f"{_GRAPHPIPE}[{index}]"]) for index, each in enumerate(on.graphpipe)
    )
    return _with_listeners(config, changes)


def of_supervisor(config: Config) -> Config:
    """The admin listener alone, and what concerns it."""
    nothing: dict[str, Any] = {"backends": {}, "routes": (), "models": {}, "helpers": 0}
    nothing["access"] = None  # the admin listener's keys are its own
    log = config.log.model_copy(update={"access": False})
    tracing = config.tracing.model_copy(update={"enabled": False})
    rest = config.model_copy(update={**nothing, "log": log, "tracing": tracing})
    return _with_listeners(rest, {"http": None, "grpc": None, _GRAPHPIPE: ()})


def _moved(listener: Any, address: Address) -> Any:
    return listener.model_copy(update={"address": address})


def _with_listeners(config: Config, changes: Mapping[str, Any]) -> Config:
    return config.model_copy(update={"listeners": config.listeners.model_copy(update=changes)})
