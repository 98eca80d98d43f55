"""The number of bytes that must arrive before the event loop is notified (SO_RCVLOWAT). A long body
arrives in pieces of about 16 KiB, and a notification costs more than reading a piece. Fewer bytes
cause no notification, so the caller must lower the watermark when it expects fewer bytes."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Final

_FAMILIES: Final = frozenset({socket.AF_INET, socket.AF_INET6})
"""Address families that support the option. The option has no effect on other families."""


class ReceiveWatermark:
    """The receive watermark of one connection. ``min_bytes`` is its current value."""

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        sock = transport.get_extra_info("socket")
        # With TLS, the number of bytes that will arrive is unknown.
        is_supported = (
            sys.platform == "linux"
            and sock is not None
            and sock.family in _FAMILIES
            and transport.get_extra_info("ssl_object") is None
        )
        self._socket: Final = sock if is_supported else None
        self.min_bytes = 1

    def set_min_bytes(self, min_bytes: int) -> None:
        """Notify the loop only when ``min_bytes`` have arrived. The minimum is 1."""
        if min_bytes == self.min_bytes or self._socket is None:
            return
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, min_bytes)
        except OSError:  # the socket is closed
            return
        self.min_bytes = min_bytes
