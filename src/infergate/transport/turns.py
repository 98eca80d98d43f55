"""A bound on how many exchanges an endpoint has at a time; the others wait for their turn.

Some servers serve one connection at a time (graphpipe-py's). A few more wait with the system; then
it lets no one in, and a client takes the server for dead.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Final

from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.transport.base import Dropping, Endpoint, HttpStreamUpstream


class Turns:
    """An :data:`~infergate.transport.base.HttpUpstream`: ``upstream`` with ``most`` exchanges at a
    time to each endpoint, first come, first served."""

    def __init__(self, upstream: HttpStreamUpstream, most: int) -> None:
        self._upstream: Final = upstream
        self._free: Final = defaultdict[Endpoint, asyncio.Semaphore](
            lambda: asyncio.Semaphore(most)
        )

    async def exchange(self, wire: HttpRequest, endpoint: Endpoint, timeout: float) -> HttpResponse:
        """See :class:`~infergate.transport.base.Upstream`. Raises TIMEOUT also while it waits."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        async with self._turn(endpoint, deadline):
            return await self._upstream.exchange(wire, endpoint, deadline - loop.time())

    async def stream(
        self, wire: HttpRequest, endpoint: Endpoint, timeout: float | None
    ) -> AsyncGenerator[HttpResponse, None]:
        """See :class:`~infergate.transport.base.StreamUpstream`. A stream has its turn to its
        end."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        async with self._turn(endpoint, deadline):
            left = None if deadline is None else deadline - loop.time()
            async with aclosing(self._upstream.stream(wire, endpoint, left)) as answers:
                async for answer in answers:
                    yield answer

    @asynccontextmanager
    async def _turn(self, endpoint: Endpoint, deadline: float | None) -> AsyncGenerator[None, None]:
        free = self._free[endpoint]
        try:
            async with asyncio.timeout_at(deadline):
                await free.acquire()
        except TimeoutError:
            raise GatewayError(
                Kind.TIMEOUT,
                "the backend was busy with other requests",
                origin=Origin.BACKEND,
                detail=str(endpoint),
            ) from None
        try:
            yield
        finally:
            free.release()

    async def drop(self, endpoint: Endpoint) -> None:
        """See :class:`~infergate.transport.base.Dropping`."""
        self._free.pop(endpoint, None)
        if isinstance(self._upstream, Dropping):
            await self._upstream.drop(endpoint)

    async def close(self) -> None:
        """Close all connections."""
        await self._upstream.close()
