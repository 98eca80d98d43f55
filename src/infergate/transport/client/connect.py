"""Opens a connection to an endpoint, with asyncio or uvloop."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Any, Final, TypeVar

from infergate.core.errors import Origin
from infergate.core.hosts import is_ip_address
from infergate.transport.base import Endpoint
from infergate.transport.tls.client_context import ClientTlsContext

_HAPPY_EYEBALLS_DELAY: Final = 0.25
"""Seconds after which the next address of a name is tried in parallel (RFC 8305)."""

_KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Seconds of silence before the first probe, seconds between probes, and the number of unanswered
probes after which the connection is closed."""

_EXHAUSTED: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}
)

AnyProtocol = TypeVar("AnyProtocol", bound=asyncio.BaseProtocol)


def failure_origin(error: BaseException) -> Origin:
    """Return GATEWAY if ``error`` means that this machine is out of descriptors, memory or ports.
    Return BACKEND for any other error."""
    local = isinstance(error, OSError) and error.errno in _EXHAUSTED
    return Origin.GATEWAY if local else Origin.BACKEND


async def open_connection(
    loop: asyncio.AbstractEventLoop,
    create_protocol: Callable[[], AnyProtocol],
    endpoint: Endpoint,
    tls: ClientTlsContext | None,
) -> AnyProtocol:
    """Connect a new protocol to ``endpoint``, with TLS if ``tls`` is given. Raises OSError."""
    if endpoint.unix:
        _, connection = await loop.create_unix_connection(create_protocol, endpoint.unix)
        return connection
    options: dict[str, Any] = {}
    if tls is not None:
        options |= {"ssl": tls.context(), "server_hostname": tls.server_name(endpoint.host)}
    # uvloop does not try addresses in parallel. asyncio does, but may leak the winning socket when
    # the attempt is cancelled, so the option is not set for a single address.
    if isinstance(loop, asyncio.BaseEventLoop) and not is_ip_address(endpoint.connect_host):
        options["happy_eyeballs_delay"] = _HAPPY_EYEBALLS_DELAY
    transport, connection = await loop.create_connection(
        create_protocol, endpoint.connect_host, endpoint.port, **options
    )
    _enable_keepalive(transport)
    return connection


def _enable_keepalive(transport: asyncio.Transport) -> None:
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEP_ALIVE.items():
            if (option_number := getattr(socket, option, None)) is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option_number, value)
