"""A pooled client for size-prefixed frames.

A request's body is sent as a frame, and the frame that comes back becomes the body of a 200
response, because frames have no status. Only a POST can be sent, and never twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from infergate.core.certificates import ClientTls
from infergate.core.errors import GatewayError, Kind, garbage
from infergate.core.limits import Limits
from infergate.core.memory import SMALL
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.transport import http_head
from infergate.transport.base import Dropping, Endpoint, HttpStreamUpstream
from infergate.transport.frames import PREFIX, Frames, prefix
from infergate.transport.h1_client import H1Upstream
from infergate.transport.pool import Pool, Pooled, Pools

_HTTP: Final = PREFIX.unpack(b"HTTP")[0]
"""The start of an HTTP server's reply, read as a length: over a gigabyte."""


class FrameExchange(Pooled, asyncio.BufferedProtocol):
    """One connection to a backend that answers frames with frames."""

    def __init__(self, limits: Limits, endpoint: Endpoint, pool: Pool[Any]) -> None:
        super().__init__(limits, endpoint, pool)
        self._frames = Frames()
        self._is_open = False

    async def ask(self, wire: HttpRequest, deadline: float) -> HttpResponse:
        """Send the body of ``wire`` and wait for the response until ``deadline`` (loop time)."""
        return await self._exchange(
            http_head.gathered(prefix(wire.body), wire.body), deadline, wire.memory
        )

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return the buffer for the next bytes."""
        return self._frames.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Process bytes of the response; unsolicited bytes end the connection."""
        if self._waiter is None:
            self._transport.abort()
            return
        self._answered = True
        self._frames.wrote(nbytes)
        if not self._is_open:
            self._open()
        if self._is_open:
            self._gather()

    def _open(self) -> None:
        length = self._frames.announced
        if length is None:
            return
        if not length:
            self._fail(garbage("the backend's response is an empty frame", str(self._endpoint)))
        elif length <= self._limits.body:
            if length <= SMALL or self._count(length):
                self._frames.open(length)
                self._is_open = True
        elif length == _HTTP:
            self._fail(garbage("the backend speaks HTTP, not frames", str(self._endpoint)))
        else:
            self._too_large()

    def _gather(self) -> None:
        body = self._frames.take()
        if body is not None:
            self._is_open = False
            self._complete(HttpResponse(200, body=[body]), keep=not self._frames.has_begun)


class FrameUpstream:
    """An ``HttpUpstream`` for framed endpoints."""

    def __init__(self, limits: Limits) -> None:
        self._pools: Final = Pools(limits, FrameExchange)

    async def exchange(self, wire: HttpRequest, endpoint: Endpoint, timeout: float) -> HttpResponse:
        """Send a request and return the complete response within ``timeout`` seconds.

        Raises UNSUPPORTED for methods other than POST.
        """
        if wire.method != "POST":
            raise GatewayError(
                Kind.UNSUPPORTED, "a backend that uses frames does not support this request"
            )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        pool = self._pools.of(endpoint)
        connection = pool.take() or await pool.connect(timeout)
        return await connection.ask(wire, deadline)

    async def drop(self, endpoint: Endpoint) -> None:
        """Close all connections to ``endpoint``."""
        await self._pools.drop(endpoint)

    async def close(self) -> None:
        """Close all connections."""
        await self._pools.close()


class EitherUpstream:
    """An ``HttpUpstream`` that uses HTTP or frames, depending on the endpoint."""

    def __init__(
        self,
        limits: Limits,
        http: Callable[[Limits, ClientTls | None], HttpStreamUpstream] = H1Upstream,
        tls: ClientTls | None = None,
    ) -> None:
        """``create_http`` makes the HTTP upstream, which also does TLS."""
        self._http: Final = http(limits, tls)
        self._frames: Final = FrameUpstream(limits)

    async def exchange(self, wire: HttpRequest, endpoint: Endpoint, timeout: float) -> HttpResponse:
        """Exchange over HTTP or frames."""
        upstream = self._frames if endpoint.framed else self._http
        return await upstream.exchange(wire, endpoint, timeout)

    def stream(
        self, wire: HttpRequest, endpoint: Endpoint, timeout: float | None
    ) -> AsyncGenerator[HttpResponse, None]:
        """Stream over HTTP. Raises UNSUPPORTED for framed endpoints."""
        if endpoint.framed:
            raise GatewayError(
                Kind.UNSUPPORTED, "a backend that uses frames does not support streams"
            )
        return self._http.stream(wire, endpoint, timeout)

    async def drop(self, endpoint: Endpoint) -> None:
        """Close all connections to ``endpoint``."""
        for upstream in (self._http, self._frames):
            if isinstance(upstream, Dropping):
                await upstream.drop(endpoint)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()
        await self._frames.close()
