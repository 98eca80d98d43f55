"""One connection to an HTTP/1.1 backend for one answer, which may be a stream of events.

*Strategy.* See ``pool`` and ``http_exchange``. Events are cut out of the answer's bytes as they are
pulled.

*Rule.* The connection is read once for each time that nothing whole is left of what was read: a
stream that nobody pulls stops its server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

from infergate import __version__
from infergate.core import events
from infergate.core.errors import GatewayError, Kind, Origin, garbage
from infergate.core.limits import Limits
from infergate.core.tensor import Buffer
from infergate.core.wire import NO_HEADERS, HttpRequest, HttpResponse, size
from infergate.transport import http_head
from infergate.transport.base import Endpoint
from infergate.transport.http_parser import (
    NOT_HTTP,
    HttpResponseParser,
    RawResponseMessage,
    StreamReader,
    response_parser,
)
from infergate.transport.pool import Pool, Pooled, StaleError


class EventExchange(Pooled, asyncio.Protocol):
    """See the module."""

    def __init__(self, limits: Limits, endpoint: Endpoint, pool: Pool[Any]) -> None:
        super().__init__(limits, endpoint, pool)
        self._lines: Final = (
            f"host: {endpoint.authority}\r\nuser-agent: infergate/{__version__}\r\n"
        )
        self._parser: HttpResponseParser | None = None
        self._message: RawResponseMessage | None = None
        self._headers: Mapping[str, str] = NO_HEADERS
        self._payload: StreamReader | None = None
        self._events: events.Events | None = None
        self._parts: list[Buffer] = []
        self._received = 0
        self._is_over = False
        self._error: GatewayError | None = None
        self._arrived: Final = asyncio.Event()

    async def ask(self, wire: HttpRequest, target: str) -> AsyncGenerator[HttpResponse, None]:
        """Send ``wire`` to ``target`` and give each event of the answer, or the whole of it where
        it is none of events.

        Raises GatewayError, and ValueError for a request that HTTP cannot carry.
        """
        head = http_head.write_request_head(
            wire.method, target, wire.headers, size(wire.body), self._lines
        )
        self._parser = response_parser(self._loop, wire.method)
        for part in http_head.gathered(head, wire.body):
            self._transport.write(part)
        while True:
            while (data := self._cut_out()) is not None:
                yield self._answer([data])
            if self._error is not None:
                raise self._error
            if self._is_over:
                break
            self._arrived.clear()
            if not self._transport.is_closing():
                self._transport.resume_reading()
            await self._arrived.wait()
        if self._events is None:
            yield self._answer(self._parts)
        elif not self._events.is_between:
            raise self._broke_off(None)

    # ---- what asyncio tells

    def data_received(self, data: bytes) -> None:
        """Bytes of the answer; or of nothing we asked for, which ends the connection."""
        if self._parser is None or self._is_over:
            self._transport.abort()
            return
        self._answered = True
        try:
            messages, _, _ = self._parser.feed_data(data)
        except NOT_HTTP as error:
            self._end(garbage("the backend's answer is not valid HTTP", self._said(error)))
            return
        for message, payload in messages:
            if self._message is None and message.code >= 200:
                self._message, self._payload = message, payload
                self._headers = http_head.lowered(message.headers.items())
                kind = self._headers.get("content-type", "").partition(";")[0].strip().lower()
                if kind == events.TYPE:
                    self._events = events.Events(self._limits.json)
        if self._payload is not None:
            self._gather(self._payload)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The backend closed, or we did."""
        self._pool.lost(self)
        if self._is_over or self._parser is None:
            return
        if not self._answered:
            self._end(StaleError(self._said(exc)))
            return
        try:
            if exc is None:
                self._parser.feed_eof()  # the end of a body without a length
        except NOT_HTTP as error:
            exc = error
        if exc is not None or self._payload is None:
            self._end(self._broke_off(exc))
            return
        self._gather(self._payload)
        if not self._is_over:
            self._end(self._broke_off(None))

    # ---- the answer

    def _gather(self, payload: StreamReader) -> None:
        """Take what the parser has of the body."""
        chunk = payload.read_nowait()
        if self._events is not None:
            self._events.feed(chunk)
            if not self._transport.is_closing():
                self._transport.pause_reading()
            self._arrived.set()
        elif chunk:
            self._received += len(chunk)
            self._parts.append(chunk)
            if self._received > self._limits.body:
                self._end(self._too_long("answer", self._limits.body))
                return
        if payload.is_eof():
            self._end(None)

    def _cut_out(self) -> bytes | None:
        """The data of the next event that is here whole."""
        if self._events is None:
            return None
        try:
            return self._events.next()
        except GatewayError as error:
            self._end(self._too_long("event", self._limits.json))
            assert self._error is not None
            raise self._error from error

    def _answer(self, body: list[Buffer]) -> HttpResponse:
        message = self._message
        assert message is not None
        return HttpResponse(message.code, self._headers, body)

    def _end(self, error: GatewayError | None) -> None:
        """Nothing more is taken of the answer; what went wrong, if anything did."""
        self._is_over = True
        self._error = error
        self._transport.abort()
        self._arrived.set()

    def _broke_off(self, error: BaseException | None) -> GatewayError:
        return garbage("the backend's answer broke off", self._said(error))

    def _too_long(self, what: str, most: int) -> GatewayError:
        return GatewayError(
            Kind.TOO_LARGE,
            f"the backend's {what} is over the limit of {most} bytes",
            origin=Origin.BACKEND,
            detail=str(self._endpoint),
        )
