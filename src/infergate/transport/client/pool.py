"""Pools of connections to backends. Each connection has one exchange at a time.

The most recently used idle connection is reused first, so that connections that are not needed
expire. A connection returns to the pool only if the request was sent completely, the response is
complete, no bytes follow the response, and neither side wants to close. Otherwise, the connection
is closed. ``Admission``, not the pool, limits the load."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar, cast

from infergate.core.connect_time import add_connect_seconds
from infergate.core.errors import GatewayError, Kind, Origin, backend_failure, backend_garbage
from infergate.core.limits import Limits
from infergate.core.memory import UNLIMITED, MemoryAccount
from infergate.core.tensor import Buffer
from infergate.core.tls_settings import ClientTls
from infergate.core.wire import HttpResponse
from infergate.transport.base import Endpoint, ExchangeCallbacks
from infergate.transport.client.connect import failure_origin, open_connection
from infergate.transport.client.response_waiter import ResponseWaiter
from infergate.transport.net.timer import Timer
from infergate.transport.tls.client_context import NO_TLS, ClientTlsContext

_MAX_IDLE_SECONDS: Final = 4.0
"""Seconds until an idle connection is closed. This time is less than the idle timeout of servers
(uvicorn, used by MLServer and KServe: 5 s), so that no POST is sent on a connection that is
closing."""


class StaleError(GatewayError):
    """The backend closed the connection before it sent any byte of a response."""

    def __init__(self, detail: str) -> None:
        public = "the backend closed the connection before it responded"
        super().__init__(Kind.BACKEND_GARBAGE, public, origin=Origin.BACKEND, detail=detail)


class PooledConnection(asyncio.BaseProtocol):
    """A connection of ``pool`` with one exchange at a time. A subclass implements the wire
    format."""

    def __init__(self, pool: Pool[Any]) -> None:
        self._limits = pool.limits
        self._endpoint = pool.endpoint
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._callbacks: ExchangeCallbacks[HttpResponse] | None = None  # of the current exchange
        self._timer: Final = Timer(self._loop, self._on_timeout)
        self._response_started = False
        self._memory: MemoryAccount = UNLIMITED  # the account of the waiting request
        self._charged_bytes = 0  # response bytes charged to _memory
        self.idle_since = 0.0

    async def _exchange(
        self, parts: Sequence[Buffer], deadline: float, memory: MemoryAccount
    ) -> HttpResponse:
        """Send ``parts`` and wait for the response until ``deadline`` (loop time). A complete
        response stays charged to ``memory``."""
        if not self.is_usable:
            raise StaleError(str(self._endpoint))
        waiter = ResponseWaiter[HttpResponse](self._loop)
        self._begin(parts, deadline, memory, waiter)
        try:
            return await waiter.wait()
        except asyncio.CancelledError:
            self.cancel_exchange(waiter)
            raise

    def _begin(
        self,
        parts: Sequence[Buffer],
        deadline: float,
        memory: MemoryAccount,
        callbacks: ExchangeCallbacks[HttpResponse],
    ) -> None:
        """Send ``parts``, and report the response, or a timeout at ``deadline`` (loop time)."""
        self._response_started = False
        self._memory, self._charged_bytes = memory, 0
        self._callbacks = callbacks
        for part in parts:
            self._transport.write(part)
        self._timer.set_at(deadline)

    def cancel_exchange(self, callbacks: ExchangeCallbacks[HttpResponse]) -> None:
        """Cancel the exchange that reports to ``callbacks``, unless it has ended."""
        if self._callbacks is callbacks:  # another exchange may already use the connection
            self._take_callbacks()
            self._transport.abort()
            self._release_bytes()

    def _take_callbacks(self) -> ExchangeCallbacks[HttpResponse] | None:
        """End the exchange and return its callbacks."""
        callbacks, self._callbacks = self._callbacks, None
        self._timer.stop()
        return callbacks

    def _charge_bytes(self, size: int) -> bool:
        """Charge ``size`` more bytes to the request's memory. If the memory is exhausted, fail the
        exchange and return False."""
        try:
            self._memory.grow(size)
        except GatewayError as error:
            self._fail(error)
            return False
        self._charged_bytes += size
        return True

    def _release_bytes(self) -> None:
        self._memory.shrink(self._charged_bytes)
        self._memory, self._charged_bytes = UNLIMITED, 0

    @property
    def _is_waiting(self) -> bool:
        return self._callbacks is not None

    @property
    def is_usable(self) -> bool:
        """Whether the connection can carry another exchange."""
        return not self._transport.is_closing()

    def close(self) -> None:
        self._transport.abort()

    # ---- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop has its own class

    def connection_lost(self, exc: BaseException | None) -> None:
        """Fail or complete the exchange in progress."""
        self._timer.close()
        self._pool.forget(self)
        if not self._is_waiting:
            return
        if self._response_started:
            self._on_cut_short(exc)
        else:
            self._fail(StaleError(self._error_detail(exc)))

    def _on_cut_short(self, exc: BaseException | None) -> None:
        self._fail(self._cut_short(exc))

    def _cut_short(self, exc: BaseException | None) -> GatewayError:
        return backend_garbage("the backend's response is incomplete", self._error_detail(exc))

    # ---- the response

    def _complete(self, response: HttpResponse, *, keep: bool) -> None:
        callbacks = self._take_callbacks()
        assert callbacks is not None
        self._memory = UNLIMITED  # the request's account keeps counting the response
        if keep and not self._transport.get_write_buffer_size():
            self._pool.put_back(self)
        else:
            self._transport.close()
        callbacks.on_response(response)

    def _fail(self, error: GatewayError) -> None:
        callbacks = self._take_callbacks()
        self._transport.abort()
        self._release_bytes()
        if callbacks is not None:
            callbacks.on_error(error)

    def _too_large(self) -> None:
        self._fail(self._too_long("response", "body", self._limits.body))

    def _too_long(self, part: str, limit: str, max_bytes: int) -> GatewayError:
        public = f"the backend's {part} is over the limit of {max_bytes} bytes (limits.{limit})"
        return backend_failure(Kind.TOO_LARGE, public, str(self._endpoint))

    def _on_timeout(self) -> None:
        public = "the backend did not respond in time"
        self._fail(backend_failure(Kind.TIMEOUT, public, str(self._endpoint)))

    def _error_detail(self, error: BaseException | None) -> str:
        return f"{self._endpoint}: {error!r}" if error else str(self._endpoint)


PooledT = TypeVar("PooledT", bound=PooledConnection)
ConnectionFactory = Callable[["Pool[Any]"], PooledT]


class Pool(Generic[PooledT]):
    """Connections to one endpoint."""

    def __init__(
        self,
        limits: Limits,
        create: ConnectionFactory[PooledT],
        endpoint: Endpoint,
        tls: ClientTlsContext | None,
    ) -> None:
        self.endpoint: Final = endpoint
        self.limits: Final = limits
        self._create: Final = create
        self._idle: list[PooledT] = []
        self._open: set[PooledT] = set()
        self.loop = asyncio.get_running_loop()
        self._all_closed: asyncio.Future[None] | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._tls: Final = tls

    def take(self) -> PooledT | None:
        """Return an idle connection, or None."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
        return None

    async def connect(self, timeout: float) -> PooledT:
        """Return a new connection. Raises CONNECT if connecting fails or takes longer than
        ``limits.connect_time``, and TIMEOUT if a shorter ``timeout`` (seconds) expires."""
        limit = self.limits.connect_time
        kind, public = Kind.CONNECT, "the backend could not be reached"
        if timeout < limit:
            limit = timeout
            kind, public = Kind.TIMEOUT, "the backend could not be reached in time"
        began = self.loop.time()
        try:
            async with asyncio.timeout(limit):
                connection = await open_connection(
                    self.loop, lambda: self._create(self), self.endpoint, self._tls
                )
        except OSError as error:
            if not isinstance(error, TimeoutError):
                kind = Kind.CONNECT
            if isinstance(error, ssl.SSLError):
                public = NO_TLS
            detail = f"{self.endpoint}: {error!r}"
            raise GatewayError(kind, public, origin=failure_origin(error), detail=detail) from error
        finally:
            add_connect_seconds(self.loop.time() - began)
        if connection.is_usable:
            self._open.add(connection)
        return connection

    async def close(self) -> None:
        """Close all connections, including connections with an exchange in progress."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for connection in tuple(self._open):
            connection.close()
        if self._open:
            self._all_closed = self.loop.create_future()
            await self._all_closed

    # ---- called by connections

    def put_back(self, connection: PooledT) -> None:
        """Take back a connection that can carry another exchange."""
        connection.idle_since = self.loop.time()
        self._idle.append(connection)
        if self._sweep_timer is None:
            self._sweep_timer = self.loop.call_later(_MAX_IDLE_SECONDS, self._close_idle)

    def forget(self, connection: PooledT) -> None:
        self._open.discard(connection)
        if self._all_closed is not None and not self._open and not self._all_closed.done():
            self._all_closed.set_result(None)
        if connection in self._idle:
            self._idle.remove(connection)

    def _close_idle(self) -> None:
        self._sweep_timer = None
        idle_limit = self.loop.time() - _MAX_IDLE_SECONDS
        while self._idle and self._idle[0].idle_since <= idle_limit:
            self._idle.pop(0).close()
        if self._idle:
            self._sweep_timer = self.loop.call_at(
                self._idle[0].idle_since + _MAX_IDLE_SECONDS, self._close_idle
            )


AnyPool = TypeVar("AnyPool")


class EndpointPools(dict[Endpoint, AnyPool]):
    """The pool of each endpoint. ``create`` creates it on first use. ``tls`` holds the authorities
    and the client certificate; None selects the system's authorities. ``protocol`` is offered in
    ALPN. Raises CertificateError."""

    def __init__(
        self,
        create: Callable[[Endpoint, ClientTlsContext | None], AnyPool],
        tls: ClientTls | None = None,
        protocol: str = "http/1.1",
    ) -> None:
        super().__init__()
        self._create: Final = create
        self._protocol: Final = protocol
        self._tls = None if tls is None else ClientTlsContext(tls, protocol)

    def __missing__(self, endpoint: Endpoint) -> AnyPool:
        if endpoint.tls and self._tls is None:
            self._tls = ClientTlsContext(None, self._protocol)
        pool = self[endpoint] = self._create(endpoint, self._tls if endpoint.tls else None)
        return pool


class PooledUpstream:
    """An upstream that uses the connections in ``pools``."""

    def __init__(self, *pools: EndpointPools[Any]) -> None:
        self._all_pools: Final = pools

    async def disconnect(self, endpoint: Endpoint) -> None:
        for pools in self._all_pools:
            if (pool := pools.pop(endpoint, None)) is not None:
                await pool.close()

    async def close(self) -> None:
        for pools in self._all_pools:
            closing = tuple(pools.values())
            pools.clear()
            await asyncio.gather(*(pool.close() for pool in closing))
