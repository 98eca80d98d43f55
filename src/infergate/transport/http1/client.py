"""A pooled HTTP/1.1 client. ``PlainResponseParser`` parses a plain head, which arrives complete, is
strict HTTP/1.1 and has a Content-Length; ``LenientReader`` parses all other responses. Connections
share a scratch buffer for received bytes. The rest of a plain response's body is received directly
into its own buffer."""

from __future__ import annotations

import asyncio
import functools
from typing import Any, Final

import numpy as np

from infergate.core.limits import KIB, Limits
from infergate.core.memory import MIN_ACCOUNTED_BYTES
from infergate.core.tensor import Buffer
from infergate.core.tls_settings import ClientTls
from infergate.core.wire import HttpResponse
from infergate.transport.client.pool import Pool
from infergate.transport.http1.exchange import HttpExchangeConnection
from infergate.transport.http1.response_head import PlainResponseHead, PlainResponseParser
from infergate.transport.http1.response_reader import LenientReader
from infergate.transport.http1.upstream import Http1Upstream
from infergate.transport.net.buffer_pool import allocate

_SCRATCH_BYTES: Final = 64 * KIB


class H1ClientConnection(HttpExchangeConnection, asyncio.BufferedProtocol):
    """An HTTP/1.1 connection to a backend."""

    def __init__(self, scratch: memoryview, pool: Pool[Any]) -> None:
        super().__init__(LenientReader, pool)
        self._scratch: Final = scratch
        self._plain_parser: Final = PlainResponseParser()
        self._plain: PlainResponseHead | None = None  # the response being received
        self._body_buffer: memoryview | None = None  # one byte longer than the body

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        memory = self._body_buffer
        return self._scratch if memory is None else memory[self._received :]

    def buffer_updated(self, nbytes: int) -> None:
        plain, memory = self._plain, self._body_buffer
        if plain is None or memory is None:
            self.data_received(bytes(self._scratch[:nbytes]))
            return
        self._received += nbytes
        if self._received >= plain.length:
            self._body_buffer = None
            self._finish_plain(plain, memory[: plain.length])

    def data_received(self, data: bytes) -> None:
        """Process bytes of the response. Unsolicited bytes end the connection."""
        if self._callbacks is None:
            self._transport.abort()
            return
        plain = None
        if self._reader is None:
            plain = self._plain_parser.parse(data, self._method)
        if plain is None or plain.length > self._limits.body:
            super().data_received(data)
            return
        self._response_started = True
        size, length = plain.size, plain.length
        self._received = available = len(data) - size
        if available >= length:
            self._finish_plain(plain, data[size : size + length])
            return
        if length > MIN_ACCOUNTED_BYTES and not self._charge_bytes(length):
            return
        self._plain = plain
        # Unlike ``bytearray``, ``allocate`` does not zero the buffer, so a body that is announced
        # but never sent uses no memory.
        self._body_buffer = allocate(length + 1)
        self._body_buffer[:available] = data[size:]

    def _finish_plain(self, plain: PlainResponseHead, body: Buffer) -> None:
        self._plain = None
        response = HttpResponse(plain.status, plain.headers, (body,) if body else ())
        self._complete(response, keep=plain.keep_alive and self._received == plain.length)


class H1Upstream(Http1Upstream):
    """An ``HttpUpstream`` over HTTP/1.1 on the built-in engine."""

    def __init__(self, limits: Limits, tls: ClientTls | None = None) -> None:
        scratch = np.empty(_SCRATCH_BYTES, np.uint8).data
        super().__init__(limits, tls, functools.partial(H1ClientConnection, scratch), LenientReader)
