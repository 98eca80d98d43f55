"""Pooled connections to backends, with one exchange at a time on each.

Each endpoint has a stack of idle connections. The most recently used one is reused first, so that
the others age and are closed. The number of connections is not limited here: ``Admission`` limits
requests.

- Rule 1. A connection returns to the pool only if its response is complete, nothing followed it,
  the request was sent completely, and neither side wants to close.
- Rule 2. Anything else (timeout, cancellation, malformed data) closes the connection.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar, cast

from infergate.core.certificates import ClientTls
from infergate.core.errors import GatewayError, Kind, Origin, garbage
from infergate.core.limits import Limits
from infergate.core.memory import UNLIMITED, MemoryShare
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpResponse
from infergate.transport.base import Endpoint
from infergate.transport.connecting import connected, origin_of
from infergate.transport.tls import NO_TLS, Trust

_IDLE: Final = 4.0
"""Seconds that an idle connection is kept.

Less than servers do (uvicorn, hence MLServer and KServe: 5 s), so that a POST does not meet a
connection that is being closed.
"""


class StaleError(GatewayError):
    """The backend closed the connection before it sent any byte of a response."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            Kind.BACKEND_GARBAGE,
            "the backend closed the connection before answering",
            origin=Origin.BACKEND,
            detail=detail,
        )


class Pooled(asyncio.BaseProtocol):
    """One connection to ``endpoint`` that belongs to ``pool``: sends a request, waits for the
    response.

    Subclasses interpret the bytes.
    """

    def __init__(self, limits: Limits, endpoint: Endpoint, pool: Pool[Any]) -> None:
        self._limits = limits
        self._endpoint = endpoint
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._waiter: asyncio.Future[HttpResponse] | None = None
        self._answered = False  # at least one byte of the response has arrived
        self._share: MemoryShare = UNLIMITED  # the account of the waiting request
        self._counted = 0  # response bytes counted in _share
        self.idle_since = 0.0

    async def _exchange(
        self, parts: Sequence[Buffer], deadline: float, memory: MemoryShare
    ) -> HttpResponse:
        """Send ``parts`` and wait for the response until ``deadline`` (loop time).

        The response is counted in ``memory``, and stays counted there if it is complete.
        """
        if not self.usable:
            raise StaleError(str(self._endpoint))
        self._answered = False
        self._share, self._counted = memory, 0
        waiter: asyncio.Future[HttpResponse] = self._loop.create_future()
        self._waiter = waiter
        for part in parts:
            self._transport.write(part)
        timeout_handle = self._loop.call_at(deadline, self._expire)
        try:
            return await waiter
        except asyncio.CancelledError:
            if self._waiter is waiter:  # otherwise complete, and perhaps in use again
                self._waiter = None
                self._transport.abort()
                self._discount()
            raise
        finally:
            timeout_handle.cancel()
            del waiter  # its error refers to this frame and to frames that hold messages

    def _count(self, size: int) -> bool:
        """Count ``size`` more bytes of the response.

        If the memory limit refuses them, the exchange fails; return False.
        """
        try:
            self._share.grow(size)
        except GatewayError as error:
            self._fail(error)
            return False
        self._counted += size
        return True

    def _discount(self) -> None:
        """Stop counting a response that was given up."""
        self._share.shrink(self._counted)
        self._share, self._counted = UNLIMITED, 0

    @property
    def usable(self) -> bool:
        """Whether the connection can carry another exchange."""
        return not self._transport.is_closing()

    def close(self) -> None:
        """Close the connection."""
        self._transport.abort()

    # ---- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def connection_lost(self, exc: BaseException | None) -> None:
        """Fail or complete the exchange in progress."""
        self._pool.lost(self)
        if self._waiter is None:
            return
        if self._answered:
            self._cut(exc)
        else:
            self._fail(StaleError(self._said(exc)))

    def _cut(self, exc: BaseException | None) -> None:
        """Handle the end of the connection inside a response."""
        self._fail(garbage("the backend's response broke off", self._said(exc)))

    # ---- the response

    def _complete(self, response: HttpResponse, *, keep: bool) -> None:
        """Finish the exchange with ``response``; ``keep`` allows another exchange on the
        connection."""
        waiter, self._waiter = self._waiter, None
        assert waiter is not None
        self._share = UNLIMITED  # the request's account keeps counting the response
        if keep and not self._transport.get_write_buffer_size():
            self._pool.released(self)
        else:
            self._transport.close()
        if not waiter.done():
            waiter.set_result(response)

    def _fail(self, error: GatewayError) -> None:
        waiter, self._waiter = self._waiter, None
        self._transport.abort()
        self._discount()
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    def _too_large(self) -> None:
        self._fail(
            GatewayError(
                Kind.TOO_LARGE,
                f"the backend's response is over the limit of {self._limits.body} bytes "
                "(limits.body)",
                origin=Origin.BACKEND,
                detail=str(self._endpoint),
            )
        )

    def _expire(self) -> None:
        self._fail(
            GatewayError(
                Kind.TIMEOUT,
                "the backend did not answer in time",
                origin=Origin.BACKEND,
                detail=str(self._endpoint),
            )
        )

    def _said(self, error: BaseException | None) -> str:
        return f"{self._endpoint}: {error!r}" if error else str(self._endpoint)


