"""An HTTP/1.1 listener on the built-in engine. All its connections share one scratch buffer,
because the event loop processes received bytes before it fills the buffer again. Pipelined requests
wait unparsed, and bytes beyond ``MAX_READ_AHEAD`` stay in the socket."""

from __future__ import annotations

import asyncio
from typing import Final

import numpy as np

from infergate.core.errors import GatewayError
from infergate.core.limits import KIB
from infergate.core.request_context import RequestContext
from infergate.core.wire import HttpRequest
from infergate.transport.http1.connection import Http1Connection
from infergate.transport.http1.request_head import HttpRequestHead
from infergate.transport.http1.request_reader import RequestReader
from infergate.transport.http1.server_connection import ConnectionState
from infergate.transport.net.receive_watermark import ReceiveWatermark
from infergate.transport.net.timer import CATCH_UP_SECONDS
from infergate.transport.server.connection_gate import is_client_hello
from infergate.transport.server.incoming_request import IncomingHttpRequest
from infergate.transport.server.listener import HttpAppListener

MAX_READ_AHEAD: Final = 64 * KIB
_SCRATCH_BYTES: Final = 64 * KIB
"""Maximum number of bytes of a body of known length that are copied. The other bytes are received
into the final buffer."""
BODY_WATERMARK: Final = 256 * KIB
_FAST_ARRIVAL: Final = 16 * KIB
"""If at least this many bytes of a long body arrive in one read, the loop is next notified after
``BODY_WATERMARK`` more bytes, or at the end of the body."""


class H1Server(HttpAppListener):
    """A ``Server`` for HTTP on the built-in engine."""

    _scratch: memoryview | None = None  # created for the first connection

    def _create_connection(self) -> H1Connection:
        scratch = self._scratch
        if scratch is None:
            scratch = self._scratch = np.empty(_SCRATCH_BYTES, np.uint8).data
        reader = RequestReader(scratch, self.limits, accept_both_lengths=self._accept_both_lengths)
        return H1Connection(self, reader)


class H1Connection(Http1Connection, asyncio.BufferedProtocol):
    """An HTTP/1.1 server connection that reads requests with the built-in engine."""

    def __init__(self, listener: HttpAppListener, reader: RequestReader) -> None:
        super().__init__(listener)
        self._reader: Final = reader
        self._head_started = False  # whether a part of a head has arrived
        self._watermark: ReceiveWatermark | None = None  # created for the first long body

    @property
    def _has_partial_head(self) -> bool:
        return self._head_started

    # ---- receiving

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Process bytes of the current request. During a response, keep the bytes of the next
        request."""
        state, reader = self._state, self._reader
        if state is ConnectionState.HEAD:
            reader.buffer_written(nbytes)
            self._receive(has_new_bytes=True)
        elif state is ConnectionState.BODY:
            reader.buffer_written(nbytes)
            self._read_body()
            if self._state is ConnectionState.BODY:
                self._set_watermark(reader.missing, nbytes)
            elif self._state is ConnectionState.HEAD:
                # The request was rejected after it had arrived completely.
                self._receive()
        elif state is ConnectionState.BUSY or state is ConnectionState.FLUSH:
            reader.buffer_written(nbytes)
            if reader.untaken_bytes > MAX_READ_AHEAD:
                self._transport.pause_reading()

    def _receive(self, *, has_new_bytes: bool = False) -> None:
        """Read requests until the application serves a request or more bytes are needed."""
        reader = self._reader
        while self._state is ConnectionState.HEAD:
            try:
                head = reader.read_head()
            except GatewayError as error:
                if is_client_hello(reader.prefix):
                    self._listener.gate.refuse_tls(self._peer)
                self._reject(error)
                return
            if head is None:
                if not self._head_started and (has_new_bytes or reader.untaken_bytes):
                    self._head_started = True
                    self._timer.set(self._listener.limits.header_time)
                return
            self._head_started = has_new_bytes = False
            self._begin_request(head)

    def _begin_request(self, head: HttpRequestHead) -> None:
        listener = self._listener
        context = RequestContext(self._peer, headers=head.headers, peer_identity=self._identity)
        wire = HttpRequest(head.method, head.path, head.query, head.headers)
        self._request = request = IncomingHttpRequest(wire, context, listener.admission)
        request.keep_alive, request.is_http10 = head.keep_alive, head.is_http10
        if head.error is not None:
            self._reject(head.error)
            return
        self._state = ConnectionState.BODY
        self._read_body()
        if self._state is ConnectionState.BODY and head.expects_continue:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _read_body(self) -> None:
        """Take the received part of the body. Serve the request when the body is complete."""
        request, reader = self._request, self._reader
        assert request is not None
        try:
            body = reader.read_body()
            request.is_complete = body is not None
            size = reader.received
            request.account.count_body(size if request.is_complete else size + reader.missing)
        except GatewayError as error:
            self._reject(error)
            return
        if body is None:
            self._await_body(reader.received, reader.missing)
            return
        request.wire.body = (body,) if body else ()
        request.context.record.bytes_in = reader.received
        self._start(request)

    def _set_watermark(self, missing: int, arrived: int) -> None:
        """Set the receive watermark. ``arrived`` bytes of the body have just been read, and
        ``missing`` bytes will follow."""
        watermark = self._watermark
        if watermark is None:
            if missing < BODY_WATERMARK:
                return
            watermark = self._watermark = ReceiveWatermark(self._transport)
        watermark.set_min_bytes(
            min(missing, BODY_WATERMARK) if arrived >= _FAST_ARRIVAL and missing else 1
        )

    def _reset_watermark(self) -> bool:
        """Reset the receive watermark to 1 byte. Return whether it was higher."""
        watermark = self._watermark
        if watermark is None or watermark.min_bytes == 1:
            return False
        watermark.set_min_bytes(1)
        return True

    def reject_slow_body(self) -> None:
        self._reset_watermark()
        super().reject_slow_body()

    def _on_timeout(self) -> None:
        """Read bytes below the watermark before the body times out."""
        if self._state is ConnectionState.BODY and self._reset_watermark():
            self._timer.set(CATCH_UP_SECONDS)
        else:
            super()._on_timeout()

    # ---- responding

    def _continue(self, *, receiving: bool) -> None:
        if self._watermark is not None:
            self._reset_watermark()
        if receiving:
            return  # the caller of _receive or _read_body continues
        if not self._transport.is_reading():
            self._transport.resume_reading()
        if self._reader.untaken_bytes:
            self._receive()

    def _linger(self) -> None:
        self._reset_watermark()
        self._reader.discard()  # frees the buffer; its data is not needed
        super()._linger()
