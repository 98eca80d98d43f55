"""An HTTP/1.1 exchange on a pooled connection to a backend. A ``ResponseReader`` parses a single
response."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from infergate import __version__
from infergate.core.errors import backend_garbage
from infergate.core.hops import FIRST_HOP, HOPS_HEADER
from infergate.core.memory import MIN_ACCOUNTED_BYTES
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse, total_size
from infergate.transport.base import ExchangeCallbacks
from infergate.transport.client.pool import Pool, PooledConnection
from infergate.transport.http1 import message_head


class ResponseReader(Protocol):
    """Parses the response to one request and skips 1xx responses before it. ``status`` is 0, and
    all other fields are undefined, until the head is complete. ``keep_alive`` means that the
    connection can carry another exchange, and that no bytes followed the response."""

    status: int
    headers: Mapping[str, str]
    is_complete: bool
    keep_alive: bool

    def feed(self, data: bytes) -> None:
        """Parse ``data``. Raises ValueError if ``data`` is not HTTP."""
        ...

    def end(self) -> None:
        """Handle the end of the connection. Raises ValueError if the response is incomplete."""
        ...

    def take(self) -> bytes:
        """Return the body bytes received since the last call."""
        ...


ResponseReaderFactory = Callable[[str, int], ResponseReader]
"""Creates a ``ResponseReader`` from the request's method and the maximum length, in bytes, of a
header name or value."""


class HttpExchangeConnection(PooledConnection):
    """A connection that carries HTTP/1.1 exchanges. Subclasses are asyncio protocols."""

    def __init__(self, create_reader: ResponseReaderFactory, pool: Pool[Any]) -> None:
        super().__init__(pool)
        self._own_lines: Final = (
            f"host: {pool.endpoint.authority}\r\nuser-agent: infergate/{__version__}\r\n"
        )
        self._first_hop_lines: Final = f"{self._own_lines}{HOPS_HEADER}: {FIRST_HOP}\r\n"
        self._create_reader: Final = create_reader
        self._method = ""
        self._reader: ResponseReader | None = None
        self._parts: list[Buffer] = []
        self._received = 0

    async def send(self, wire: HttpRequest, target: str, deadline: float) -> HttpResponse:
        """Send ``wire`` to ``target`` and wait for the response until ``deadline`` (loop time).
        Raises GatewayError, and ValueError for a request that HTTP cannot carry."""
        return await self._exchange(self._prepare(wire, target), deadline, wire.memory)

    def begin(
        self,
        wire: HttpRequest,
        target: str,
        deadline: float,
        callbacks: ExchangeCallbacks[HttpResponse],
    ) -> None:
        """Send ``wire`` like ``send``, but report the response to ``callbacks``. Raises
        ValueError."""
        self._begin(self._prepare(wire, target), deadline, wire.memory, callbacks)

    def _encode_head(self, wire: HttpRequest, target: str) -> bytes:
        headers = wire.headers
        own_lines = self._own_lines if HOPS_HEADER in headers else self._first_hop_lines
        return message_head.request_head(
            wire.method, target, headers, total_size(wire.body), own_lines
        )

    def _prepare(self, wire: HttpRequest, target: str) -> Sequence[Buffer]:
        head = self._encode_head(wire, target)
        self._method = wire.method
        self._reader = None
        self._parts = []
        self._received = 0
        return message_head.join_small(head, wire.body)

    # ---- called by asyncio

    def data_received(self, data: bytes) -> None:
        if not self._is_waiting:
            self._transport.abort()
            return
        self._response_started = True
        if self._reader is None:
            self._reader = self._create_reader(self._method, self._limits.response_header)
        reader = self._reader
        had_head = reader.status
        try:
            reader.feed(data)
        except ValueError as error:
            public = "the backend's response is not valid HTTP"
            self._fail(backend_garbage(public, self._error_detail(error)))
            return
        if not reader.status:
            return
        if not had_head and not self._begin_response(reader):
            return
        if self._read_body(reader) and reader.is_complete:
            self._complete_response(reader)

    def _on_cut_short(self, exc: BaseException | None) -> None:
        reader = self._reader
        if exc is not None or reader is None or not reader.status:
            super()._on_cut_short(exc)
            return
        try:
            reader.end()
        except ValueError as error:
            super()._on_cut_short(error)
            return
        if self._read_body(reader):
            self._complete_response(reader)

    # ---- the response

    def _begin_response(self, reader: ResponseReader) -> bool:
        """Check the head of the response. Return False if the exchange has ended."""
        length = reader.headers.get("content-length", "")
        if not reader.is_complete and length.isdecimal() and int(length) > self._limits.body:
            self._too_large()
            return False
        return True

    def _read_body(self, reader: ResponseReader) -> bool:
        """Take the received part of the body. Return False if the exchange has ended."""
        chunk = reader.take()
        if chunk:
            self._received += len(chunk)
            self._parts.append(chunk)
            if self._received > self._limits.body:
                self._too_large()
                return False
            if self._received > MIN_ACCOUNTED_BYTES:
                return self._charge_bytes(self._received - self._charged_bytes)
        return True

    def _complete_response(self, reader: ResponseReader) -> None:
        self._reader = None  # an idle connection must not hold a response
        parts, self._parts = self._parts, []
        self._complete(HttpResponse(reader.status, reader.headers, parts), keep=reader.keep_alive)
