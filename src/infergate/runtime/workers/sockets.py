"""The listening sockets shared by all workers, and the part of the configuration that each process
serves.

*Rule.* Workers receive actual ports. If the configuration allows any free port, the supervisor
picks a port and keeps it until the listener's address changes."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from infergate.config import compile as compiled
from infergate.config.schema import Config
from infergate.runtime.workers.messages import SocketLayout
from infergate.transport.base import Address, BoundSockets
from infergate.transport.worker_loads import WorkerLoads

_GRAPHPIPE: Final = "graphpipe"
_ANY_SLOT: Final = 0
"""The supervisor has no slot of its own in the load table. It only marks the slots of ended workers
as absent, so it may open the table with any slot."""


@dataclass(frozen=True, slots=True)
class ListenerSockets:
    """The sockets of one listener. ``address`` has the actual port."""

    address: Address
    bound_sockets: BoundSockets
    loads: WorkerLoads
    _memory: int

    @property
    def descriptors(self) -> list[int]:
        """The descriptors passed to a worker."""
        return [self._memory, *(sock.fileno() for sock in self.bound_sockets.sockets)]

    def close(self) -> None:
        """Close this process's copies of the sockets. Workers continue to listen."""
        self.bound_sockets.close()
        os.close(self._memory)


async def bind_listener(
    name: str, address: Address, bind: Callable[[Address], Awaitable[BoundSockets]], workers: int
) -> ListenerSockets:
    """Bind the sockets of the listener ``name``, which ``workers`` workers share. Raises OSError,
    which names the address."""
    try:
        bound_sockets = await bind(address)
    except OSError as error:
        raise OSError(f"listeners.{name}: cannot listen on {address}: {error}") from error
    memory = WorkerLoads.create_file(workers)
    actual = address if address.unix else Address(address.host, bound_sockets.port)
    return ListenerSockets(actual, bound_sockets, WorkerLoads(memory, _ANY_SLOT), memory)


def socket_key(name: str, address: Address) -> str:
    """Return the key that identifies a listener's sockets. If the address allows any free port, the
    key includes the listener's name."""
    return str(address) if address.port or address.unix else f"{name} {address}"


def socket_layout(listeners: Iterable[ListenerSockets]) -> tuple[SocketLayout, list[int]]:
    """Return the layout for a message to workers, and the descriptors to send with the message."""
    entries = [(item.address, item.descriptors) for item in listeners]
    layout = tuple((address, len(descriptors)) for address, descriptors in entries)
    return layout, [item for _, descriptors in entries for item in descriptors]


# ---- dividing the configuration


def worker_addresses(config: Config) -> dict[str, Address]:
    """Return the addresses on which workers listen, keyed by the names in the configuration."""
    return {name: value for name, value in compiled.addresses(config).items() if name != "admin"}


def bound_addresses(config: Config, sockets: Mapping[str, ListenerSockets]) -> dict[str, Address]:
    """Return the actual addresses on which workers listen, keyed by the names in the configuration.
    ``sockets`` has the keys of ``socket_key``."""
    return {
        name: sockets[socket_key(name, address)].address
        for name, address in worker_addresses(config).items()
    }


def worker_config(config: Config, addresses: Mapping[str, Address]) -> Config:
    """Return the workers' part of ``config``: all of it except the admin listener. The listeners
    get ``addresses``."""
    listeners = config.listeners
    changes: dict[str, Any] = {"admin": None}
    for name in ("http", "grpc"):
        if name in addresses:
            changes[name] = _with_address(getattr(listeners, name), addresses[name])
    changes[_GRAPHPIPE] = tuple(
        _with_address(listener, addresses[f"{_GRAPHPIPE}[{index}]"])
        for index, listener in enumerate(listeners.graphpipe)
    )
    changes["additional"] = {
        name: _with_address(listener, addresses[f"{compiled.ADDITIONAL}{name}"])
        for name, listener in listeners.additional.items()
    }
    return _with_listeners(config, changes)


def supervisor_config(config: Config) -> Config:
    """Return the supervisor's part of ``config``: the admin listener and its dependencies."""
    changes: dict[str, Any] = {
        "backends": {},
        "routes": (),
        "models": {},
        "helpers": 0,
        "access": None,  # the admin listener has its own keys
        "hooks": {},  # the supervisor must not wait for plug-ins
        "log": config.log.model_copy(update={"access": False}),
        "tracing": config.tracing.model_copy(update={"enabled": False}),
    }
    listeners: dict[str, Any] = {"http": None, "grpc": None, _GRAPHPIPE: (), "additional": {}}
    return _with_listeners(config.model_copy(update=changes), listeners)


def _with_address(listener: Any, address: Address) -> Any:
    return listener.model_copy(update={"address": address})


def _with_listeners(config: Config, changes: Mapping[str, Any]) -> Config:
    return config.model_copy(update={"listeners": config.listeners.model_copy(update=changes)})
