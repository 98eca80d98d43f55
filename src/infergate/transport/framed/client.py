"""A pooled client for size-prefixed frames. Only POST requests can be sent, and no request is
retried. The response frame becomes the body of a 200 response, because frames have no status.
``HttpOrFrameUpstream`` also supports endpoints that use HTTP."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from infergate.core.errors import GatewayError, Kind, backend_garbage
from infergate.core.limits import Limits
from infergate.core.memory import MIN_ACCOUNTED_BYTES
from infergate.core.tls_settings import ClientTls
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.transport.base import (
    CallbackUpstream,
    Cancellable,
    Endpoint,
    ExchangeCallbacks,
    HttpStreamingUpstream,
)
from infergate.transport.client.pool import EndpointPools, Pool, PooledConnection, PooledUpstream
from infergate.transport.framed.frame_reader import PREFIX, FrameReader, encode_prefix
from infergate.transport.http1 import message_head
from infergate.transport.http1.client import H1Upstream

_HTTP_AS_LENGTH: Final = PREFIX.unpack(b"HTTP")[0]
"""The start of an HTTP response, interpreted as a frame length (over 1 GB)."""


class FrameClientConnection(PooledConnection, asyncio.BufferedProtocol):
    """A connection to a backend that responds with frames."""

    def __init__(self, pool: Pool[Any]) -> None:
        super().__init__(pool)
        self._frames = FrameReader()
        self._is_frame_open = False

    async def send(self, wire: HttpRequest, deadline: float) -> HttpResponse:
        """Send the body of ``wire`` and wait for the response until ``deadline`` (loop time)."""
        return await self._exchange(
            message_head.join_small(encode_prefix(wire.body), wire.body), deadline, wire.memory
        )

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._frames.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Process bytes of the response. Unsolicited bytes end the connection."""
        if self._callbacks is None:
            self._transport.abort()
            return
        self._response_started = True
        self._frames.buffer_written(nbytes)
        if not self._is_frame_open:
            self._open_frame()
        if self._is_frame_open:
            self._read_frame()

    def _open_frame(self) -> None:
        length = self._frames.announced_length
        if length is None:
            return
        if not length:
            public = "the backend's response is an empty frame"
            self._fail(backend_garbage(public, str(self._endpoint)))
        elif length <= self._limits.body:
            if length <= MIN_ACCOUNTED_BYTES or self._charge_bytes(length):
                self._frames.open(length)
                self._is_frame_open = True
        elif length == _HTTP_AS_LENGTH:
            self._fail(backend_garbage("the backend speaks HTTP, not frames", str(self._endpoint)))
        else:
            self._too_large()

    def _read_frame(self) -> None:
        body = self._frames.take()
        if body is not None:
            self._is_frame_open = False
            self._complete(HttpResponse(200, body=[body]), keep=not self._frames.has_partial_frame)


class FrameUpstream(PooledUpstream):
    """An ``HttpUpstream`` for framed endpoints."""

    def __init__(self, limits: Limits) -> None:
        create_pool = functools.partial(Pool, limits, FrameClientConnection)
        self._pools: Final = EndpointPools[Pool[FrameClientConnection]](create_pool)
        super().__init__(self._pools)

    async def exchange(self, wire: HttpRequest, endpoint: Endpoint, timeout: float) -> HttpResponse:
        """Run an exchange within ``timeout`` seconds. Raises UNSUPPORTED for methods other than
        POST."""
        if wire.method != "POST":
            public = f"a backend that uses frames supports only POST requests, not {wire.method}"
            raise GatewayError(Kind.UNSUPPORTED, public)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        pool = self._pools[endpoint]
        connection = pool.take() or await pool.connect(timeout)
        return await connection.send(wire, deadline)


class HttpOrFrameUpstream:
    """An ``HttpUpstream`` that uses HTTP or frames, depending on the endpoint."""

    def __init__(
        self,
        limits: Limits,
        create_http: Callable[[Limits, ClientTls | None], HttpStreamingUpstream] = H1Upstream,
        tls: ClientTls | None = None,
    ) -> None:
        """``create_http`` creates the HTTP upstream. Only this upstream supports TLS."""
        self._http: Final = create_http(limits, tls)
        self._begin: Final = self._http.begin if isinstance(self._http, CallbackUpstream) else None
        self._frames: Final = FrameUpstream(limits)

    async def exchange(self, wire: HttpRequest, endpoint: Endpoint, timeout: float) -> HttpResponse:
        upstream = self._frames if endpoint.framed else self._http
        return await upstream.exchange(wire, endpoint, timeout)

    def begin(
        self,
        wire: HttpRequest,
        endpoint: Endpoint,
        timeout: float,
        callbacks: ExchangeCallbacks[HttpResponse],
    ) -> Cancellable | None:
        if self._begin is None or endpoint.framed:
            return None
        return self._begin(wire, endpoint, timeout, callbacks)

    def stream(
        self, wire: HttpRequest, endpoint: Endpoint, timeout: float | None
    ) -> AsyncGenerator[HttpResponse, None]:
        """Run a stream over HTTP. Raises UNSUPPORTED for framed endpoints."""
        if endpoint.framed:
            public = "a backend that uses frames does not support streams"
            raise GatewayError(Kind.UNSUPPORTED, public)
        return self._http.stream(wire, endpoint, timeout)

    async def disconnect(self, endpoint: Endpoint) -> None:
        await self._http.disconnect(endpoint)
        await self._frames.disconnect(endpoint)

    async def close(self) -> None:
        await self._http.close()
        await self._frames.close()
