"""One client connection of the HTTP server.

*Strategy.* A state machine in the protocol's callbacks, over aiohttp's C parser. The body is
gathered as it arrives, so the one task of a request starts when the request is complete; until
then a refusal is written straight from the callback. One timer serves all limits: it is moved
forward only when it fires, so a busy connection never touches it.

*Rule 1.* The parser is made to stop after each request (``max_msg_queue_size=1``): what a client
pipelines waits unparsed, and more than ``_HELD`` bytes of it wait in the client's socket.
*Rule 2.* The task belongs to the connection and is cancelled when the client goes away. An end of
file counts as going away: TCP cannot tell a half-close from a close.
*Rule 3.* What was admitted is released exactly once, in ``_settle``.
*Rule 4.* A request refused before its body was read ends the connection: the answer is sent, the
rest of the body read and thrown away for a while (closing at once would reset the connection and
might destroy the answer on its way), then the connection is closed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import logging
import math
import time
from email.utils import formatdate
from typing import Any, Final, Protocol, cast

from aiohttp.http import HttpProcessingError, HttpRequestParser, HttpVersion10, RawRequestMessage
from aiohttp.streams import StreamReader

from infergate.core.call import Call
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import Limits
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse, size
from infergate.transport import http_head
from infergate.transport.base import HttpApp
from infergate.transport.guard import Admission

log = logging.getLogger(__name__)

_HELD: Final = 64 * 1024
_LINGER: Final = 5.0
"""Seconds of reading on after an early refusal (nginx lingering_timeout: 5 s)."""
_MINIMUM_RATE: Final = 500
"""Bytes a second that a body must keep up on the whole (Apache RequestReadTimeout: 500)."""
_SMALL: Final = 16 * 1024
_PARSER_BUFFER: Final = 1 << 24
"""Above all that one read may bring: the body is taken out of the parser after each read."""
_NEVER: Final = math.inf


class State(enum.Enum):
    """Where a connection is in the life of a request."""

    HEAD = "waiting for a request, or inside its head"
    BODY = "inside the body"
    BUSY = "the application is answering"
    FLUSH = "the answer is written, the client is slow to read it"
    LINGER = "refused; reading the rest away"
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


class _Clock:
    """The Date line, made once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._line = ""

    def line(self) -> str:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._line = f"server: infergate\r\ndate: {formatdate(second, usegmt=True)}\r\n"
        return self._line


_clock = _Clock()


def _internal() -> GatewayError:
    return GatewayError(Kind.INTERNAL, "internal error")


