"""A pooled HTTP/1.1 client: asyncio's sockets, aiohttp's parser.

*Strategy.* See ``pool``.

*Rule 1.* Only what may safely be sent twice is: a GET or HEAD that met a connection which the
backend was just closing goes out once more, on a fresh connection. A POST never does.
*Rule 2.* No cookies, redirects, proxies or content encodings: the answer is what was sent.
"""

from __future__ import annotations

import asyncio
from typing import Final

from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import Limits
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.transport.base import Endpoint
from infergate.transport.http_exchange import Exchange
from infergate.transport.pool import Pools, StaleError

_SAFE: Final = frozenset({"GET", "HEAD"})


class AiohttpUpstream:
    """An :data:`~infergate.transport.base.HttpUpstream`."""

    def __init__(self, limits: Limits) -> None:
        self._pools: Final = Pools(limits, Exchange)

    async def exchange(self, wire: HttpRequest, endpoint: Endpoint, timeout: float) -> HttpResponse:
        """Send and wait for the whole answer. See :class:`~infergate.transport.base.Upstream`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        pool = self._pools.of(endpoint)
        target = endpoint.path + wire.path or "/"
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
        await self._pools.close()
