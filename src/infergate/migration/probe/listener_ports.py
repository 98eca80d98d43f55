"""The ports of the listeners in a written configuration."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Final

from infergate.migration.probe.targets import ProbeTarget

HOST: Final = "127.0.0.1"
_STEP: Final = 100


class ListenerPorts:
    """Assigns ports. If a probed server is on this host, only ports that are free now are assigned,
    so that the gateway can run beside the server."""

    def __init__(self, targets: Iterable[ProbeTarget]) -> None:
        self._taken: Final = {target.port for target in targets if target.is_local}
        self._is_local: Final = bool(self._taken)

    def assign(self, preferred: int) -> int:
        """Return ``preferred`` or, if it is taken, another port."""
        port = preferred
        while port in self._taken or (self._is_local and not _is_free(port)):
            port += _STEP
            if port > 65535:
                raise OSError(f"no port is free beside port {preferred}")
        self._taken.add(port)
        return port


def _is_free(port: int) -> bool:
    with socket.socket() as test:
        test.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            test.bind((HOST, port))
        except OSError:
            return False
    return True