class Connection(asyncio.Protocol):
    """See the module."""

    __slots__ = (
        "_admitted",
        "_alarm",
        "_began",
        "_call",
        "_chunked",
        "_due",
        "_flushed",
        "_head",
        "_held",
        "_host",
        "_keep",
        "_old",
        "_parser",
        "_parts",
        "_paused",
        "_payload",
        "_peer",
        "_received",
        "_reserved",
        "_state",
        "_task",
        "_transport",
        "_wire",
    )

    def __init__(self, host: Host) -> None:
        limits = host.limits
        self._host = host
        self._parser = HttpRequestParser(
            cast("Any", self),  # it asks for no more than pause_reading and resume_reading
            host.loop,
            _PARSER_BUFFER,
            max_line_size=limits.headers,
            max_field_size=limits.headers,
            max_headers=limits.header_count,
            auto_decompress=False,
            max_msg_queue_size=1,
        )
        self._state = State.HEAD
        self._peer = ""
        self._head = bytearray()
        self._held = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._due = _NEVER
        self._paused = False
        self._admitted = False
        self._reserved = 0
        self._forget()

    def _forget(self) -> None:
        """Nothing is known of the next request. ``_wire`` and ``_call`` come with its head."""
        self._payload: StreamReader | None = None
        self._parts: list[Buffer] = []
        self._received = 0
        self._keep = False
        self._old = False
        self._chunked = False

    # ---- what asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accepted."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer or "unix")
        self._host.opened(self)
        if self._host.stopping:  # accepted in the moment the listener closed
            transport.abort()
            return
        self._watch(self._host.limits.header_time)

    def connection_lost(self, exc: BaseException | None) -> None:  # noqa: ARG002
        """The client went away, or we closed."""
        self._state = State.CLOSED
        self._due = _NEVER
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._task is None:
            self._settle()
            self._host.closed(self)
        else:
            # A callback, not the task's own end: a task cancelled before its first step has none.
            self._task.add_done_callback(self._abandoned)
            self._task.cancel()

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

    def pause_reading(self) -> None:
        """The parser's wish; needless, as its buffer is emptied after each read."""

    def resume_reading(self, resume_parser: bool = True) -> None:  # noqa: FBT001, FBT002
        """The parser's wish; see :meth:`pause_reading`."""

    # ---- receiving

    def _feed(self, data: bytes | bytearray) -> None:
        while True:
            try:
                messages, _, _ = self._parser.feed_data(bytes(data))
            except (HttpProcessingError, ValueError) as error:
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
            self._watch(limits.header_time)
        self._head += data
        if len(self._head) > limits.headers:
            error = http_head.fault_of(bytes(self._head), limits)
            if error.status != http_head.BAD_REQUEST:
                self._refuse(error, error.status)

    def _malformed(self, error: Exception, data: bytes | bytearray) -> None:
        log.debug("%s: not HTTP: %s", self._peer, error)
        if self._state is State.BODY:
            fault = http_head.HeadError(http_head.BAD_REQUEST, "the body is not valid HTTP/1.1")
        else:
            fault = http_head.fault_of(bytes(self._head) + data, self._host.limits)
        self._refuse(fault, fault.status)

    def _begin(self, message: RawRequestMessage, payload: StreamReader) -> None:
        """The head is complete."""
        self._head.clear()
        limits = self._host.limits
        self._payload = payload
        self._chunked = message.chunked
        self._old = message.version == HttpVersion10
        self._keep = not (message.should_close or message.upgrade or message.method == "CONNECT")
        headers = http_head.lowered(message.headers.items())
        target = message.path
        if target.startswith("/"):
            path, _, query = target.partition("?")
        else:
            path, query = message.url.raw_path, message.url.raw_query_string
        self._wire = HttpRequest(message.method, path, query, headers)
        self._call = Call(self._peer, time.monotonic(), headers=headers)
        announced = int(headers.get("content-length", 0))
        try:
            self._check(message, announced)
            self._host.admission.admit(announced)
        except http_head.HeadError as error:
            self._refuse(error, error.status)
            return
        except GatewayError as error:
            self._refuse(error)
            return
        self._admitted = True
        self._reserved = announced
        self._state = State.BODY
        if payload.is_eof():
            return
        self._began = self._host.loop.time()
        self._watch(limits.idle_body_time)
        if not self._old and headers.get("expect", "").lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _check(self, message: RawRequestMessage, announced: int) -> None:
        limits = self._host.limits
        if len(message.path) > limits.headers:
            raise http_head.uri_too_long(limits)
        http_head.check_fields(message.raw_headers, limits)
        if message.method == "CONNECT":
            raise GatewayError(Kind.METHOD_NOT_ALLOWED, "CONNECT is not served here")
        if not message.path.isascii():
            raise http_head.HeadError(http_head.BAD_REQUEST, "the request target is not ASCII")
        if announced > limits.body:
            raise self._too_large(announced)

    def _too_large(self, found: int) -> GatewayError:
        limit = self._host.limits.body
        return GatewayError(
            Kind.TOO_LARGE, f"the request body has {found} bytes or more, the limit is {limit}"
        )

    def _gather(self) -> None:
        """Take what the parser has of the body; serve when that is all."""
        payload = self._payload
        assert payload is not None
        chunk = payload.read_nowait()
        if chunk:
            self._received += len(chunk)
            if self._chunked:
                try:
                    self._reserve(len(chunk))
                except GatewayError as error:
                    self._refuse(error)
                    return
            self._keep_part(chunk)
        if payload.is_eof():
            self._due = _NEVER
            self._state = State.BUSY
            self._wire.body = self._parts
            self._call.bytes_in = self._received
            self._task = self._host.loop.create_task(self._serve(self._wire, self._call))
            return
        limits = self._host.limits
        self._due = min(
            self._host.loop.time() + limits.idle_body_time,
            self._began + limits.idle_body_time + self._received / _MINIMUM_RATE,
        )

    def _reserve(self, more: int) -> None:
        if self._received > self._host.limits.body:
            raise self._too_large(self._received)
        self._host.admission.grow(more)
        self._reserved += more

    def _keep_part(self, chunk: bytes) -> None:
        # Large chunks stay as they came; small ones are gathered, lest a body that drips cost
        # an object for each byte.
        if len(chunk) >= _SMALL or not self._parts:
            self._parts.append(chunk)
            return
        last = self._parts[-1]
        if isinstance(last, bytearray):
            last += chunk
        else:
            self._parts.append(bytearray(chunk))

    # ---- answering

    async def _serve(self, wire: HttpRequest, call: Call) -> None:
        try:
            response = await self._host.app.respond(wire, call)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            log.exception("answering %s %s was cancelled from within", wire.method, wire.path)
            response = self._refusal(_internal())
        except GatewayError as error:
            response = self._refusal(error)
        except Exception:
            log.exception("answering %s %s failed", wire.method, wire.path)
            response = self._refusal(_internal())
        if self._state is not State.CLOSED:
            self._task = None
            self._settle()
            self._answer(response)

    def _abandoned(self, _: asyncio.Task[None]) -> None:
        self._settle()
        self._host.closed(self)

    def _settle(self) -> None:
        if self._admitted:
            self._admitted = False
            self._host.admission.release(self._reserved)

    def _refusal(self, error: GatewayError) -> HttpResponse:
        wire = dataclasses.replace(self._wire, body=())
        try:
            return self._host.app.refuse(error, wire, self._call)
        except Exception:
            log.exception("refusing %s %s failed", wire.method, wire.path)
            return HttpResponse(500)

    def _refuse(self, error: GatewayError, status: int | None = None) -> None:
        """Turn the request away; ``status`` where HTTP has one that no Kind has."""
        self._settle()
        if self._payload is None:  # refused inside its head
            self._wire = HttpRequest("", "")
            self._call = Call(self._peer, time.monotonic())
        response = self._refusal(error)
        if status is not None:
            response = dataclasses.replace(response, status=status)
        if self._payload is None or not self._payload.is_eof():
            self._keep = False
        self._answer(response)

    def _answer(self, response: HttpResponse) -> None:
        transport = self._transport
        if transport.is_closing():
            return
        keep = self._keep and not self._host.stopping
        extra = ""
        if not keep:
            extra = "connection: close\r\n"
        elif self._old:
            extra = "connection: keep-alive\r\n"
        length = size(response.body)
        try:
            head = http_head.write_head(
                response.status, response.headers, length, extra, _clock.line()
            )
        except ValueError:
            log.exception("answering %s %s failed", self._wire.method, self._wire.path)
            self._keep = False
            transport.write(b"HTTP/1.1 500 \r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            transport.close()
            return
        body = response.body if http_head.has_body(self._wire.method, response.status) else ()
        for part in http_head.gathered(head, body):
            transport.write(part)
        if keep:
            self._after_answer()
        elif self._payload is not None and self._payload.is_eof():
            self._close()
        else:
            self._linger()

    def _after_answer(self) -> None:
        if self._paused:
            self._state = State.FLUSH
            self._flushed = self._transport.get_write_buffer_size()
            self._watch(self._host.limits.idle_body_time)
        else:
            self._next()

    def _next(self) -> None:
        """The connection is free for another request, which may have come already."""
        if self._host.stopping:
            self._close()
            return
        refused_within_feed = self._state in {State.HEAD, State.BODY}
        self._forget()
        self._state = State.HEAD
        self._watch(self._host.limits.keepalive_time)
        self._parser.message_consumed()
        if refused_within_feed:
            return  # _feed goes on with what it holds
        held = self._held
        if held:
            self._held = bytearray()
            if not self._transport.is_reading():
                self._transport.resume_reading()
        self._feed(held)

    def _close(self) -> None:
        # What is still in the write buffer is sent first; a client that does not read it is
        # watched like any other.
        self._state = State.FLUSH
        self._flushed = self._transport.get_write_buffer_size()
        self._watch(self._host.limits.idle_body_time)
        self._transport.close()

    def _linger(self) -> None:
        self._state = State.LINGER
        self._held.clear()
        self._watch(_LINGER)
        if self._transport.can_write_eof():
            self._transport.write_eof()

    # ---- time

    def _watch(self, seconds: float) -> None:
        """Have :meth:`_ring` called in so many seconds, unless watched anew until then."""
        loop = self._host.loop
        self._due = loop.time() + seconds
        if self._alarm is not None:
            if self._alarm.when() <= self._due:
                return
            self._alarm.cancel()
        self._alarm = loop.call_at(self._due, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        due = self._due
        if due == _NEVER:
            return
        loop = self._host.loop
        if loop.time() < due:
            self._alarm = loop.call_at(due, self._ring)
        else:
            self._expire()

    def _expire(self) -> None:
        if self._state is State.BODY or (self._state is State.HEAD and self._head):
            error = GatewayError(Kind.TIMEOUT, "the request did not arrive in time")
            self._refuse(error, http_head.TIMED_OUT)
        elif self._state is State.FLUSH:
            left = self._transport.get_write_buffer_size()
            if left < self._flushed:
                self._flushed = left
                self._watch(self._host.limits.idle_body_time)
            else:
                self._transport.abort()
        else:
            self._transport.abort()

    # ---- the end of the server

    def finish(self) -> None:
        """Close when the request being received or answered is done; now where there is none."""
        if (self._state is State.HEAD and not self._head) or self._state is State.LINGER:
            self._transport.close()

    def abort(self) -> asyncio.Task[None] | None:
        """Close now. Returns the task that was cancelled, if there was one."""
        task = self._task
        if task is not None:
            task.cancel()
        self._transport.abort()
        return task
