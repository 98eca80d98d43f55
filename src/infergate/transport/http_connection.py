"""One client connection of the HTTP server.

*Strategy.* A state machine in the protocol's callbacks, over aiohttp's C parser. The body is
gathered as it arrives (``http_incoming``), so the one task of a request starts when the request is
complete; until then a refusal is written straight from the callback. One timer serves all limits.

*Rule 1.* The parser is made to stop after each request (``http_parser``): what a client
pipelines waits unparsed, and more than ``_HELD`` bytes of it wait in the client's socket.
*Rule 2.* The task belongs to the connection and is cancelled when the client goes away. An end of
file counts as going away: TCP cannot tell a half-close from a close.
*Rule 3.* Every request is released: when its answer is known, or when its task is over.
*Rule 4.* A request refused before its body was read ends the connection: the answer is sent, the
rest of the body read and thrown away for a while (closing at once would reset the connection and
might destroy the answer on its way), then the connection is closed.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from typing import Final, Protocol

from infergate.core.call import Call
from infergate.core.errors import GatewayError
from infergate.core.limits import Limits
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.transport import http_answer, http_head
from infergate.transport.base import Address, HttpApp
from infergate.transport.guard import Admission
from infergate.transport.http_incoming import Incoming
from infergate.transport.http_parser import (
    NOT_HTTP,
    RawRequestMessage,
    StreamReader,
    request_parser,
)
from infergate.transport.http_timer import Timer

log = logging.getLogger(__name__)

_HELD: Final = 64 * 1024
_LINGER: Final = 5.0
"""Seconds of reading on after an early refusal (nginx lingering_timeout: 5 s)."""


class State(enum.Enum):
    """Where a connection is in the life of a request."""

    HEAD = "waiting for a request, or inside its head"
    BODY = "inside the body"
    BUSY = "the application is answering"
    FLUSH = "the answer is written, the client is slow to read it"
    LINGER = "refused; reading the rest away"
    LAST = "the last answer is written; closed as soon as the client has it"
    CLOSED = "over"


class Host(Protocol):
    """What connections share: the server."""

    app: HttpApp
    limits: Limits
    admission: Admission
    loop: asyncio.AbstractEventLoop
    stopping: bool

    def opened(self, connection: Connection) -> None:
        """A client connected."""
        ...

    def closed(self, connection: Connection) -> None:
        """A connection is over, and its task too."""
        ...


class Connection(asyncio.Protocol):
    """See the module."""

    __slots__ = (
        "_flushed",
        "_head",
        "_held",
        "_host",
        "_parser",
        "_paused",
        "_peer",
        "_request",
        "_state",
        "_task",
        "_timer",
        "_transport",
    )

    def __init__(self, host: Host) -> None:
        self._host = host
        self._parser = request_parser(host.loop, host.limits)
        self._timer = Timer(host.loop, self._expire)
        self._state = State.HEAD
        self._peer = ""
        self._head = bytearray()  # what came of a head that is not complete
        self._held = bytearray()  # what came while another request was answered
        self._request: Incoming | None = None  # from its head to its answer
        self._task: asyncio.Task[None] | None = None
        self._paused = False
        self._flushed = 0

    # ---- what asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accepted."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._peer = str(Address(*peer[:2])) if isinstance(peer, tuple) else "unix"
        self._host.opened(self)
        if self._host.stopping:  # accepted in the moment the listener closed
            transport.abort()
            return
        self._timer.set(self._host.limits.header_time)

    def connection_lost(self, exc: BaseException | None) -> None:  # noqa: ARG002
        """The client went away, or we closed."""
        self._state = State.CLOSED
        self._timer.close()
        if self._task is None:
            self._over(None)
        else:
            # A callback, not the task's own end: a task cancelled before its first step has none.
            self._task.add_done_callback(self._over)
            self._task.cancel()

    def _over(self, _: asyncio.Task[None] | None) -> None:
        if self._request is not None:
            self._request.release()
        self._host.closed(self)

    def data_received(self, data: bytes) -> None:
        """Bytes of this request, or of the next while this one is being answered."""
        state = self._state
        if state is State.HEAD or state is State.BODY:
            self._feed(data)
        elif state is State.BUSY or state is State.FLUSH:
            self._held += data
            if len(self._held) > _HELD:
                self._transport.pause_reading()

    def pause_writing(self) -> None:
        """The client does not keep up with an answer."""
        self._paused = True

    def resume_writing(self) -> None:
        """It does again."""
        self._paused = False
        if self._state is State.FLUSH:
            self._next()

    # ---- receiving

    def _feed(self, data: bytes | bytearray) -> None:
        while True:
            try:
                messages, _, _ = self._parser.feed_data(bytes(data))
            except NOT_HTTP as error:
                self._malformed(error, data)
                return
            if messages:
                self._begin(*messages[0])
            if self._state is State.BODY:
                self._gather()
            if self._state is not State.HEAD:
                return
            if not messages:
                if data:
                    self._note_head(data)
                return
            data = b""  # answered already: the next request may be in the parser

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
            fault = http_head.fault_of(bytes(self._head) + data, self._host.limits)
        self._refuse(fault)

    def _begin(self, message: RawRequestMessage, payload: StreamReader) -> None:
        """The head is complete."""
        self._head.clear()
        host = self._host
        request = self._request = Incoming(message, payload, self._peer, host.limits)
        try:
            request.admit(message, host.admission)
        except GatewayError as error:
            self._refuse(error)
            return
        self._state = State.BODY
        if request.whole:
            return
        request.since = host.loop.time()
        self._timer.set_at(request.due(request.since))
        if request.waits_for_consent:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _gather(self) -> None:
        """Take what came of the body; serve when that is all."""
        request = self._request
        assert request is not None
        try:
            request.take()
        except GatewayError as error:
            self._refuse(error)
            return
        if request.whole:
            self._timer.stop()
            self._state = State.BUSY
            self._task = self._host.loop.create_task(self._serve(request))
        else:
            self._timer.set_at(request.due(self._host.loop.time()))

    # ---- answering

    async def _serve(self, request: Incoming) -> None:
        app = self._host.app
        try:
            response = await app.respond(request.wire, request.call)
        except (Exception, asyncio.CancelledError) as failure:  # noqa: BLE001
            response = http_answer.instead(failure, app, request.wire, request.call)
        if self._state is not State.CLOSED:
            self._task = None
            request.release()
            self._answer(response)

    def _refuse(self, error: GatewayError) -> None:
        """Turn the request away, wherever in it the connection is."""
        request = self._request
        if request is None:  # inside its head
            wire, call = HttpRequest("", ""), Call(self._peer, time.monotonic())
        else:
            wire, call = request.wire, request.call
            request.release()
        self._answer(http_answer.refuse(self._host.app, error, wire, call))

    def _answer(self, response: HttpResponse) -> None:
        transport, request = self._transport, self._request
        if transport.is_closing():
            return
        whole = request is not None and request.whole
        method, keep, old = "", False, False
        if request is not None:
            method, old = request.wire.method, request.old
            keep = whole and request.keep and not self._host.stopping
        try:
            http_answer.write(transport, method, response, keep=keep, old=old)
        except ValueError:
            log.exception("an answer to %s cannot be sent", method)
            transport.write(http_answer.BROKEN)
            keep = False
        if not whole:
            self._linger()
        elif not keep:
            self._close()
        elif self._paused:
            self._flush(State.FLUSH)
        else:
            self._next()

    def _next(self) -> None:
        """The connection is free for another request, which may have come already."""
        if self._host.stopping:
            self._close()
            return
        state = self._state
        self._request = None
        self._state = State.HEAD
        self._timer.set(self._host.limits.keepalive_time)
        self._parser.message_consumed()
        if state is State.HEAD or state is State.BODY:
            return  # refused within _feed, which goes on with what it holds
        held = self._held
        if held:
            self._held = bytearray()
            if not self._transport.is_reading():
                self._transport.resume_reading()
        self._feed(held)

    def _flush(self, state: State) -> None:
        self._state = state
        self._flushed = self._transport.get_write_buffer_size()
        self._timer.set(self._host.limits.idle_body_time)

    def _close(self) -> None:
        self._flush(State.LAST)
        self._transport.close()

    def _linger(self) -> None:
        self._state = State.LINGER
        self._held.clear()
        self._timer.set(_LINGER)
        if self._transport.can_write_eof():
            try:
                self._transport.write_eof()
            except OSError:  # the client has reset the connection meanwhile
                self._transport.abort()

    # ---- time, and the end of the server

    def _expire(self) -> None:
        if self._state is State.BODY or (self._state is State.HEAD and self._head):
            self._refuse(http_head.timed_out())
            return
        if self._state in {State.FLUSH, State.LAST}:
            left = self._transport.get_write_buffer_size()
            if left < self._flushed:
                self._flush(self._state)
                return
        self._transport.abort()

    def finish(self) -> None:
        """Close when the request being received or answered is done; now where there is none."""
        if (self._state is State.HEAD and not self._head) or self._state is State.LINGER:
            self._transport.close()

    def abort(self) -> None:
        """Close now, cancelling what is under way."""
        self._transport.abort()
