"""How many bytes have to wait in a socket before the loop is told of them.

*Why.* A long body comes in pieces of some 16 KiB, and being told of each costs more than taking it.
*Rule.* Whoever waits for many bytes knows that they are due, and asks for fewer again once they
are not (SO_RCVLOWAT, socket(7)): nobody else is told that something is there. The end of what the
peer sends is always told.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Final

_KINDS: Final = frozenset({socket.AF_INET, socket.AF_INET6})
"""Of sockets that know it: where it is not known it does nothing."""


class Waking:
    """Of one connection. ``least``: the bytes that are waited for."""

    __slots__ = ("_socket", "least")

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        its = transport.get_extra_info("socket")
        # Of TLS nobody knows how many bytes are due.
        fits = (
            sys.platform == "linux"
            and its is not None
            and its.family in _KINDS
            and transport.get_extra_info("ssl_object") is None
        )
        self._socket: Final = its if fits else None
        self.least = 1

    def wait_for(self, least: int) -> None:
        """Be told when ``least`` bytes are there, which is 1 or more."""
        if least == self.least or self._socket is None:
            return
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)
        except OSError:  # it is closed
            return
        self.least = least
