"""Chooses the ports of the listeners in a written configuration."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Any, Final

from infergate.migration.probe.targets import ProbeTarget

HOST: Final = "127.0.0.1"
_STEP: Final = 100


class ListenerPorts:
    """Assigns ports. If a probed address is on this host, only free ports are assigned, so that the
    gateway can run beside the server."""

    def __init__(self, targets: Iterable[ProbeTarget]) -> None:
        self._used_ports: Final = {target.port for target in targets if _is_local(target.url.host)}
        self._has_local_target: Final = bool(self._used_ports)

    def assign(self, preferred: int) -> int:
        """Return ``preferred`` or, in steps of ``_STEP``, the next higher port that is not taken.
        Raises OSError if all these ports are taken."""
        port = preferred
        while port in self._used_ports or (
            self._has_local_target and not _can_bind(socket.AF_INET, (HOST, port))
        ):
            port += _STEP
            if port > 65535:
                raise OSError(f"no port is free: tried every hundredth port from {preferred}")
        self._used_ports.add(port)
        return port


def _is_local(host: str) -> bool:
    """Return whether ``host`` has an address to which this machine can bind a socket, or is empty,
    which means a Unix socket."""
    if not host:
        return True
    try:
        addresses = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in addresses)


def _can_bind(family: int, address: Any) -> bool:
    try:
        with socket.socket(family) as test:
            test.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            test.bind(address)
    except OSError:
        return False
    return True
