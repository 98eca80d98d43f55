"""Sockets that listen: how a listener has them, so that another may give it some.

*Strategy.* Whoever starts a listener may say where its sockets come from: of itself it binds them
(:func:`bound`); one of several processes on one port is given them by who holds them.

*Rule.* They listen before anybody accepts: only then the system tells that an address is taken.
Who connects meanwhile waits, or is refused where nobody comes to accept.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from infergate.transport.base import Address, Bound
from infergate.transport.unix_socket import SocketFile

_WILDCARDS: Final = ("0.0.0.0", "::")  # noqa: S104
BACKLOG: Final = 1024
"""Connections that may wait to be accepted."""


async def bound(
    address: Address, *, listen: bool = True, beside: Iterable[socket.socket] = ()
) -> Bound:
    """Sockets of this process alone: no other can listen there as long as they live, but for
    processes of the same user that mean to share the port where these do not ``listen``. The
    address may overlap those of ``beside``, sockets of this process that will be closed soon: those
    whose address is within it are shared, so that who connects meanwhile is not turned away."""
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
            others = [each for each in beside if _port(each) == port and each.family is family]
            within = [each for each in others if where[0] in (each.getsockname()[0], *_WILDCARDS)]
            sockets += [each.dup() for each in within]
            if any(each.getsockname()[0] == where[0] for each in within):
                continue
            made = socket.socket(family, kind, protocol)
            sockets.append(made)
            made.setblocking(False)  # noqa: FBT003 - its name says it
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family is socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            with _overlapping(made, others):
                made.bind((where[0], port, *where[2:]))
                if listen:
                    made.listen(BACKLOG)
            if not listen:
                _share(made)
            port = made.getsockname()[1]  # a free one is the same for all of a name's addresses
    except OSError:
        for each in sockets:
            each.close()
        raise
    return Bound(tuple(sockets))


def _port(made: socket.socket) -> int | None:
    return None if made.family is socket.AF_UNIX else int(made.getsockname()[1])


@contextmanager
def _overlapping(made: socket.socket, others: Sequence[socket.socket]) -> Iterator[None]:
    """``made`` may take an address meanwhile that overlaps those of ``others``, and all keep theirs
    afterwards: the system gives each connection to the one whose address is the most specific."""
    changed = [
        each
        for each in ([made, *others] if others else [])
        if not each.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT)
    ]
    for each in changed:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        yield
    finally:
        for each in changed:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 0)


def _share(made: socket.socket) -> None:
    """Let others listen beside it who say SO_REUSEPORT, and nobody else. Said only now, since who
    binds with it would not be told that the port is taken by one who shares it."""
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
