"""The listening sockets shared by all workers, and the part of the configuration that each process
serves.

*Rule.* Workers receive actual ports. If the configuration allows any free port, the supervisor
finds one, which stays the same as long as the listener is configured so.
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
"""The slot in the load table through which the supervisor reads it; it never reports a load
there."""


@dataclass(frozen=True, slots=True)
class Held:
    """The sockets of one listener. ``address`` has the actual port."""

    address: Address
    bound: Bound
    loads: Loads
    _memory: int

    @property
    def descriptors(self) -> list[int]:
        """The descriptors passed to a worker."""
        return [self._memory, *(sock.fileno() for sock in self.bound.sockets)]

    def close(self) -> None:
        """Close this process's copies; workers keep listening."""
        self.bound.close()
        os.close(self._memory)


async def held(
    name: str, address: Address, bind: Callable[[Address], Awaitable[Bound]], workers: int
) -> Held:
    """Bind the listener ``name`` for a number of workers. Raises OSError naming the address."""
    try:
        bound_sockets = await bind(address)
    except OSError as error:
        raise OSError(f"listeners.{name}: cannot listen on {address}: {error}") from error
    memory = Loads.file(workers)
    actual = address if address.unix else Address(address.host, bound_sockets.port)
    return Held(actual, bound_sockets, Loads(memory, _NOBODY), memory)


def given(all_held: Iterable[Held]) -> tuple[Given, list[int]]:
    """Return the layout of the sockets for a worker's message, and the descriptors to send with
    it."""
    entries = [(item.address, item.descriptors) for item in all_held]
    layout = tuple((address, len(descriptors)) for address, descriptors in entries)
    return layout, [item for _, descriptors in entries for item in descriptors]


# ---- dividing the configuration


def wanted(config: Config) -> dict[str, Address]:
    """Return the addresses that workers listen on, by configuration name."""
    addresses = {
        name: value for name, value in compiled.addresses(config).items() if name != "admin"
    }
    return addresses | {
        name: value.address for name, value in compiled.bound_listeners(config).items()
    }


def of_worker(config: Config, addresses: Mapping[str, Address]) -> Config:
    """Return the worker's part of ``config``: everything but the admin listener, with listeners at
    ``addresses``."""
    listeners = config.listeners
    changes: dict[str, Any] = {"admin": None}
    for name in ("http", "grpc"):
        if name in addresses:
            changes[name] = _moved(getattr(listeners, name), addresses[name])
    changes[_GRAPHPIPE] = tuple(
        _moved(listener, addresses[f"{_GRAPHPIPE}[{index}]"])
        for index, listener in enumerate(listeners.graphpipe)
    )
    return _with_listeners(config, changes)


def of_supervisor(config: Config) -> Config:
    """Return the supervisor's part of ``config``: the admin listener and its dependencies."""
    cleared: dict[str, Any] = {"backends": {}, "routes": (), "models": {}, "helpers": 0}
    cleared["access"] = None  # the admin listener has its own keys
    log = config.log.model_copy(update={"access": False})
    tracing = config.tracing.model_copy(update={"enabled": False})
    rest = config.model_copy(update={**cleared, "log": log, "tracing": tracing})
    return _with_listeners(rest, {"http": None, "grpc": None, _GRAPHPIPE: ()})


def _moved(listener: Any, address: Address) -> Any:
    return listener.model_copy(update={"address": address})


def _with_listeners(config: Config, changes: Mapping[str, Any]) -> Config:
    return config.model_copy(update={"listeners": config.listeners.model_copy(update=changes)})
