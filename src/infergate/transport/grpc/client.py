"""A gRPC client on the built-in HTTP/2 engine.

Each endpoint has a small pool of connections: a call uses the first connection with a free stream,
and a new connection is opened only if no stream is free. A connection enters the pool when the
server's SETTINGS have arrived.

CONNECT is raised only if the server certainly did not process the call: no connection could be
opened, or the server refused the stream on two attempts (with REFUSED_STREAM, or a GOAWAY that
excludes the stream). After any other failure of a connection or stream, the server may have
processed the call, so BACKEND_GARBAGE is raised.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final

from infergate.core.connect_time import add_connect_seconds
from infergate.core.errors import GatewayError, Kind, backend_failure
from infergate.core.limits import Limits
from infergate.core.tls_settings import ClientTls
from infergate.core.wire import RpcRequest, RpcResponse, total_size
from infergate.transport.base import Endpoint, ExchangeCallbacks
from infergate.transport.client.connect import failure_origin, open_connection
from infergate.transport.client.pool import EndpointPools, PooledUpstream
from infergate.transport.client.response_waiter import ResponseWaiter
from infergate.transport.grpc.client_calls import StreamingClientCall, UnaryClientCall
from infergate.transport.grpc.client_connection import (
    GrpcClientConnection,
    Http2NotNegotiatedError,
    StreamRefused,
)
from infergate.transport.grpc.framing import MESSAGE_OVERHEAD
from infergate.transport.tls.client_context import NO_HTTP2, NO_TLS, ClientTlsContext

_MAX_CONNECTIONS: Final = 8
"""Maximum number of connections per endpoint. Further calls wait until other calls end."""
_MAX_ATTEMPTS: Final = 2
_PROTOCOL: Final = "h2"


class H2Upstream(PooledUpstream):
    """An :data:`~infergate.transport.base.RpcUpstream`. `tls` is described in `EndpointPools`."""

    def __init__(self, limits: Limits, tls: ClientTls | None = None) -> None:
        self._limits: Final = limits
        self._pools: Final = EndpointPools(functools.partial(_EndpointPool, limits), tls, _PROTOCOL)
        super().__init__(self._pools)

    async def exchange(self, wire: RpcRequest, endpoint: Endpoint, timeout: float) -> RpcResponse:
        self._check(wire)
        pool = self._pools[endpoint]
        return await self._exchange(wire, pool, pool.loop.time() + timeout, _MAX_ATTEMPTS)

    async def _exchange(
        self, wire: RpcRequest, pool: _EndpointPool, deadline: float, attempts: int
    ) -> RpcResponse:
        for _ in range(attempts):
            connection = pool.find_free() or await pool.acquire(deadline)
            waiter = ResponseWaiter[RpcResponse](pool.loop)
            call = UnaryClientCall(connection, wire, total_size(wire.message), deadline)
            call.callbacks = waiter
            try:
                return await waiter.wait()
            except StreamRefused as refused:
                reason = refused.with_traceback(None)  # the traceback would form a reference cycle
            except asyncio.CancelledError:
                call.cancel()
                raise
        raise _connect_error(pool.endpoint, reason)

    def begin(
        self,
        wire: RpcRequest,
        endpoint: Endpoint,
        timeout: float,
        callbacks: ExchangeCallbacks[RpcResponse],
    ) -> UnaryClientCall | None:
        pool = self._pools.get(endpoint)
        message = wire.message
        size = len(message[0]) if len(message) == 1 else total_size(message)
        if pool is None or size > self._limits.body + MESSAGE_OVERHEAD:
            return None
        connection = pool.find_free()
        if connection is None:
            return None
        deadline = pool.loop.time() + timeout
        call = UnaryClientCall(connection, wire, size, deadline)
        call.callbacks = callbacks
        call.retry = functools.partial(self._exchange, wire, pool, deadline, _MAX_ATTEMPTS - 1)
        return call

    async def stream(
        self, wire: RpcRequest, endpoint: Endpoint, timeout: float | None
    ) -> AsyncGenerator[RpcResponse, None]:
        self._check(wire)
        pool = self._pools[endpoint]
        deadline = None if timeout is None else pool.loop.time() + timeout
        for _ in range(_MAX_ATTEMPTS):
            connection = pool.find_free() or await pool.acquire(deadline)
            call = StreamingClientCall(connection, wire, total_size(wire.message), deadline)
            try:
                while (response := await call.next_response()) is not None:
                    yield response
            except StreamRefused as refused:
                reason = refused.with_traceback(None)
            else:
                return
            finally:
                call.close()
        raise _connect_error(endpoint, reason)

    def _check(self, wire: RpcRequest) -> None:
        if total_size(wire.message) > self._limits.body + MESSAGE_OVERHEAD:
            public = f"the message is over the limit of {self._limits.body} bytes"
            raise GatewayError(Kind.TOO_LARGE, public)


def _connect_error(endpoint: Endpoint, reason: BaseException) -> GatewayError:
    public = "the backend could not be reached"
    if isinstance(reason, Http2NotNegotiatedError):
        public = NO_HTTP2
    elif isinstance(reason, ssl.SSLError):
        public = NO_TLS
    detail = f"{endpoint}: {reason!r}"
    return GatewayError(Kind.CONNECT, public, origin=failure_origin(reason), detail=detail)


class _EndpointPool:
    """The connections to one endpoint, and the calls that wait for a free stream."""

    def __init__(self, limits: Limits, endpoint: Endpoint, tls: ClientTlsContext | None) -> None:
        self.endpoint: Final = endpoint
        self._limits: Final = limits
        self.loop: Final = asyncio.get_running_loop()
        self._tls: Final = tls
        self._connections: list[GrpcClientConnection] = []
        self._connecting: asyncio.Task[None] | None = None
        self._waiters: Final[deque[asyncio.Future[None]]] = deque()

    def find_free(self) -> GrpcClientConnection | None:
        """Return a connection with a free stream, or None."""
        for connection in self._connections:
            if connection.engine.can_open_stream:
                return connection
        return None

    async def acquire(self, deadline: float | None) -> GrpcClientConnection:
        """Wait until `deadline` (loop time) for a connection with a free stream, and return the
        connection. Raises CONNECT and TIMEOUT."""
        began = self.loop.time()
        try:
            while (connection := self.find_free()) is None:
                if len(self._connections) < _MAX_CONNECTIONS and self._connecting is None:
                    self._connecting = self.loop.create_task(self._connect())
                    self._connecting.add_done_callback(self._on_connect_done)
                await self._wait_for_change(deadline)
        finally:
            add_connect_seconds(self.loop.time() - began)
        if self._waiters:  # there may be capacity for another call
            self.notify_capacity()
        return connection

    async def _wait_for_change(self, deadline: float | None) -> None:
        """Wait in the queue until the capacity changes. Raises CONNECT and TIMEOUT."""
        waiter: asyncio.Future[None] = self.loop.create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except BaseException as error:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.notify_capacity()  # pass the wakeup on to the next waiter
            if isinstance(error, TimeoutError):
                public = "the backend could not be reached in time"
                if self._connections:
                    public = "the backend was busy with other requests"
                raise backend_failure(Kind.TIMEOUT, public, str(self.endpoint)) from None
            raise
        finally:
            # Break the cycle waiter → error → traceback → frame, which would keep messages alive.
            del waiter

    async def _connect(self) -> None:
        connection: GrpcClientConnection | None = None
        try:
            async with asyncio.timeout(self._limits.connect_time):
                connection = await open_connection(
                    self.loop, self._create_connection, self.endpoint, self._tls
                )
                await connection.wait_ready(_PROTOCOL if self._tls is not None else "")
        except BaseException:
            if connection is not None:
                connection.abort()
            raise

    def _create_connection(self) -> GrpcClientConnection:
        add = self._connections.append
        return GrpcClientConnection(
            self.loop, self.endpoint, self._limits, add, self.notify_capacity, self._waiters
        )

    def _on_connect_done(self, task: asyncio.Task[None]) -> None:
        self._connecting = None
        error = None if task.cancelled() else task.exception()
        waiting = tuple(self._waiters)
        self._waiters.clear()
        for waiter in waiting:
            if waiter.done():
                continue
            if error is None:  # the first call that finds no free stream opens a connection
                waiter.set_result(None)
            else:  # each waiter gets its own error, because handlers may modify the error
                waiter.set_exception(_connect_error(self.endpoint, error))

    def notify_capacity(self, connection: GrpcClientConnection | None = None) -> None:
        """Wake the next waiting call, because a stream may be free. If `connection` is given, which
        accepts no more calls, remove it and wake all waiting calls."""
        if connection is not None:
            if connection not in self._connections:
                return
            self._connections.remove(connection)
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                if connection is None:
                    return

    async def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        for connection in tuple(self._connections):
            connection.abort()
            await connection.closed_future
