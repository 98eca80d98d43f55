"""One connection to an HTTP/1.1 backend: one exchange at a time.

*Strategy.* Like ``http_connection``, a state machine over aiohttp's parser. A parser is made for
each exchange, so nothing of one answer can leak into the next.

*Rule 1.* A connection goes back to the pool only when the answer is complete, nothing came after
it, the request was sent whole and neither side wants to close.
*Rule 2.* Whatever else happens (timeout, cancellation, garbage) closes the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from infergate.core.errors import GatewayError, Kind, Origin, garbage
from infergate.core.limits import Limits
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse, size
from infergate.transport import http_head
from infergate.transport.http_parser import (
    NOT_HTTP,
    HttpResponseParser,
    RawResponseMessage,
    StreamReader,
    response_parser,
)


class StaleError(GatewayError):
    """The backend closed the connection without one byte of an answer."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            Kind.BACKEND_GARBAGE,
            "the backend closed the connection before answering",
            origin=Origin.BACKEND,
            detail=detail,
        )


class Exchange(asyncio.Protocol):
    """See the module. ``lines`` are our own header lines; ``on_idle`` and ``on_lost`` tell the
    pool. ``authority`` is for the log."""

    def __init__(
        self,
        limits: Limits,
        authority: str,
        lines: str,
        on_idle: Callable[[Exchange], None],
        on_lost: Callable[[Exchange], None],
    ) -> None:
        self._limits = limits
        self._authority = authority
        self._lines = lines
        self._on_idle = on_idle
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._parser: HttpResponseParser | None = None
        self._waiter: asyncio.Future[HttpResponse] | None = None
        self._message: RawResponseMessage | None = None
        self._payload: StreamReader | None = None
        self._parts: list[Buffer] = []
        self._received = 0
        self._answered = False
        self.idle_since = 0.0

    # ---- what the pool asks

    async def ask(self, wire: HttpRequest, target: str, deadline: float) -> HttpResponse:
        """Send ``wire`` to ``target`` and wait for the answer until ``deadline`` (loop time).

        Raises GatewayError, and ValueError for a request that HTTP cannot carry.
        """
        head = http_head.write_request_head(
            wire.method, target, wire.headers, size(wire.body), self._lines
        )
        self._parser = response_parser(self._loop, wire.method)
        if not self.usable:
            raise StaleError(self._authority)
        self._message = self._payload = None
        self._parts = []
        self._received = 0
        self._answered = False
        waiter: asyncio.Future[HttpResponse] = self._loop.create_future()
        self._waiter = waiter
        for part in http_head.gathered(head, wire.body):
            self._transport.write(part)
        alarm = self._loop.call_at(deadline, self._expire)
        try:
            return await waiter
        except asyncio.CancelledError:
            self._waiter = None
            self._transport.abort()
            raise
        finally:
            alarm.cancel()

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
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Bytes of the answer; or of nothing we asked for, which ends the connection."""
        parser = self._parser
        if parser is None or self._waiter is None:
            self._transport.abort()
            return
        self._answered = True
        try:
            messages, _, _ = parser.feed_data(data)
        except NOT_HTTP as error:
            self._fail(garbage("the backend's answer is not valid HTTP", self._said(error)))
            return
        for message, payload in messages:
            if self._message is not None:
                break  # a second answer: seen and dropped in _complete
            if message.code >= 200:
                self._message, self._payload = message, payload
                if not self._fits(message.headers.get("content-length")):
                    return
        if self._message is None or not self._gather():
            return
        assert self._payload is not None
        if self._payload.is_eof():
            self._complete(more=messages[-1:] and messages[-1][0] is not self._message)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The backend closed, or we did."""
        self._on_lost(self)
        if self._waiter is None:
            return
        if not self._answered:
            self._fail(StaleError(self._said(exc)))
            return
        broken = garbage("the backend's answer broke off", self._said(exc))
        if exc is not None or self._message is None or self._payload is None:
            self._fail(broken)
            return
        assert self._parser is not None
        try:
            self._parser.feed_eof()  # the end of a body without a length
        except NOT_HTTP:
            self._fail(broken)
            return
        if self._gather():
            self._complete(more=True)

    # ---- the answer

    def _fits(self, announced: str | None) -> bool:
        if announced is not None and announced.isdecimal() and int(announced) > self._limits.body:
            self._too_large()
            return False
        return True

    def _too_large(self) -> None:
        self._fail(
            GatewayError(
                Kind.TOO_LARGE,
                f"the backend's answer is over the limit of {self._limits.body} bytes",
                origin=Origin.BACKEND,
                detail=self._authority,
            )
        )

    def _gather(self) -> bool:
        """Take what the parser has of the body. False where that ended the exchange."""
        assert self._payload is not None
        chunk = self._payload.read_nowait()
        if chunk:
            self._received += len(chunk)
            self._parts.append(chunk)
            if self._received > self._limits.body:
                self._too_large()
                return False
        return True

    def _complete(self, *, more: object) -> None:
        waiter, message = self._waiter, self._message
        assert waiter is not None
        assert message is not None
        self._waiter = self._parser = None
        if more or message.should_close or self._transport.get_write_buffer_size():
            self._transport.close()
        else:
            self._on_idle(self)
        if not waiter.done():
            headers = http_head.lowered(message.headers.items())
            waiter.set_result(HttpResponse(message.code, headers, self._parts))

    def _fail(self, error: GatewayError) -> None:
        waiter = self._waiter
        self._waiter = self._parser = None
        self._transport.abort()
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    def _expire(self) -> None:
        self._fail(
            GatewayError(
                Kind.TIMEOUT,
                "the backend did not answer in time",
                origin=Origin.BACKEND,
                detail=self._authority,
            )
        )

    def _said(self, error: BaseException | None) -> str:
        return f"{self._authority}: {error!r}" if error else self._authority
