"""A gRPC listener on an HTTP/2 engine of our own: every method's messages pass as bytes.

*Strategy.* Calls to methods in ``app.streams`` and ``app.conversations`` are streams both ways
(which on the wire serves unary-stream too), all others unary: ``h2_calls``. Each has one task,
which starts when there is something for the application to do.

*Rule 1.* Every limit in time is looked at a few times in its length: a connection has one alarm.
*Rule 2.* While a client does not read what we write, we do not read what it writes: whatever it
asks for would only make that more. (Clients always read: two ends that both did this might wait for
each other.)
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
"""How many times in the length of a limit it is looked at."""
_GOODBYE: Final = 1.0
"""Seconds that a client has to tell that it has heard that we stop, or to end what is answered."""


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
        """See Server."""
        self.app = app
        self.period = _period(limits)
        self.keep(limits)

    def stream_handler(self, method: str) -> StreamHandler | None:
        """What serves a streaming method; None: it is none."""
        begin = self.app.conversations.get(method)
        if begin is None:
            return self.app.streams.get(method)

        def answer(messages: AsyncIterator[Buffer], call: Call) -> AsyncIterator[RpcResponse]:
            return held(begin(call), messages, self.admission)

        return answer

    def refused(self, error: GatewayError, asked: Asked, call: Call) -> RpcResponse:
        """How the application tells ``error``, which it records."""
        try:
            return self.app.refuse(error, RpcRequest(asked.method, metadata=asked.headers), call)
        except Exception:
            log.exception("refusing %s failed", asked.method, extra=BUG)
            return RpcResponse(code=calls.INTERNAL, details="internal error")


def _period(limits: Limits) -> float:
    return min(limits.header_time, limits.idle_body_time, limits.keepalive_time) / _LOOKS


class ServerLink(Link):
    """One client's connection."""

    def __init__(self, host: H2Server) -> None:
        limits = host.limits
        core = ServerConnection(limits.headers, limits.streams)
        super().__init__(host.loop, core)
        self.core: Final = core
        self.host: Final = host
        self.peer = ""
        self.identity: tuple[str, ...] = ()  # see Call.peer_identity
        self._calls: set[Served] = set()
        self._most: Final = limits.streams
        self._early = 0  # bytes of headers that are counted of calls beyond that
        self._is_lost = False
        self._is_greeted = False
        self._busy_until = 0.0
        self._is_asked = False  # whether it is still there
        self._advances = 0
        self._headers_since = 0.0
        self._unsent: Final = Unsent(host.admission)  # while the client does not keep up
        self._unwritten = 0
        self._unwritten_since = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._is_spared = False

    # ---- what asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accepted."""
        super().connection_made(transport)
        self.peer = peer_of(transport)
        self.identity = transport.get_extra_info("peer_identity", ())
        if not self.host.opened(self, self.peer):
            self.abort()
            return
        self._busy_until = self._headers_since = self.loop.time()
        self._alarm = self.loop.call_later(self.host.period, self._look)

    def data_received(self, data: bytes) -> None:
        """Bytes of the client."""
        super().data_received(data)
        self._busy_until = self.core.heard_at
        self._is_asked = False

    def pause_writing(self) -> None:
        """Rule 2."""
        super().pause_writing()
        self._unsent.begin(self._transport.get_write_buffer_size(), self.loop.time(), self)
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._unsent.end()
        super().resume_writing()
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: BaseException | None) -> None:  # noqa: ARG002
        """The client went away, or we closed."""
        self._is_lost = True
        self._unsent.end()
        self._release_early()
        if self._alarm is not None:
            self._alarm.cancel()
        self._wake()
        for each in tuple(self._calls):
            each.cancel()
        self._check_over()

    def _check_over(self) -> None:
        if self._is_lost and not self._calls:
            self.host.closed(self)

    # ---- what the core tells

    def _on_ready(self) -> None:
        self._is_greeted = True

    def _on_headers(self, event: Headers) -> None:
        stream, fields = event.stream, event.fields
        asked: Asked | None = fields.meaning
        if asked is None:
            asked = fields.meaning = Asked(fields, self.host.limits)
        if asked.refusal is not None:
            code, details = asked.refusal
            kind = Kind.TOO_LARGE if asked.limit else Kind.BAD_REQUEST
            self._turn_away(stream, asked, code, GatewayError(kind, details, limit=asked.limit))
            return
        if len(self._calls) >= self._most:  # the client may not know yet (bounds.EARLY_STREAMS)
            try:
                self.host.admission.grow(fields.size)
            except GatewayError as error:
                self._turn_away(stream, asked, calls.code_of(error), error)
                return
            self._early += fields.size
        handler = self.host.stream_handler(asked.method)
        if handler is not None:
            streaming = StreamCall(self, stream, asked)
            stream.owner = streaming
            self._calls.add(streaming)
            streaming.start(handler)
            return
        unary = UnaryCall(self, stream, asked)
        stream.owner = unary
        self._calls.add(unary)
        if event.end:
            unary.end(fields)

    def _turn_away(self, stream: Stream, asked: Asked, code: int, error: GatewayError) -> None:
        """There can be no such call: it is answered here, and recorded as any other."""
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
        for each in tuple(self._calls):
            each.cancel()
        self.flush()
        # Closing at once would reset the connection and might destroy what tells the client why.
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self.loop.call_later(_GOODBYE, self.abort)

    def let_end(self, stream: Stream) -> None:
        """``stream`` is answered. A client that is still sending may end it for a moment: some take
        a reset for a failure that comes before they have sent all (curl; RFC 9113, 8.1 says not
        to)."""
        if stream.remote_open:
            self.cut_off_soon(stream)

    def cut_off_soon(self, stream: Stream) -> None:
        """``stream`` is over in a moment, whatever the client makes of it."""
        self.loop.call_later(_GOODBYE, self._cut_off, stream)

    def _cut_off(self, stream: Stream) -> None:
        self.core.reset(stream, Code.NO_ERROR)
        self.flush()

    def closed(self, call: Served) -> None:
        """``call`` needs nothing more of the connection."""
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
        """Write what is to be sent; close where that was the last."""
        if self.paused and not self._transport.is_closing():
            before = self._transport.get_write_buffer_size()
            super().flush()
            self._unsent.grow(self._transport.get_write_buffer_size() - before)
        else:
            super().flush()
        if not self._calls and self.core.is_drained:
            self._transport.close()

    # ---- time, and the end of the server

    def _look(self) -> None:
        now, limits = self.loop.time(), self.host.limits
        assert self._alarm is not None
        if now >= self._alarm.when() + HELD_UP and not self._is_spared:  # see timer
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
        for each in tuple(self._calls):
            if each.overdue(now, limits):
                each.give_up(LATE)
        if self.paused:  # it is not heard because it is not listened to
            self._busy_until = now
        self._look_at_silent(now, limits)

    def _look_at_silent(self, now: float, limits: Limits) -> None:
        """A client may stay as long as it answers, with or without calls: gRPC's do not expect to
        be sent away. One that is gone without a word would hold its streams for ever."""
        silent = now - self._busy_until
        if silent >= limits.keepalive_time and not self._is_asked:
            self._is_asked = True
            self.core.ping()
            self.flush()
        elif silent >= limits.keepalive_time + limits.header_time:
            self.host.door.idle += 1
            self.abort()

    def _is_stuck(self, now: float, limits: Limits) -> bool:
        """Whether nothing is heard inside what must not pause."""
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
        """Whether nothing was taken of what was written, or too little of much."""
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
        if not self._transport.get_write_buffer_size():  # it has read all meanwhile
            return
        self.host.door.refuse(Refusal.SLOW_READER, self.peer, "it does not read its answers")
        self._transport.abort()

    def awaited(self) -> int:
        """See ``guard.Client``."""
        return self._transport.get_write_buffer_size()

    def cut_off(self) -> None:
        """See ``guard.Client``."""
        self.loop.call_soon(self._give_up_reader)

    def _say_goodbye(self) -> None:
        """Close when all calls are done, with those that are on their way."""
        if not self.core.is_draining:
            self.core.drain()
            self.flush()
            self.loop.call_later(_GOODBYE, self._last_words)

    def finish(self) -> None:
        """Close when all calls are done."""
        for each in tuple(self._calls):
            if isinstance(each, StreamCall):
                each.wind_up()
        self._say_goodbye()

    def _last_words(self) -> None:
        if not self._is_lost and not self.core.is_over:
            self.core.refuse_more()
            self.flush()

    def give_up(self, error: GatewayError) -> None:
        """Answer all that is under way with ``error``, and close."""
        for each in tuple(self._calls):
            each.cut(error)
        self.core.refuse_more()
        self.flush()

    def calls(self) -> Iterator[asyncio.Task[None]]:
        """What serves its calls now."""
        for each in self._calls:
            if each.task is not None:
                yield each.task

    def abort(self) -> None:
        """Close now, cancelling what is under way."""
        self._transport.abort()
