"""An HTTP/1.1 listener that parses requests with aiohttp.

The parser stops after each request. Pipelined requests wait unparsed, and bytes beyond
``_MAX_READ_AHEAD`` stay in the socket.

With ``accept_both_lengths``, only the first request of a connection may have both Content-Length
and Transfer-Encoding, because only the first request begins at a known position. The connection is
closed after such a request (RFC 9112, 6.1)."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from aiohttp.http import RawRequestMessage
from aiohttp.streams import StreamReader

from infergate.core.errors import GatewayError
from infergate.core.request_context import RequestContext
from infergate.transport.compat.aiohttp_parser import NOT_HTTP, request_parser
from infergate.transport.compat.aiohttp_request import AiohttpRequest
from infergate.transport.http1 import message_head
from infergate.transport.http1.connection import Http1Connection
from infergate.transport.http1.server_connection import ConnectionState
from infergate.transport.server.connection_gate import is_client_hello
from infergate.transport.server.listener import HttpAppListener

log = logging.getLogger(__name__)

_MAX_READ_AHEAD: Final = 64 * 1024


class AiohttpServer(HttpAppListener):
    """A ``Server`` for HTTP that uses aiohttp's parser."""

    def _create_connection(self) -> AiohttpConnection:
        return AiohttpConnection(self, accept_both_lengths=self._accept_both_lengths)


class AiohttpConnection(Http1Connection, asyncio.Protocol):
    """An HTTP/1.1 server connection that reads requests with aiohttp's C parser."""

    _request: AiohttpRequest | None

    def __init__(self, listener: HttpAppListener, *, accept_both_lengths: bool) -> None:
        super().__init__(listener)
        self._parser = request_parser(listener.loop, listener.limits)
        self._partial_head = bytearray()  # bytes of an incomplete head
        self._read_ahead = bytearray()  # bytes received while a response is being produced
        self._accepts_both_lengths = accept_both_lengths  # False after the first head

    @property
    def _has_partial_head(self) -> bool:
        return bool(self._partial_head)

    def data_received(self, data: bytes) -> None:
        """Process bytes of the current request. During a response, keep the bytes of the next
        request."""
        state = self._state
        if state is ConnectionState.HEAD or state is ConnectionState.BODY:
            if self._accepts_both_lengths:
                self._receive_first_head(data)
            else:
                self._feed(data)
        elif state is ConnectionState.BUSY or state is ConnectionState.FLUSH:
            self._read_ahead += data
            if len(self._read_ahead) > _MAX_READ_AHEAD:
                self._transport.pause_reading()

    # ---- receiving

    def _receive_first_head(self, data: bytes) -> None:
        """Collect the first head. If it has Transfer-Encoding, drop its Content-Length."""
        self._collect_head(data)
        if self._state is ConnectionState.HEAD and b"\r\n\r\n" in self._partial_head:
            head = message_head.drop_content_length(bytes(self._partial_head))
            self._accepts_both_lengths = False
            self._partial_head.clear()
            self._feed(head)

    def _feed(self, data: bytes | bytearray) -> None:
        while True:
            try:
                messages, _, _ = self._parser.feed_data(bytes(data))
            except NOT_HTTP as error:
                self._malformed(error, data)
                return
            if messages:
                self._begin_request(*messages[0])
            in_body = self._state is ConnectionState.BODY
            if in_body:
                self._read_body()
            if self._state is not ConnectionState.HEAD:
                return
            if not messages and not in_body:
                if data:
                    self._collect_head(data)
                return
            data = b""  # the request was rejected; the parser may hold the next request

    def _collect_head(self, data: bytes | bytearray) -> None:
        limits = self._listener.limits
        if not self._partial_head:
            self._timer.set(limits.header_time)
        self._partial_head += data
        if len(self._partial_head) > limits.headers:
            fault = message_head.head_error(bytes(self._partial_head), limits)
            if fault.status != 400:
                self._reject(fault)

    def _malformed(self, error: Exception, data: bytes | bytearray) -> None:
        log.debug("%s: not HTTP: %s", self._peer, error)
        if self._state is ConnectionState.BODY:
            public = "the body is not valid HTTP/1.1"
            fault = message_head.HeadError(400, public)
        else:
            received = bytes(self._partial_head) + data
            if is_client_hello(received):
                self._listener.gate.refuse_tls(self._peer)
            fault = message_head.head_error(received, self._listener.limits)
        self._reject(fault)

    def _begin_request(self, message: RawRequestMessage, payload: StreamReader) -> None:
        self._partial_head.clear()
        listener = self._listener
        context = RequestContext(self._peer, peer_identity=self._identity)
        request = AiohttpRequest(message, payload, context, listener.limits, listener.admission)
        self._request = request
        try:
            request.admit(message)
        except GatewayError as error:
            self._reject(error)
            return
        self._state = ConnectionState.BODY
        if request.is_complete:
            return
        self._await_body(0, request.missing)
        if request.expects_continue:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _read_body(self) -> None:
        request = self._request
        assert request is not None
        try:
            request.read_body()
        except GatewayError as error:
            self._reject(error)
            return
        if request.is_complete:
            self._start(request)
        else:
            self._await_body(request.received, request.missing)

    # ---- responding

    def _continue(self, *, receiving: bool) -> None:
        self._parser.message_consumed()
        if receiving:
            return  # _feed has rejected the request and continues
        pending = self._read_ahead
        if pending:
            self._read_ahead = bytearray()
            if not self._transport.is_reading():
                self._transport.resume_reading()
        self._feed(pending)
