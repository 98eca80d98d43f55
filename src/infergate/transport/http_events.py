"""One HTTP/1.1 exchange whose response may be a stream of server-sent events.

The connection has no other exchange. Events are cut from the received bytes as they are pulled,
and the socket is read only when no complete event is left, so a stream that is not pulled stops
its server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final

from infergate import __version__
from infergate.core import events
from infergate.core.errors import GatewayError, Kind, Origin, garbage
from infergate.core.limits import Limits
from infergate.core.memory import SMALL
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse, size
from infergate.transport import http_head
from infergate.transport.base import Endpoint
from infergate.transport.http_exchange import AnswerReader, Read
from infergate.transport.pool import Pool, Pooled, StaleError


class EventExchange(Pooled, asyncio.Protocol):
    """A connection for one exchange; yields the events of the response."""

    def __init__(self, read: Read, limits: Limits, endpoint: Endpoint, pool: Pool[Any]) -> None:
        super().__init__(limits, endpoint, pool)
        self._read: Final = read
        self._lines: Final = (
            f"host: {endpoint.authority}\r\nuser-agent: infergate/{__version__}\r\n"
        )
        self._reader: AnswerReader | None = None
        self._events: events.Events | None = None
        self._parts: list[Buffer] = []
        self._received = 0
        self._is_over = False
        self._error: GatewayError | None = None
        self._arrived: Final = asyncio.Event()

    async def ask(self, wire: HttpRequest, target: str) -> AsyncGenerator[HttpResponse, None]:
        """Send ``wire`` to ``target`` and yield each event, or the whole response if it is not an
        event stream.

        Raises GatewayError, and ValueError for a request that HTTP cannot carry.
        """
        head = http_head.write_request_head(
            wire.method, target, wire.headers, size(wire.body), self._lines
        )
        self._reader = reader = self._read(wire.method, self._limits.response_header)
        self._share = wire.memory
        for part in http_head.gathered(head, wire.body):
            self._transport.write(part)
        try:
            while True:
                while (data := self._cut_out()) is not None:
                    self._hold(len(data))
                    yield HttpResponse(reader.status, reader.headers, [data])
                if self._error is not None:
                    raise self._error
                if self._is_over:
                    break
                self._arrived.clear()
                if not self._transport.is_closing():
                    self._transport.resume_reading()
                await self._arrived.wait()
            if self._events is None:
                yield HttpResponse(reader.status, reader.headers, self._parts)
            elif not self._events.is_between:
                raise self._broke_off(None)
        finally:
            self._discount()

    # ---- called by asyncio

    def data_received(self, data: bytes) -> None:
        """Process bytes of the response; unsolicited bytes end the connection."""
        reader = self._reader
        if reader is None or self._is_over:
            self._transport.abort()
            return
        self._answered = True
        had_head = reader.status
        try:
            reader.feed(data)
        except ValueError as error:
            self._end(garbage("the backend's response is not valid HTTP", self._said(error)))
            return
        if not reader.status:
            return
        if not had_head:
            kind = reader.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind == events.TYPE:
                self._events = events.Events(self._limits.json)
        self._gather(reader)

    def connection_lost(self, exc: BaseException | None) -> None:
        """End the response, or fail it if it is incomplete."""
        self._pool.lost(self)
        reader = self._reader
        if self._is_over or reader is None:
            return
        if not self._answered:
            self._end(StaleError(self._said(exc)))
            return
        try:
            if exc is None:
                reader.end()
        except ValueError as error:
            exc = error
        if exc is not None or not reader.status:
            self._end(self._broke_off(exc))
            return
        self._gather(reader)

    # ---- the response

    def _gather(self, reader: AnswerReader) -> None:
        """Take the received part of the body."""
        chunk = reader.take()
        if self._events is not None:
            self._events.feed(chunk)
            self._hold(self._events.held)
            if not self._transport.is_closing():
                self._transport.pause_reading()
            self._arrived.set()
        elif chunk:
            self._received += len(chunk)
            self._parts.append(chunk)
            if self._received > self._limits.body:
                self._end(self._too_long("response", "body", self._limits.body))
                return
            self._hold(self._received)
        if reader.whole:
            self._end(None)

    def _cut_out(self) -> bytes | None:
        """Return the data of the next complete event, or None."""
        if self._events is None:
            return None
        try:
            return self._events.next()
        except GatewayError as error:
            self._end(self._too_long("event", "json", self._limits.json))
            assert self._error is not None
            raise self._error from error

    def _end(self, error: GatewayError | None) -> None:
        """End the response, with ``error`` if it failed."""
        self._is_over = True
        self._error = error
        self._transport.abort()
        self._arrived.set()

    def _broke_off(self, error: BaseException | None) -> GatewayError:
        return garbage("the backend's response broke off", self._said(error))

    def _hold(self, size: int) -> None:
        """Count ``size`` bytes of the response as held until the next pull."""
        more = size - self._counted
        if more < 0:
            self._share.shrink(-more)
        elif size <= SMALL:
            return
        else:
            try:
                self._share.grow(more)
            except GatewayError as error:
                self._end(error)
                return
        self._counted = size

    def _too_long(self, what: str, limit: str, most: int) -> GatewayError:
        return GatewayError(
            Kind.TOO_LARGE,
            f"the backend's {what} is over the limit of {most} bytes (limits.{limit})",
            origin=Origin.BACKEND,
            detail=str(self._endpoint),
        )
