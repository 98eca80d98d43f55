"""One client connection of the aiohttp-based HTTP server.

- Rule 1. The parser stops after each request (``aiohttp_parser``). Pipelined requests wait
  unparsed, and what exceeds ``_MAX_READ_AHEAD`` bytes waits in the client's socket.
- Rule 2. If requests may have both Content-Length and Transfer-Encoding, only the first request of
  a connection may, because only its start is certain. It is also the last one (RFC 9112, 6.1).
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from infergate.core.call import Call
from infergate.core.errors import GatewayError
from infergate.transport import http_head
from infergate.transport.door import is_hello
from infergate.transport.http_incoming import Incoming
from infergate.transport.http_parser import (
    NOT_HTTP,
    RawRequestMessage,
    StreamReader,
    request_parser,
)
from infergate.transport.http_served import HttpServed
from infergate.transport.listener import Listener
from infergate.transport.served import State

log = logging.getLogger(__name__)

_HELD: Final = 64 * 1024


class Connection(HttpServed[Incoming], asyncio.Protocol):
    """An HTTP/1.1 server connection that reads requests with aiohttp's C parser."""

    __slots__ = ("_both", "_head", "_held", "_parser")

    def __init__(self, host: Listener, *, accept_both_lengths: bool) -> None:
        super().__init__(host)
        self._parser = request_parser(host.loop, host.limits)
        self._head = bytearray()  # bytes of an incomplete head
        self._held = bytearray()  # bytes received while a response is being produced
        self._both = accept_both_lengths  # until the first head is complete

    @property
    def _has_begun(self) -> bool:
        return bool(self._head)

    def data_received(self, data: bytes) -> None:
        """Process bytes of the current request, or of the next one while a response is being
        produced."""
        state = self._state
        if state is State.HEAD or state is State.BODY:
            if self._both:
                self._first_head(data)
            else:
                self._feed(data)
        elif state is State.BUSY or state is State.FLUSH:
            self._held += data
            if len(self._held) > _HELD:
                self._transport.pause_reading()

    # ---- receiving

    def _first_head(self, data: bytes) -> None:
        """Collect the first head, and pass it on without its Content-Length if it has both lengths
        (Rule 2)."""
        self._note_head(data)
        if self._state is State.HEAD and http_head.is_complete(self._head):
            head = http_head.chunked_alone(bytes(self._head))
            self._both = False
            self._head.clear()
            self._feed(head)

    def _feed(self, data: bytes | bytearray) -> None:
        while True:
            try:
                messages, _, _ = self._parser.feed_data(bytes(data))
            except NOT_HTTP as error:
                self._malformed(error, data)
                return
            if messages:
                self._begin(*messages[0])
            inside = self._state is State.BODY
            if inside:
                self._gather()
            if self._state is not State.HEAD:
                return
            if not messages and not inside:
                if data:
                    self._note_head(data)
                return
            data = b""  # already answered; the parser may hold the next request

    def _note_head(self, data: bytes | bytearray) -> None:
        limits = self._host.limits
        if not self._head:
            self._timer.set(limits.header_time)
        self._head += data
        if len(self._head) > limits.headers:
            fault = http_head.fault_of(bytes(self._head), limits)
            if fault.status != http_head.BAD_REQUEST:
                self._refuse(fault)

    def _malformed(self, error: Exception, data: bytes | bytearray) -> None:
        log.debug("%s: not HTTP: %s", self._peer, error)
        if self._state is State.BODY:
            fault = http_head.HeadError(http_head.BAD_REQUEST, "the body is not valid HTTP/1.1")
        else:
            received = bytes(self._head) + data
            if is_hello(received):
                self._host.door.refuse_tls(self._peer)
            fault = http_head.fault_of(received, self._host.limits)
        self._refuse(fault)

    def _begin(self, message: RawRequestMessage, payload: StreamReader) -> None:
        """Start a request whose head is complete."""
        self._head.clear()
        host = self._host
        call = Call(self._peer, time.monotonic(), peer_identity=self._identity)
        request = Incoming(message, payload, call, host.limits, host.admission)
        self._request = request
        try:
            request.admit(message)
        except GatewayError as error:
            self._refuse(error)
            return
        self._state = State.BODY
        if request.whole:
            return
        self._await_body(0, request.missing)
        if request.waits_for_consent:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _gather(self) -> None:
        """Take the received part of the body; serve the request when it is complete."""
        request = self._request
        assert request is not None
        try:
            request.take()
        except GatewayError as error:
            self._refuse(error)
            return
        if request.whole:
            self._start(request)
        else:
            self._await_body(request.received, request.missing)

    # ---- answering

    def _go_on(self, *, received: bool) -> None:
        self._parser.message_consumed()
        if received:
            return  # rejected within _feed, which continues with its data
        held = self._held
        if held:
            self._held = bytearray()
            if not self._transport.is_reading():
                self._transport.resume_reading()
        self._feed(held)
