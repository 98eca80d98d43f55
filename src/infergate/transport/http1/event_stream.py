"""One HTTP/1.1 exchange whose response may be a stream of server-sent events.

The connection has no other exchange. Events are cut from the received bytes when the caller pulls
them, and the socket is read only when no complete event is left, so a caller that stops pulling
stops the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final

from infergate import __version__
from infergate.core import server_sent_events
from infergate.core.errors import GatewayError, Kind, Origin, backend_garbage
from infergate.core.limits import Limits
from infergate.core.memory import MIN_ACCOUNTED_BYTES
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse, total_size
from infergate.transport.base import Endpoint
from infergate.transport.client.pool import Pool, PooledConnection, StaleError
from infergate.transport.http1 import message_head
from infergate.transport.http1.exchange import ResponseReader, ResponseReaderFactory


class EventStreamConnection(PooledConnection, asyncio.Protocol):
    """A connection for one exchange; yields the events of the response."""

    def __init__(
        self,
        create_reader: ResponseReaderFactory,
        limits: Limits,
        endpoint: Endpoint,
        pool: Pool[Any],
    ) -> None:
        super().__init__(limits, endpoint, pool)
        self._create_reader: Final = create_reader
        self._own_lines: Final = (
            f"host: {endpoint.authority}\r\nuser-agent: infergate/{__version__}\r\n"
        )
        self._reader: ResponseReader | None = None
        self._events: server_sent_events.EventStreamParser | None = None
        self._parts: list[Buffer] = []
        self._received = 0
        self._is_over = False
        self._error: GatewayError | None = None
        self._has_arrived: Final = asyncio.Event()

    async def send(self, wire: HttpRequest, target: str) -> AsyncGenerator[HttpResponse, None]:
        """Send ``wire`` to ``target`` and yield each event, or the whole response if it is not an
        event stream.

        Raises GatewayError, and ValueError for a request that HTTP cannot carry.
        """
        head = message_head.request_head(
            wire.method, target, wire.headers, total_size(wire.body), self._own_lines
        )
        self._reader = reader = self._create_reader(wire.method, self._limits.response_header)
        self._memory = wire.memory
        for part in message_head.join_small(head, wire.body):
            self._transport.write(part)
        try:
            while True:
                while (data := self._next_event()) is not None:
                    self._count_held(len(data))
                    yield HttpResponse(reader.status, reader.headers, [data])
                if self._error is not None:
                    raise self._error
                if self._is_over:
                    break
                self._has_arrived.clear()
                if not self._transport.is_closing():
                    self._transport.resume_reading()
                await self._has_arrived.wait()
            if self._events is None:
                yield HttpResponse(reader.status, reader.headers, self._parts)
            elif not self._events.is_between_events:
                raise self._cut_short(None)
        finally:
            self._uncount_bytes()

    # ---- called by asyncio

    def data_received(self, data: bytes) -> None:
        """Process bytes of the response; unsolicited bytes end the connection."""
        reader = self._reader
        if reader is None or self._is_over:
            self._transport.abort()
            return
        self._response_started = True
        had_head = reader.status
        try:
            reader.feed(data)
        except ValueError as error:
            self._end(
                backend_garbage(
                    "the backend's response is not valid HTTP", self._error_detail(error)
                )
            )
            return
        if not reader.status:
            return
        if not had_head:
            kind = reader.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind == server_sent_events.EVENT_STREAM_TYPE:
                self._events = server_sent_events.EventStreamParser(self._limits.json)
        self._read_body(reader)

    def connection_lost(self, exc: BaseException | None) -> None:
        """End the response, or fail it if it is incomplete."""
        self._pool.forget(self)
        reader = self._reader
        if self._is_over or reader is None:
            return
        if not self._response_started:
            self._end(StaleError(self._error_detail(exc)))
            return
        try:
            if exc is None:
                reader.end()
        except ValueError as error:
            exc = error
        if exc is not None or not reader.status:
            self._end(self._cut_short(exc))
            return
        self._read_body(reader)

    # ---- the response

    def _read_body(self, reader: ResponseReader) -> None:
        """Take the received part of the body."""
        chunk = reader.take()
        if self._events is not None:
            self._events.feed(chunk)
            self._count_held(self._events.buffered_bytes)
            if not self._transport.is_closing():
                self._transport.pause_reading()
            self._has_arrived.set()
        elif chunk:
            self._received += len(chunk)
            self._parts.append(chunk)
            if self._received > self._limits.body:
                self._end(self._too_long("response", "body", self._limits.body))
                return
            self._count_held(self._received)
        if reader.is_complete and not self._is_over:  # memory may have been refused
            self._end(None)

    def _next_event(self) -> bytes | None:
        """Return the data of the next complete event, or None."""
        if self._events is None:
            return None
        try:
            return self._events.next_event()
        except GatewayError as error:
            self._end(self._too_long("event", "json", self._limits.json))
            assert self._error is not None
            raise self._error from error

    def _end(self, error: GatewayError | None) -> None:
        """End the response, with ``error`` if it failed."""
        self._is_over = True
        self._error = error
        self._transport.abort()
        self._has_arrived.set()

    def _cut_short(self, error: BaseException | None) -> GatewayError:
        return backend_garbage("the backend's response broke off", self._error_detail(error))

    def _count_held(self, size: int) -> None:
        """Count ``size`` bytes of the response as held until the next pull."""
        more = size - self._counted
        if more < 0:
            self._memory.shrink(-more)
        elif size <= MIN_ACCOUNTED_BYTES:
            return
        else:
            try:
                self._memory.grow(more)
            except GatewayError as error:
                self._end(error)
                return
        self._counted = size

    def _too_long(self, part: str, limit: str, max_bytes: int) -> GatewayError:
        return GatewayError(
            Kind.TOO_LARGE,
            f"the backend's {part} is over the limit of {max_bytes} bytes (limits.{limit})",
            origin=Origin.BACKEND,
            detail=str(self._endpoint),
        )
