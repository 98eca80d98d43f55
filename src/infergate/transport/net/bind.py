"""Opens listening sockets. (A worker process receives its sockets from the supervisor.) The sockets
listen before any process accepts connections, because the system may report a conflict over the
address only at ``listen``."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from infergate.transport.base import Address, BoundSockets
from infergate.transport.net.unix_socket import SocketFile

_WILDCARDS: Final = ("0.0.0.0", "::")  # noqa: S104
BACKLOG: Final = 1024  # connections that may wait to be accepted


async def bind_sockets(
    address: Address, *, listen: bool = True, closing: Iterable[socket.socket] = ()
) -> BoundSockets:
    """Open listening sockets for ``address``. Raises OSError.

    With ``listen=False``, the sockets only reserve the port, and processes of the same user may
    listen on it with SO_REUSEPORT. The address may overlap with the addresses of ``closing``, which
    are sockets that will be closed soon. If the new socket covers the address of a closing socket,
    the closing socket is duplicated, so that clients can connect at any time."""
    if address.unix:
        file = SocketFile(address.unix, address.mode)
        sock = file.bind()
        sock.listen(BACKLOG)
        return BoundSockets((sock,), file.remove)
    addresses = await asyncio.get_running_loop().getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    port = address.port
    try:
        for family, socket_type, protocol, _, sockaddr in dict.fromkeys(addresses):
            same_port = [
                old for old in closing if old.family is family and old.getsockname()[1] == port
            ]
            covered_socks = [
                old for old in same_port if sockaddr[0] in (old.getsockname()[0], *_WILDCARDS)
            ]
            sockets += [old.dup() for old in covered_socks]
            if any(old.getsockname()[0] == sockaddr[0] for old in covered_socks):
                continue
            sock = socket.socket(family, socket_type, protocol)
            sockets.append(sock)
            sock.setblocking(False)  # noqa: FBT003 - setblocking has no keyword
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family is socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            with _overlap_allowed(sock, same_port):
                sock.bind((sockaddr[0], port, *sockaddr[2:]))
                if listen:
                    sock.listen(BACKLOG)
            if not listen:
                _share_port(sock)
            port = sock.getsockname()[1]  # all addresses of a host name use the same port
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return BoundSockets(tuple(sockets))


@contextmanager
def _overlap_allowed(new_sock: socket.socket, others: Sequence[socket.socket]) -> Iterator[None]:
    """Let ``new_sock`` bind an address that overlaps with the addresses of ``others``. Restore the
    options of all these sockets afterwards. The system gives each connection to the socket with the
    most specific address."""
    changed = [
        sock
        for sock in ([new_sock, *others] if others else [])
        if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT)
    ]
    for sock in changed:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        yield
    finally:
        for sock in changed:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 0)


def _share_port(sock: socket.socket) -> None:
    """Let sockets with SO_REUSEPORT, but no other sockets, listen on the port of ``sock``. The
    caller binds first, because ``bind`` with this option would not report a port that is in use."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
