"""A gRPC server on the gateway's own HTTP/2 engine; messages of all methods pass as bytes.

Methods in `app.streams` and `app.request_streams` are served as bidirectional streams, which on the
wire includes server streaming; all others are unary (`server_call_kinds`). Each call has one task,
started when the application has something to do.

- Each connection has a single timer, which checks every time limit several times within its length.
- While a client does not read what the server writes, the server does not read from it, because
  more requests would only add to the unread output. (Two peers that both did this could deadlock;
  gRPC clients always read.)
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from typing import Final

from infergate.core.call import Call
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import Limits
from infergate.core.tensor import Buffer
from infergate.core.vocabulary import BUG
from infergate.core.wire import RpcRequest, RpcResponse
from infergate.transport.base import Address, RpcApp, StreamHandler
from infergate.transport.door import Door, Refusal, is_hello, peer_of
from infergate.transport.grpc_conversation import held
from infergate.transport.guard import Admission, Unsent
from infergate.transport.h2 import calls
from infergate.transport.h2.calls import Asked
from infergate.transport.h2.events import Failed, Headers
from infergate.transport.h2.frames import Code
from infergate.transport.h2.roles import ServerConnection
from infergate.transport.h2.stream import Stream
from infergate.transport.h2_calls import StreamCall, UnaryCall
from infergate.transport.h2_link import NOBODY, Link
from infergate.transport.h2_served import LATE, Served
from infergate.transport.listener import Sockets
from infergate.transport.timer import A_TURN, HELD_UP

log = logging.getLogger(__name__)

_LOOKS: Final = 4
"""How many times a time limit is checked within its length."""
_GOODBYE: Final = 1.0
"""Seconds that a client has to acknowledge a shutdown, or to end a request that was answered
early."""


class H2Server(Sockets):
    """A :class:`~infergate.transport.base.Server` for gRPC."""

    def __init__(
        self,
        address: Address,
        app: RpcApp,
        limits: Limits,
        admission: Admission,
        door: Door | None = None,
    ) -> None:
        super().__init__(address, limits, admission, lambda: ServerLink(self), door)
        self.app = app
        self.period = _period(limits)

    def serve(self, app: RpcApp, limits: Limits) -> None:
        """Serve `app` within `limits` from now on."""
        self.app = app
        self.period = _period(limits)
        self.keep(limits)

    def stream_handler(self, method: str) -> StreamHandler | None:
        """Return the handler of a streaming method, or None if the method is unary or unknown."""
        begin = self.app.conversations.get(method)
        if begin is None:
            return self.app.streams.get(method)

        def respond(messages: AsyncIterator[Buffer], call: Call) -> AsyncIterator[RpcResponse]:
            return held(begin(call), messages, self.admission)

        return respond

    def refused(self, error: GatewayError, asked: Asked, call: Call) -> RpcResponse:
        """Return the application's response to `error`, which the application records."""
        try:
            return self.app.refuse(error, RpcRequest(asked.method, metadata=asked.headers), call)
        except Exception:
            log.exception("refusing %s failed", asked.method, extra=BUG)
            return RpcResponse(code=calls.INTERNAL, details="internal error")


def _period(limits: Limits) -> float:
    return min(limits.header_time, limits.idle_body_time, limits.keepalive_time) / _LOOKS


