"""Connections to backends, kept between exchanges: one exchange at a time on each.

*Strategy.* Each endpoint has a stack of idle connections; the one used last is used next, so the
others grow old and are closed. Connections are not bounded here: ``Admission`` bounds requests.

*Rule 1.* A connection goes back to the pool only when its answer is complete, nothing came after
it, the request was sent whole and neither side wants to close.
*Rule 2.* Whatever else happens (timeout, cancellation, garbage) closes the connection.
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
"""Seconds an idle connection is kept: less than servers do (uvicorn, so MLServer and KServe: 5 s),
lest a POST meet a connection that is just being closed."""


class StaleError(GatewayError):
    """The backend closed the connection without one byte of an answer."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            Kind.BACKEND_GARBAGE,
            "the backend closed the connection before answering",
            origin=Origin.BACKEND,
            detail=detail,
        )


class Pooled(asyncio.BaseProtocol):
    """One connection to ``endpoint``, of ``pool``: sends a request, waits for its answer. What the
    bytes mean is the matter of those derived from it."""

    def __init__(self, limits: Limits, endpoint: Endpoint, pool: Pool[Any]) -> None:
        self._limits = limits
        self._endpoint = endpoint
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._waiter: asyncio.Future[HttpResponse] | None = None
        self._answered = False  # one byte of it is enough
        self._share: MemoryShare = UNLIMITED  # of whoever waits
        self._counted = 0  # bytes of the answer that are counted there
        self.idle_since = 0.0

    async def _exchange(
        self, parts: Sequence[Buffer], deadline: float, memory: MemoryShare
    ) -> HttpResponse:
        """Send ``parts`` and wait for the answer until ``deadline`` (loop time). It is counted in
        ``memory``, where it stays if it comes."""
        if not self.usable:
            raise StaleError(str(self._endpoint))
        self._answered = False
        self._share, self._counted = memory, 0
        waiter: asyncio.Future[HttpResponse] = self._loop.create_future()
        self._waiter = waiter
        for part in parts:
            self._transport.write(part)
        alarm = self._loop.call_at(deadline, self._expire)
        try:
            return await waiter
        except asyncio.CancelledError:
            if self._waiter is waiter:  # else it was answered, and may be another's already
                self._waiter = None
                self._transport.abort()
                self._discount()
            raise
        finally:
            alarm.cancel()
            del waiter  # it knows its error, which knows this frame, and those of messages above

    def _count(self, size: int) -> bool:
        """Count ``size`` bytes more of the answer. False where they are refused, and so is the
        answer."""
        try:
            self._share.grow(size)
        except GatewayError as error:
            self._fail(error)
            return False
        self._counted += size
        return True

    def _discount(self) -> None:
        """There is no answer."""
        self._share.shrink(self._counted)
        self._share, self._counted = UNLIMITED, 0

    @property
    def usable(self) -> bool:
        """Whether it may carry another exchange."""
        return not self._transport.is_closing()

    def close(self) -> None:
        """Let go."""
        self._transport.abort()

    # ---- what asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by name

    def connection_lost(self, exc: BaseException | None) -> None:
        """The backend closed, or we did."""
        self._pool.lost(self)
        if self._waiter is None:
            return
        if self._answered:
            self._cut(exc)
        else:
            self._fail(StaleError(self._said(exc)))

    def _cut(self, exc: BaseException | None) -> None:
        """The connection ended inside an answer."""
        self._fail(garbage("the backend's answer broke off", self._said(exc)))

    # ---- the answer

    def _complete(self, response: HttpResponse, *, keep: bool) -> None:
        """``response`` is the answer. ``keep``: the connection may carry another exchange."""
        waiter, self._waiter = self._waiter, None
        assert waiter is not None
        self._share = UNLIMITED  # whose it was counts it as long as it lasts
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
                f"the backend's answer is over the limit of {self._limits.body} bytes "
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
        """An idle connection, or None."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def connect(self, timeout: float) -> Made:
        """A fresh connection within ``timeout`` and the connect limit. Raises CONNECT, TIMEOUT."""
        allowed = self._limits.connect_time
        kind, public = Kind.CONNECT, "the backend could not be reached"
        if timeout < allowed:
            allowed = timeout
            kind, public = Kind.TIMEOUT, "the backend could not be reached in time"
        try:
            async with asyncio.timeout(allowed):
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
        """Close all connections, busy ones too."""
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in tuple(self._open):
            connection.close()
        if self._open:
            self._emptied = self._loop.create_future()
            await self._emptied

    # ---- what connections tell

    def released(self, connection: Made) -> None:
        """It may carry another exchange."""
        connection.idle_since = self._loop.time()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = self._loop.call_later(_IDLE, self._close_old)

    def lost(self, connection: Made) -> None:
        """It is closed."""
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
    """A pool for each endpoint. ``tls``: whom those trust that are spoken to by it; None: whom the
    system does. Raises CertificateError."""

    def __init__(self, limits: Limits, make: Make[Made], tls: ClientTls | None = None) -> None:
        self._limits: Final = limits
        self._make: Final = make
        self._trust = None if tls is None else Trust(tls)
        self._of: dict[Endpoint, Pool[Made]] = {}

    def of(self, endpoint: Endpoint) -> Pool[Made]:
        """The pool of ``endpoint``."""
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
