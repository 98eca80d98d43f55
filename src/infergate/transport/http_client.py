"""A pooled HTTP/1.1 client: asyncio's sockets, aiohttp's parser.

*Strategy.* Each endpoint has a stack of idle connections; the one used last is used next, so the
others grow old and are closed. Connections are not bounded here: ``Admission`` bounds requests.

*Rule 1.* Only what may safely be sent twice is: a GET or HEAD that met a connection which the
backend was just closing goes out once more, on a fresh connection. A POST never does.
*Rule 2.* No cookies, redirects, proxies or content encodings: the answer is what was sent.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from infergate import __version__
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.limits import Limits
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.transport import tls
from infergate.transport.base import Endpoint
from infergate.transport.http_exchange import Exchange, StaleError

_IDLE: Final = 4.0
"""Seconds an idle connection is kept: less than servers do (uvicorn, so MLServer and KServe: 5 s),
lest a POST meet a connection that is just being closed."""
_SAFE: Final = frozenset({"GET", "HEAD"})
_EYEBALLS: Final = 0.25
"""Seconds before the next address of a name is tried beside the first (RFC 8305)."""


class _Pool:
    """Connections to one endpoint."""

    def __init__(self, endpoint: Endpoint, limits: Limits) -> None:
        self._endpoint = endpoint
        self._limits = limits
        self._lines = f"host: {endpoint.authority}\r\nuser-agent: infergate/{__version__}\r\n"
        self._idle: list[Exchange] = []
        self._open: set[Exchange] = set()
        self._loop = asyncio.get_running_loop()
        self._emptied: asyncio.Future[None] | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._tls = tls.context() if endpoint.tls else None

    def take(self) -> Exchange | None:
        """An idle connection, or None."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def connect(self, timeout: float) -> Exchange:
        """A fresh connection within ``timeout`` and the connect limit. Raises CONNECT, TIMEOUT."""
        endpoint = self._endpoint
        allowed = self._limits.connect_time
        kind, public = Kind.CONNECT, "the backend could not be reached"
        if timeout < allowed:
            allowed = timeout
            kind, public = Kind.TIMEOUT, "the backend could not be reached in time"
        try:
            async with asyncio.timeout(allowed):
                _, connection = await self._loop.create_connection(
                    self._made,
                    endpoint.host,
                    endpoint.port,
                    ssl=self._tls,
                    happy_eyeballs_delay=_EYEBALLS,
                )
        except OSError as error:
            if not isinstance(error, TimeoutError):
                kind = Kind.CONNECT
            if isinstance(error, ssl.SSLError):
                public = tls.NO_TLS
            detail = f"{endpoint.authority}: {error!r}"
            raise GatewayError(kind, public, origin=Origin.BACKEND, detail=detail) from error
        if connection.usable:
            self._open.add(connection)
        return connection

    async def close(self) -> None:
        """Close all connections, busy ones too."""
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in tuple(self._open):
            connection.close()
        if self._open:
            self._emptied = self._loop.create_future()
            await self._emptied

    def _made(self) -> Exchange:
        return Exchange(
            self._limits, self._endpoint.authority, self._lines, self._released, self._lost
        )

    def _released(self, connection: Exchange) -> None:
        connection.idle_since = self._loop.time()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = self._loop.call_later(_IDLE, self._close_old)

    def _lost(self, connection: Exchange) -> None:
        self._open.discard(connection)
        if self._emptied is not None and not self._open and not self._emptied.done():
            self._emptied.set_result(None)
        if connection in self._idle:
            self._idle.remove(connection)

    def _close_old(self) -> None:
        self._sweep = None
        horizon = self._loop.time() - _IDLE
        while self._idle and self._idle[0].idle_since <= horizon:
            self._idle.pop(0).close()
        if self._idle:
            self._sweep = self._loop.call_at(self._idle[0].idle_since + _IDLE, self._close_old)


class AiohttpUpstream:
    """An :data:`~infergate.transport.base.HttpUpstream`."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._pools: dict[Endpoint, _Pool] = {}

    async def exchange(self, wire: HttpRequest, endpoint: Endpoint, timeout: float) -> HttpResponse:
        """Send and wait for the whole answer. See :class:`~infergate.transport.base.Upstream`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        pool = self._pools.get(endpoint)
        if pool is None:
            pool = self._pools[endpoint] = _Pool(endpoint, self._limits)
        target = endpoint.path + wire.path
        if wire.query:
            target += "?" + wire.query
        try:
            connection = pool.take()
            if connection is not None:
                try:
                    return await connection.ask(wire, target, deadline)
                except StaleError:
                    if wire.method not in _SAFE:
                        raise
            connection = await pool.connect(deadline - loop.time())
            return await connection.ask(wire, target, deadline)
        except ValueError as error:
            raise GatewayError(Kind.BAD_REQUEST, f"cannot be sent over HTTP: {error}") from error

    async def close(self) -> None:
        """Close all connections."""
        pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            await pool.close()
