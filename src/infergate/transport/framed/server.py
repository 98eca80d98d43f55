"""A listener for size-prefixed frames. Each request and each response is a frame. Responses are
sent in the order of the requests.

To the ``HttpApp``, a frame is the body of a POST to ``/``. Only the body of the response is sent,
so the application must report errors in the body. A response without a body is an empty frame.
Limits are checked as soon as the length of a frame has arrived. If a rejected frame has arrived
completely, it is skipped and the connection continues. Otherwise the connection is closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from infergate.core.errors import GatewayError, bad_request
from infergate.core.log_events import BUG
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.transport.framed.frame_reader import PREFIX, FrameReader, encode_prefix
from infergate.transport.http1 import message_head
from infergate.transport.http1.server_connection import ConnectionState, HttpServerConnection
from infergate.transport.server.connection_gate import CLIENT_HELLO_PREFIX, is_client_hello
from infergate.transport.server.incoming_request import IncomingHttpRequest
from infergate.transport.server.listener import HttpAppListener

log = logging.getLogger(__name__)


class FrameServer(HttpAppListener):
    """A ``Server`` for size-prefixed frames."""

    def _create_connection(self) -> FrameConnection:
        return FrameConnection(self)


class FrameConnection(HttpServerConnection, asyncio.BufferedProtocol):
    """The server side of a connection with size-prefixed frames."""

    def __init__(self, listener: HttpAppListener) -> None:
        super().__init__(listener)
        self._frames = FrameReader()
        self._in_prefix = False

    @property
    def _has_partial_head(self) -> bool:
        return self._frames.has_partial_frame

    # ---- receiving

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._frames.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Process bytes of the current frame. During a response, keep the bytes of the next frame.
        Bytes after an early rejection are overwritten."""
        state, frames = self._state, self._frames
        if state is ConnectionState.BODY:
            frames.buffer_written(nbytes)
            self._read_body()
        elif state is ConnectionState.HEAD:
            frames.buffer_written(nbytes)
            self._receive()
        elif state is ConnectionState.BUSY or state is ConnectionState.FLUSH:
            frames.buffer_written(nbytes)
            if frames.is_full:
                self._transport.pause_reading()

    def _receive(self) -> None:
        frames = self._frames
        while self._state is ConnectionState.HEAD:
            length = frames.announced_length
            if length is None:
                if frames.has_partial_frame and not self._in_prefix:
                    self._in_prefix = True
                    self._timer.set(self._listener.limits.header_time)
                return
            self._in_prefix = False
            self._begin_request(length)

    def _begin_request(self, length: int) -> None:
        listener, frames = self._listener, self._frames
        # The start of a ClientHello would be read as a length of more than 64 KiB.
        if is_client_hello(frames.peek(CLIENT_HELLO_PREFIX)):
            listener.gate.refuse_tls(self._peer)
            self._state = ConnectionState.CLOSED
            self._transport.abort()
            return
        is_complete = frames.has_complete_frame(length)
        context = RequestContext(self._peer, peer_identity=self._identity)
        wire = self._placeholder_request()
        request = self._request = IncomingHttpRequest(wire, context, listener.admission)
        request.is_complete = is_complete
        self._state = ConnectionState.BODY
        try:
            if not length:
                raise bad_request("the frame is empty")
            if length > listener.limits.body:
                raise message_head.body_too_large(length, listener.limits)
            request.account.admit(length)
        except GatewayError as error:
            if is_complete:
                frames.skip(length)
            self._reject(error)
            return
        frames.open(length)
        self._read_body()

    def _read_body(self) -> None:
        request, frames = self._request, self._frames
        assert request is not None
        body = frames.take()
        if body is not None:
            request.is_complete = True
            request.wire.body = [body]
            request.context.record.bytes_in = len(body)
            self._start(request)
        else:
            self._await_body(frames.received, frames.missing)

    # ---- responding

    def _placeholder_request(self) -> HttpRequest:
        return HttpRequest("POST", "/")

    def _write_response(self, response: HttpResponse) -> bool:
        body = response.body
        try:
            head = encode_prefix(body)
        except GatewayError:
            log.exception("cannot send a response", extra=BUG)
            head, body = PREFIX.pack(0), ()
        for part in message_head.join_small(head, body):
            self._transport.write(part)
        return not self._is_last()

    def _is_last(self) -> bool:
        """Return whether the connection closes after this response. The protocol has no way to
        announce a shutdown, so requests that have already arrived still get responses."""
        return self._listener.is_stopping and not self._frames.has_partial_frame

    def _write_part(self, body: Sequence[Buffer] | None) -> None:  # noqa: ARG002
        raise AssertionError  # no framed protocol streams a response body

    def _continue(self, *, receiving: bool) -> None:
        if receiving:
            return  # _receive has rejected the frame and continues
        if not self._transport.is_reading():
            self._transport.resume_reading()
        self._receive()

    def _linger(self) -> None:
        self._frames.discard()  # frees the buffer; its data is not needed
        super()._linger()
