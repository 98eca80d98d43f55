"""An HTTP/1.1 exchange whose response may be a stream of server-sent events. The socket is read
only when the caller has pulled all complete events, so a slow caller slows down the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final, Protocol

from infergate.core import server_sent_events
from infergate.core.errors import GatewayError
from infergate.core.memory import MIN_ACCOUNTED_BYTES
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.transport.client.pool import Pool
from infergate.transport.http1 import message_head
from infergate.transport.http1.exchange import (
    HttpExchangeConnection,
    ResponseReader,
    ResponseReaderFactory,
)


class EventParser(Protocol):
    """Splits a body that arrives in pieces into events."""

    def feed(self, data: bytes) -> None:
        """Add the next piece of the body."""
        ...

    def next_event(self) -> bytes | None:
        """Return the next event, or None if it is incomplete. Raises TOO_LARGE."""
        ...

    @property
    def buffered_bytes(self) -> int:
        """The number of buffered bytes of the incomplete event."""
        ...

    @property
    def is_between_events(self) -> bool:
        """Whether the body may end at this point, because no event is incomplete."""
        ...


class EventStreamConnection(HttpExchangeConnection, asyncio.Protocol):
    """A connection for one exchange that yields the events of the response."""

    def __init__(self, create_reader: ResponseReaderFactory, pool: Pool[Any]) -> None:
        super().__init__(create_reader, pool)
        self._events: EventParser | None = None
        self._is_over = False
        self._error: GatewayError | None = None
        self._has_arrived: Final = asyncio.Event()

    async def stream(self, wire: HttpRequest, target: str) -> AsyncGenerator[HttpResponse, None]:
        """Send ``wire`` to ``target`` and yield each event. If the response is not an event stream,
        yield it as a single response. Raises GatewayError, and ValueError for a request that HTTP
        cannot carry."""
        head = self._encode_head(wire, target)
        self._reader = reader = self._create_reader(wire.method, self._limits.response_header)
        self._memory = wire.memory
        for part in message_head.join_small(head, wire.body):
            self._transport.write(part)
        try:
            while True:
                while (data := self._next_event()) is not None:
                    self._charge_held(len(data))
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
            self._release_bytes()

    # ---- the response

    @property
    def _is_waiting(self) -> bool:
        return self._reader is not None and not self._is_over

    def _begin_response(self, reader: ResponseReader) -> bool:
        self._events = self._make_parser(reader)
        return True

    def _make_parser(self, reader: ResponseReader) -> EventParser | None:
        """Return a parser of the response's events, or None if the response is not a stream."""
        kind = reader.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_stream = kind == server_sent_events.EVENT_STREAM_TYPE
        return server_sent_events.EventStreamParser(self._limits.json) if is_stream else None

    def _read_body(self, reader: ResponseReader) -> bool:
        if self._events is None:
            return super()._read_body(reader)
        self._events.feed(reader.take())
        self._charge_held(self._events.buffered_bytes)
        if not self._transport.is_closing():
            self._transport.pause_reading()
        self._has_arrived.set()
        return not self._is_over  # the exchange may have failed for lack of memory

    def _complete_response(self, reader: ResponseReader) -> None:  # noqa: ARG002
        self._end(None)

    def _fail(self, error: GatewayError) -> None:
        self._end(error)

    def _next_event(self) -> bytes | None:
        if self._events is None:
            return None
        try:
            return self._events.next_event()
        except GatewayError as error:
            self._end(self._too_long("event", "json", self._limits.json))
            assert self._error is not None
            raise self._error from error

    def _end(self, error: GatewayError | None) -> None:
        """End the response. ``error`` is the reason for a failure, or None."""
        self._is_over = True
        self._error = error
        self._transport.abort()
        self._has_arrived.set()

    def _charge_held(self, size: int) -> None:
        """Adjust the charge for held bytes of the response to ``size``. Sizes of up to
        ``MIN_ACCOUNTED_BYTES`` never increase the charge."""
        if size < self._charged_bytes:
            self._memory.shrink(self._charged_bytes - size)
            self._charged_bytes = size
        elif size > MIN_ACCOUNTED_BYTES:
            self._charge_bytes(size - self._charged_bytes)
