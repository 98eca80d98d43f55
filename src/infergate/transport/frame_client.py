"""A pooled client for size-prefixed frames.

*Strategy.* See ``pool`` and ``frames``. A request's body goes out as a frame, and the frame that
comes back is the body of a 200: there is nothing else that could tell an error.

*Rule.* Only a POST has a frame, and it is never sent twice.
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
"""What an HTTP server answers a frame with, read as a length: over a gigabyte."""


class FrameExchange(Pooled, asyncio.BufferedProtocol):
    """One connection to a backend that answers frames with frames."""

    def __init__(self, limits: Limits, endpoint: Endpoint, pool: Pool[Any]) -> None:
        super().__init__(limits, endpoint, pool)
        self._frames = Frames()
        self._is_open = False

    async def ask(self, wire: HttpRequest, deadline: float) -> HttpResponse:
        """Send the body of ``wire`` and wait for the answer until ``deadline`` (loop time)."""
        return await self._exchange(
            http_head.gathered(prefix(wire.body), wire.body), deadline, wire.memory
        )

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Where the next bytes go."""
        return self._frames.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes of the answer; or of nothing we asked for, which ends the connection."""
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
            self._fail(garbage("the backend's answer is an empty frame", str(self._endpoint)))
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
    """An :data:`~infergate.transport.base.HttpUpstream` whose endpoints are framed."""

    def __init__(self, limits: Limits) -> None:
        self._pools: Final = Pools(limits, FrameExchange)

    async def exchange(self, wire: HttpRequest, endpoint: Endpoint, timeout: float) -> HttpResponse:
        """Send and wait for the whole answer. See :class:`~infergate.transport.base.Upstream`.

        Raises UNSUPPORTED for what is no POST.
        """
        if wire.method != "POST":
            raise GatewayError(
                Kind.UNSUPPORTED, "a backend spoken to in frames cannot be asked this"
            )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        pool = self._pools.of(endpoint)
        connection = pool.take() or await pool.connect(timeout)
        return await connection.ask(wire, deadline)

    async def drop(self, endpoint: Endpoint) -> None:
        """See :class:`~infergate.transport.base.Dropping`."""
        await self._pools.drop(endpoint)

    async def close(self) -> None:
        """Close all connections."""
        await self._pools.close()


class EitherUpstream:
    """An :data:`~infergate.transport.base.HttpUpstream` that speaks HTTP or frames, as each
    endpoint wants."""

    def __init__(
        self,
        limits: Limits,
        http: Callable[[Limits, ClientTls | None], HttpStreamUpstream] = H1Upstream,
        tls: ClientTls | None = None,
    ) -> None:
        """``http`` makes what speaks HTTP, also by ``tls``."""
        self._http: Final = http(limits, tls)
        self._frames: Final = FrameUpstream(limits)

    async def exchange(self, wire: HttpRequest, endpoint: Endpoint, timeout: float) -> HttpResponse:
        """See :class:`~infergate.transport.base.Upstream`."""
        upstream = self._frames if endpoint.framed else self._http
        return await upstream.exchange(wire, endpoint, timeout)

    def stream(
        self, wire: HttpRequest, endpoint: Endpoint, timeout: float | None
    ) -> AsyncGenerator[HttpResponse, None]:
        """See :class:`~infergate.transport.base.StreamUpstream`. Raises UNSUPPORTED where the
        endpoint wants frames."""
        if endpoint.framed:
            raise GatewayError(Kind.UNSUPPORTED, "frames carry no streams")
        return self._http.stream(wire, endpoint, timeout)

    async def drop(self, endpoint: Endpoint) -> None:
        """See :class:`~infergate.transport.base.Dropping`."""
        for upstream in (self._http, self._frames):
            if isinstance(upstream, Dropping):
                await upstream.drop(endpoint)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()
        await self._frames.close()
