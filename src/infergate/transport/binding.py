"""Sockets that listen: how a listener has them, so that another may give it some.

*Strategy.* Whoever starts a listener may say where its sockets come from: of itself it binds them
(:func:`bound`); one of several processes on one port is given them by who holds them.

*Rule.* They listen before anybody accepts: only then the system tells that an address is taken.
Who connects meanwhile waits, or is refused where nobody comes to accept.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from infergate.transport.base import Address, Bound
from infergate.transport.unix_socket import SocketFile

BACKLOG: Final = 1024
"""Connections that may wait to be accepted."""


async def bound(address: Address, *, listen: bool = True) -> Bound:
    """Sockets of this process alone: no other can listen there as long as they live, but for
    processes of the same user that mean to share the port where these do not ``listen``."""
    if address.unix:
        file = SocketFile(address.unix, address.mode)
        made = file.bind()
        made.listen(BACKLOG)
        return Bound((made,), file.remove)
    found = await asyncio.get_running_loop().getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    port = address.port
    try:
        for family, kind, protocol, _, where in dict.fromkeys(found):
            made = socket.socket(family, kind, protocol)
            sockets.append(made)
            made.setblocking(False)  # noqa: FBT003 - its name says it
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family is socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.bind((where[0], port, *where[2:]))
            if listen:
                made.listen(BACKLOG)
            else:
                _share(made)
            port = made.getsockname()[1]  # a free one is the same for all of a name's addresses
    except OSError:
        for each in sockets:
            each.close()
        raise
    return Bound(tuple(sockets))


def _share(made: socket.socket) -> None:
    """Let others listen beside it who say SO_REUSEPORT, and nobody else. Said only now, since who
    binds with it would not be told that the port is taken by one who shares it."""
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
