"""A pooled HTTP/1.1 client for any response parser. If the backend was closing the connection, a
GET or HEAD is retried on a new connection. No other request is retried. Cookies, redirects and
proxies are not supported. Content encodings are decoded, but never requested."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from infergate.core import inflation
from infergate.core.errors import GatewayError, Kind, backend_garbage
from infergate.core.limits import Limits
from infergate.core.memory import MemoryAccount
from infergate.core.tls_settings import ClientTls
from infergate.core.wire import HttpRequest, HttpResponse, join_parts
from infergate.transport.base import Cancellable, Endpoint, ExchangeCallbacks
from infergate.transport.client.pool import (
    ConnectionFactory,
    EndpointPools,
    Pool,
    PooledUpstream,
    StaleError,
)
from infergate.transport.http1.event_stream import EventStreamConnection
from infergate.transport.http1.exchange import HttpExchangeConnection, ResponseReaderFactory
from infergate.transport.net.deferred_inflation import DeferredInflation, inflate_or_defer

_REPEATABLE: Final = frozenset({"GET", "HEAD"})


class Http1Upstream(PooledUpstream):
    """An ``HttpUpstream`` over HTTP/1.1."""

    stream_connection: type[EventStreamConnection] = EventStreamConnection
    """The class of the connections that ``stream`` opens."""

    def __init__(
        self,
        limits: Limits,
        tls: ClientTls | None,
        create: ConnectionFactory[HttpExchangeConnection],
        create_reader: ResponseReaderFactory,
    ) -> None:
        """``create_reader`` creates the readers of responses that may be streams."""
        self._limits: Final = limits
        self._pools: Final = EndpointPools(functools.partial(Pool, limits, create), tls)
        create_stream = functools.partial(self.stream_connection, create_reader)
        self._streams: Final = EndpointPools(functools.partial(Pool, limits, create_stream), tls)
        super().__init__(self._pools, self._streams)

    async def exchange(self, wire: HttpRequest, endpoint: Endpoint, timeout: float) -> HttpResponse:
        """Send a request and return the complete response within ``timeout`` seconds."""
        response = await self._exchange(wire, endpoint, timeout)
        if "content-encoding" in response.headers:
            return await _decode_content(response, self._limits.body, wire.memory)
        return response

    def begin(
        self,
        wire: HttpRequest,
        endpoint: Endpoint,
        timeout: float,
        callbacks: ExchangeCallbacks[HttpResponse],
    ) -> Cancellable | None:
        pool = self._pools.get(endpoint)
        if pool is None or wire.method in _REPEATABLE:
            return None
        connection = pool.take()
        if connection is None:
            return None
        exchange = _BegunExchange(connection, self._limits.body, wire.memory, callbacks)
        try:
            connection.begin(wire, _target(wire, endpoint), pool.loop.time() + timeout, exchange)
        except ValueError:  # ``exchange`` raises the error again
            pool.put_back(connection)
            return None
        return exchange

    async def _exchange(
        self, wire: HttpRequest, endpoint: Endpoint, timeout: float
    ) -> HttpResponse:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        pool = self._pools[endpoint]
        target = _target(wire, endpoint)
        try:
            connection = pool.take()
            if connection is not None:
                try:
                    return await connection.send(wire, target, deadline)
                except StaleError:
                    if wire.method not in _REPEATABLE:
                        raise
            connection = await pool.connect(deadline - loop.time())
            return await connection.send(wire, target, deadline)
        except ValueError as error:
            raise _cannot_send(error) from error

    async def stream(
        self, wire: HttpRequest, endpoint: Endpoint, timeout: float | None
    ) -> AsyncGenerator[HttpResponse, None]:
        """Send a request and yield the data of each event as a response. A response that is not
        an event stream is yielded as a single response. Each stream uses a new connection, because
        no stream is retried."""
        connect_timeout = self._limits.connect_time if timeout is None else timeout
        connection = await self._streams[endpoint].connect(connect_timeout)
        try:
            async with aclosing(connection.stream(wire, _target(wire, endpoint))) as responses:
                async for response in responses:
                    yield response
        except ValueError as error:
            raise _cannot_send(error) from error
        finally:
            connection.close()


class _BegunExchange:
    """The callbacks of an exchange in progress. A task decodes a compressed response."""

    def __init__(
        self,
        connection: HttpExchangeConnection,
        max_bytes: int,
        memory: MemoryAccount,
        callbacks: ExchangeCallbacks[HttpResponse],
    ) -> None:
        self._connection: Final = connection
        self._max_bytes: Final = max_bytes
        self._memory: Final = memory
        self._callbacks: ExchangeCallbacks[HttpResponse] | None = callbacks
        self._task: asyncio.Task[None] | None = None

    def on_response(self, response: HttpResponse) -> None:
        """Pass the response to the caller's callbacks. A compressed response is decoded first."""
        if "content-encoding" in response.headers:
            self._task = asyncio.get_running_loop().create_task(self._decode(response))
            return
        self._report(response)

    def _report(self, response: HttpResponse) -> None:
        callbacks, self._callbacks = self._callbacks, None
        if callbacks is not None:
            callbacks.on_response(response)

    def on_error(self, error: Exception) -> None:
        """Pass the error to the caller's callbacks, unless the exchange was cancelled."""
        callbacks, self._callbacks = self._callbacks, None
        if callbacks is not None:
            callbacks.on_error(error)

    def cancel(self) -> None:
        """Stop the exchange or the decoding. No callback is called afterwards."""
        self._callbacks = None
        if self._task is None:
            self._connection.cancel_exchange(self)
        else:
            self._task.cancel()

    async def _decode(self, response: HttpResponse) -> None:
        try:
            decoded = await _decode_content(response, self._max_bytes, self._memory)
        except Exception as error:  # noqa: BLE001 - the callbacks handle it
            self.on_error(error)
        else:
            self._report(decoded)


async def _decode_content(
    response: HttpResponse, max_bytes: int, memory: MemoryAccount
) -> HttpResponse:
    """Decode the content encoding, which a backend may apply although the gateway requests none. A
    response with an unknown encoding is returned unchanged."""
    data = join_parts(response.body)
    encoding = response.headers["content-encoding"].strip().lower()
    window = inflation.zlib_window_bits(encoding, data)
    if window is None:
        return response
    try:
        pieces = inflation.inflate_pieces(data, window, max_bytes, inflation.MAX_MEMBERS)
        body = inflate_or_defer(pieces, len(data), max_bytes)
        if isinstance(body, DeferredInflation):
            body = await body.inflate(memory)
    except inflation.CorruptDataError as error:
        public = f"the backend's response cannot be used: the {encoding} body {error}"
        raise backend_garbage(public) from None
    except inflation.InflatedTooLargeError:
        reason = f"the body is over the limit of {max_bytes} bytes"
        raise backend_garbage(f"the backend's response cannot be used: {reason}") from None
    headers = dict(response.headers)
    del headers["content-encoding"]
    return replace(response, headers=headers, body=[body])


def _target(wire: HttpRequest, endpoint: Endpoint) -> str:
    target = endpoint.path + wire.path or "/"
    return f"{target}?{wire.query}" if wire.query else target


def _cannot_send(error: ValueError) -> GatewayError:
    return GatewayError(Kind.BAD_REQUEST, f"the request cannot be sent over HTTP: {error}")