class ServerLink(Link):
    """A client's connection."""

    def __init__(self, host: H2Server) -> None:
        limits = host.limits
        core = ServerConnection(limits.headers, limits.streams)
        super().__init__(host.loop, core)
        self.core: Final = core
        self.host: Final = host
        self.peer = ""
        self.identity: tuple[str, ...] = ()  # `Call.peer_identity`
        self._calls: set[Served] = set()
        self._most: Final = limits.streams
        self._early = 0  # counted header bytes of the calls beyond `_max_streams`
        self._is_lost = False
        self._is_greeted = False
        self._busy_until = 0.0
        self._is_asked = False  # a PING is unanswered
        self._advances = 0
        self._headers_since = 0.0
        self._unsent: Final = Unsent(host.admission)  # while writing is paused
        self._unwritten = 0
        self._unwritten_since = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._is_spared = False

    # ---- asyncio callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection with the listener, or abort it if it is refused."""
        super().connection_made(transport)
        self.peer = peer_of(transport)
        self.identity = transport.get_extra_info("peer_identity", ())
        if not self.host.opened(self, self.peer):
            self.abort()
            return
        self._busy_until = self._headers_since = self.loop.time()
        self._alarm = self.loop.call_later(self.host.period, self._look)

    def data_received(self, data: bytes) -> None:
        """Process bytes of the client."""
        super().data_received(data)
        self._busy_until = self.core.heard_at
        self._is_asked = False

    def pause_writing(self) -> None:
        """Stop reading from a client that does not read."""
        super().pause_writing()
        self._unsent.begin(self._transport.get_write_buffer_size(), self.loop.time(), self)
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Read from the client again: it has read the output."""
        self._unsent.end()
        super().resume_writing()
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: BaseException | None) -> None:  # noqa: ARG002
        """Cancel the calls: the connection is closed."""
        self._is_lost = True
        self._unsent.end()
        self._release_early()
        if self._alarm is not None:
            self._alarm.cancel()
        self._wake()
        for call in tuple(self._calls):
            call.cancel()
        self._check_over()

    def _check_over(self) -> None:
        if self._is_lost and not self._calls:
            self.host.closed(self)

    # ---- engine events

    def _on_ready(self) -> None:
        self._is_greeted = True

    def _on_headers(self, event: Headers) -> None:
        stream, fields = event.stream, event.fields
        request: Asked | None = fields.meaning
        if request is None:
            request = fields.meaning = Asked(fields, self.host.limits)
        if request.refusal is not None:
            code, details = request.refusal
            kind = Kind.TOO_LARGE if request.limit else Kind.BAD_REQUEST
            self._turn_away(stream, request, code, GatewayError(kind, details, limit=request.limit))
            return
        if (
            len(self._calls) >= self._most
        ):  # the client may not know the limit yet (`limits.EARLY_STREAMS`)
            try:
                self.host.admission.grow(fields.size)
            except GatewayError as error:
                self._turn_away(stream, request, calls.code_of(error), error)
                return
            self._early += fields.size
        handler = self.host.stream_handler(request.method)
        if handler is not None:
            stream_call = StreamCall(self, stream, request)
            stream.owner = stream_call
            self._calls.add(stream_call)
            stream_call.start(handler)
            return
        unary_call = UnaryCall(self, stream, request)
        stream.owner = unary_call
        self._calls.add(unary_call)
        if event.end:
            unary_call.end(fields)

    def _turn_away(self, stream: Stream, asked: Asked, code: int, error: GatewayError) -> None:
        """Refuse a call that cannot be started; the application records it like any other."""
        call = Call(self.peer, time.monotonic(), headers=asked.headers, peer_identity=self.identity)
        self.host.refused(error, asked, call)
        block = calls.refusing(asked.status, code, error.public, {})
        self.core.send_headers(stream, block, end=True)
        stream.owner = NOBODY
        self.let_end(stream)

    def _on_failed(self, event: Failed) -> None:
        door = self.host.door
        if is_hello(self.core.begun):
            door.refuse_tls(self.peer)
        else:
            is_flood = event.code == Code.ENHANCE_YOUR_CALM
            door.refuse(Refusal.FLOOD if is_flood else Refusal.PROTOCOL, self.peer, event.reason)
        for call in tuple(self._calls):
            call.cancel()
        self.flush()
        # Closing at once could reset the connection and lose the GOAWAY with the reason.
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self.loop.call_later(_GOODBYE, self.abort)

    def let_end(self, stream: Stream) -> None:
        """Give a client that is still sending on an answered stream a moment to end it, then reset
        it. Some clients (curl) take an immediate reset for a failure, against RFC 9113, 8.1."""
        if stream.remote_open:
            self.cut_off_soon(stream)

    def cut_off_soon(self, stream: Stream) -> None:
        """Reset `stream` in a moment if it is still open then."""
        self.loop.call_later(_GOODBYE, self._cut_off, stream)

    def _cut_off(self, stream: Stream) -> None:
        self.core.reset(stream, Code.NO_ERROR)
        self.flush()

    def closed(self, call: Served) -> None:
        """Remove `call`, which has ended."""
        self._calls.discard(call)
        if self._early and len(self._calls) <= self._most:
            self._release_early()
        if self._is_lost:
            self._check_over()
        elif self.host.stopping:
            self.flush_soon()

    def _release_early(self) -> None:
        self.host.admission.bytes -= self._early
        self._early = 0

    def flush(self) -> None:
        """Write pending output; close the connection if that was the last of a drain."""
        if self.paused and not self._transport.is_closing():
            buffered = self._transport.get_write_buffer_size()
            super().flush()
            self._unsent.grow(self._transport.get_write_buffer_size() - buffered)
        else:
            super().flush()
        if not self._calls and self.core.is_drained:
            self._transport.close()

    # ---- time limits and shutdown

    def _look(self) -> None:
        now, limits = self.loop.time(), self.host.limits
        assert self._alarm is not None
        if now >= self._alarm.when() + HELD_UP and not self._is_spared:  # see `timer`
            self._is_spared = True
            self._alarm = self.loop.call_later(A_TURN, self._look)
            return
        self._is_spared = False
        self._alarm = self.loop.call_later(self.host.period, self._look)
        if self._is_stuck(now, limits):
            self._transport.abort()
            return
        if self._is_unread(now, limits):
            self._give_up_reader()
            return
        for call in tuple(self._calls):
            if call.overdue(now, limits):
                call.give_up(LATE)
        if self.paused:  # silent only because we do not read
            self._busy_until = now
        self._look_at_silent(now, limits)

    def _look_at_silent(self, now: float, limits: Limits) -> None:
        """Ping a silent client, and close if it does not answer. An idle client that answers may
        stay, because gRPC clients do not expect to be disconnected; one that vanished would hold
        its streams forever."""
        silent = now - self._busy_until
        if silent >= limits.keepalive_time and not self._is_asked:
            self._is_asked = True
            self.core.ping()
            self.flush()
        elif silent >= limits.keepalive_time + limits.header_time:
            self.host.door.idle += 1
            self.abort()

    def _is_stuck(self, now: float, limits: Limits) -> bool:
        """Return whether a handshake, header block or small frame has been incomplete for too
        long."""
        core = self.core
        if core.is_over:
            return False
        if self._is_greeted and not (core.is_inside_headers and core.advances == self._advances):
            self._advances, self._headers_since = core.advances, now
        if now >= self._headers_since + limits.header_time:
            self.host.door.over("header_time")
            return True
        return False

    def _is_unread(self, now: float, limits: Limits) -> bool:
        """Return whether the client has read none of the output, or too little of much, for too
        long."""
        if self.core.is_over:
            return False
        unwritten = self._transport.get_write_buffer_size()
        if not unwritten or unwritten != self._unwritten:
            self._unwritten, self._unwritten_since = unwritten, now
        if self.paused:
            self._unsent.left(unwritten, now)
            if now >= self._unsent.due(limits):
                return True
        return now >= self._unwritten_since + limits.idle_body_time

    def _give_up_reader(self) -> None:
        if not self._transport.get_write_buffer_size():  # the client has caught up
            return
        self.host.door.refuse(
            Refusal.SLOW_READER, self.peer, "the client does not read its responses"
        )
        self._transport.abort()

    def awaited(self) -> int:
        """Return the bytes that the client has not taken."""
        return self._transport.get_write_buffer_size()

    def cut_off(self) -> None:
        """Give up on the client in the next event loop iteration."""
        self.loop.call_soon(self._give_up_reader)

    def _say_goodbye(self) -> None:
        """Announce the shutdown. Close when all calls are done, including those already on their
        way."""
        if not self.core.is_draining:
            self.core.drain()
            self.flush()
            self.loop.call_later(_GOODBYE, self._last_words)

    def finish(self) -> None:
        """Close when all calls are done."""
        for call in tuple(self._calls):
            if isinstance(call, StreamCall):
                call.wind_up()
        self._say_goodbye()

    def _last_words(self) -> None:
        if not self._is_lost and not self.core.is_over:
            self.core.refuse_more()
            self.flush()

    def give_up(self, error: GatewayError) -> None:
        """Answer all calls with `error`, and close."""
        for call in tuple(self._calls):
            call.cut(error)
        self.core.refuse_more()
        self.flush()

    def calls(self) -> Iterator[asyncio.Task[None]]:
        """Yield the tasks that serve the calls."""
        for call in self._calls:
            if call.task is not None:
                yield call.task

    def abort(self) -> None:
        """Close now and cancel the calls."""
        self._transport.abort()
