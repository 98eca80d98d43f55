"""Limits the number of concurrent exchanges per endpoint. Further exchanges wait. Some servers
(graphpipe-py) serve one connection at a time, and refuse connections beyond a short backlog."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Final

from infergate.core.errors import Kind, backend_failure
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.transport.base import Endpoint, HttpStreamingUpstream


class LimitedUpstream:
    """An ``HttpUpstream`` with at most ``max_exchanges`` concurrent exchanges per endpoint."""

    def __init__(self, upstream: HttpStreamingUpstream, max_exchanges: int) -> None:
        self._upstream: Final = upstream
        self._slots: Final = defaultdict[Endpoint, asyncio.Semaphore](
            lambda: asyncio.Semaphore(max_exchanges)
        )

    async def exchange(self, wire: HttpRequest, endpoint: Endpoint, timeout: float) -> HttpResponse:
        """Wait for a free slot, then run the exchange. ``timeout`` covers the wait and the
        exchange."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        async with self._slot(endpoint, deadline):
            return await self._upstream.exchange(wire, endpoint, deadline - loop.time())

    async def stream(
        self, wire: HttpRequest, endpoint: Endpoint, timeout: float | None
    ) -> AsyncGenerator[HttpResponse, None]:
        """Wait for a free slot, then start the stream. The slot is busy until the stream ends."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        async with self._slot(endpoint, deadline):
            remaining = None if deadline is None else deadline - loop.time()
            async with aclosing(self._upstream.stream(wire, endpoint, remaining)) as responses:
                async for response in responses:
                    yield response

    @asynccontextmanager
    async def _slot(self, endpoint: Endpoint, deadline: float | None) -> AsyncGenerator[None, None]:
        slots = self._slots[endpoint]
        try:
            async with asyncio.timeout_at(deadline):
                await slots.acquire()
        except TimeoutError:
            public = "the backend was busy with other requests"
            raise backend_failure(Kind.TIMEOUT, public, str(endpoint)) from None
        try:
            yield
        finally:
            slots.release()

    async def disconnect(self, endpoint: Endpoint) -> None:
        """Close all connections to ``endpoint`` and delete its slots."""
        self._slots.pop(endpoint, None)
        await self._upstream.disconnect(endpoint)

    async def close(self) -> None:
        await self._upstream.close()
