"""How a connection to an endpoint is made, on whichever loop runs."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Callable
from typing import Any, Final, TypeVar

from infergate.core.errors import Origin
from infergate.transport.base import Endpoint
from infergate.transport.tls import Trust

_EYEBALLS: Final = 0.25
"""Seconds before the next address of a name is tried beside the first (RFC 8305)."""

_KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Seconds of silence, seconds between questions, and how many of them go unanswered."""

_EXHAUSTED: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}
)

AnyProtocol = TypeVar("AnyProtocol", bound=asyncio.BaseProtocol)


def origin_of(error: BaseException) -> Origin:
    """Whose failure it is that there is no connection: the gateway's own where this machine lacks
    descriptors, memory or ports, else the backend's."""
    local = isinstance(error, OSError) and error.errno in _EXHAUSTED
    return Origin.GATEWAY if local else Origin.BACKEND


async def connected(
    loop: asyncio.AbstractEventLoop,
    make: Callable[[], AnyProtocol],
    endpoint: Endpoint,
    trust: Trust | None,
) -> AnyProtocol:
    """What ``make`` made, connected: by TLS where there is a ``trust``. Raises OSError."""
    if endpoint.unix:
        _, connection = await loop.create_unix_connection(make, endpoint.unix)
        return connection
    options: dict[str, Any] = {}
    if trust is not None:
        options |= {"ssl": trust.context(), "server_hostname": trust.name(endpoint.host)}
    # uvloop tries addresses one after the other. And asyncio, cancelled while it races them, may
    # lose the socket that won: where there is nothing to race for, it does not.
    if isinstance(loop, asyncio.BaseEventLoop) and _is_name(endpoint.reached):
        options["happy_eyeballs_delay"] = _EYEBALLS
    transport, connection = await loop.create_connection(
        make, endpoint.reached, endpoint.port, **options
    )
    _keep_alive(transport)
    return connection


def _keep_alive(transport: asyncio.Transport) -> None:
    """Have the system ask whether the other end is there, where that says nothing for a minute: a
    host that is gone is noticed by connections that only wait."""
    its = transport.get_extra_info("socket")
    if its is not None:
        its.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEP_ALIVE.items():
            if (number := getattr(socket, option, None)) is not None:
                its.setsockopt(socket.IPPROTO_TCP, number, value)


def _is_name(host: str) -> bool:
    """Whether ``host`` is to be looked up."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False