Made = TypeVar("Made", bound=Pooled)
Make = Callable[[Limits, Endpoint, "Pool[Any]"], Made]


class Pool(Generic[Made]):
    """Connections to one endpoint."""

    def __init__(
        self, endpoint: Endpoint, limits: Limits, make: Make[Made], trust: Trust | None = None
    ) -> None:
        self._endpoint: Final = endpoint
        self._limits: Final = limits
        self._make: Final = make
        self._idle: list[Made] = []
        self._open: set[Made] = set()
        self._loop = asyncio.get_running_loop()
        self._emptied: asyncio.Future[None] | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._trust: Final = trust if endpoint.tls else None

    def take(self) -> Made | None:
        """Return an idle connection, or None."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def connect(self, timeout: float) -> Made:
        """Return a new connection within ``timeout`` and ``limits.connect_time``. Raises CONNECT,
        TIMEOUT."""
        limit = self._limits.connect_time
        kind, public = Kind.CONNECT, "the backend could not be reached"
        if timeout < limit:
            limit = timeout
            kind, public = Kind.TIMEOUT, "the backend could not be reached in time"
        try:
            async with asyncio.timeout(limit):
                connection = await self._connected()
        except OSError as error:
            if not isinstance(error, TimeoutError):
                kind = Kind.CONNECT
            if isinstance(error, ssl.SSLError):
                public = NO_TLS
            detail = f"{self._endpoint}: {error!r}"
            raise GatewayError(kind, public, origin=origin_of(error), detail=detail) from error
        if connection.usable:
            self._open.add(connection)
        return connection

    async def _connected(self) -> Made:
        return await connected(self._loop, self._new, self._endpoint, self._trust)

    def _new(self) -> Made:
        return self._make(self._limits, self._endpoint, self)

    async def close(self) -> None:
        """Close all connections, including busy ones."""
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in tuple(self._open):
            connection.close()
        if self._open:
            self._emptied = self._loop.create_future()
            await self._emptied

    # ---- called by connections

    def released(self, connection: Made) -> None:
        """Take back a connection that can carry another exchange."""
        connection.idle_since = self._loop.time()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = self._loop.call_later(_IDLE, self._close_old)

    def lost(self, connection: Made) -> None:
        """Forget a closed connection."""
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


class Pools(Generic[Made]):
    """One pool per endpoint.

    ``tls`` has the authorities of TLS endpoints; None means those of the system. Raises
    CertificateError.
    """

    def __init__(self, limits: Limits, make: Make[Made], tls: ClientTls | None = None) -> None:
        self._limits: Final = limits
        self._make: Final = make
        self._trust = None if tls is None else Trust(tls)
        self._of: dict[Endpoint, Pool[Made]] = {}

    def of(self, endpoint: Endpoint) -> Pool[Made]:
        """Return the pool of ``endpoint``."""
        pool = self._of.get(endpoint)
        if pool is None:
            if endpoint.tls and self._trust is None:
                self._trust = Trust(None)
            pool = Pool(endpoint, self._limits, self._make, self._trust)
            self._of[endpoint] = pool
        return pool

    async def drop(self, endpoint: Endpoint) -> None:
        """Close the connections to ``endpoint``."""
        if (pool := self._of.pop(endpoint, None)) is not None:
            await pool.close()

    async def close(self) -> None:
        """Close all connections."""
        pools, self._of = list(self._of.values()), {}
        for pool in pools:
            await pool.close()
