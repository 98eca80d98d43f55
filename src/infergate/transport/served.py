"""The server side of a connection that serves an ``HttpApp``, however requests are framed.

A state machine in the protocol's callbacks. Subclasses (``http1``, ``framed``, ``compat``) parse
the bytes and collect a request as it arrives. The connection's only task starts when the request
is complete; until then a rejection is written directly from the callback. One timer serves all
limits.

- Rule 1. The task belongs to the connection and is cancelled when the client disconnects. End of
  file counts as a disconnect, because TCP does not distinguish a half-close from a close.
- Rule 2. Every request is released, either when its response is known or when its task ends.
- Rule 3. A request rejected before its body was read ends the connection: send the response, read
  and discard the rest of the body for a while, then close. Closing immediately would reset the
  connection and could destroy the response in transit.
- Rule 4. The next part of a streamed response is pulled only when the write buffer is empty, or
  nearly.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Final, Generic, Protocol, TypeVar, cast

from infergate.core.call import Call
from infergate.core.errors import GatewayError
from infergate.core.memory import SMALL
from infergate.core.tensor import Buffer
from infergate.core.vocabulary import BUG
from infergate.core.wire import HttpRequest, HttpResponse, Rest, size
from infergate.transport import http_answer, http_head
from infergate.transport.base import HttpApp
from infergate.transport.door import Refusal, peer_of
from infergate.transport.guard import Unreceived, Unsent, too_slow
from infergate.transport.listener import Listener
from infergate.transport.timer import A_TURN, Timer, body_due

log = logging.getLogger(__name__)

_LINGER: Final = 5.0
"""Seconds to keep reading after an early rejection (nginx lingering_timeout: 5 s)."""


class State(enum.Enum):
    """The state of a connection with regard to its current request."""

    HEAD = "waiting for a request, or reading its head"
    BODY = "reading the body"
    BUSY = "the application is handling the request"
    FLUSH = "the response is written, but the client is slow to read it"
    LINGER = "rejected early; discarding the rest of the request"
    LAST = "the last response is written; closing once the client has taken it"
    CLOSED = "closed"


class Request(Protocol):
    """A request that is arriving.

    ``whole``: it has been received completely. ``since``: when its body began to arrive (loop
    time), 0 before.
    """

    wire: HttpRequest
    call: Call
    since: float
    whole: bool

    def release(self) -> None:
        """Release the request if it was admitted, and drop the body."""
        ...


AnyRequest = TypeVar("AnyRequest", bound=Request)


class Served(asyncio.BaseProtocol, Generic[AnyRequest]):
    """The state machine of one connection that ``listener`` accepted."""

    __slots__ = (
        "_host",
        "_identity",
        "_paused",
        "_peer",
        "_request",
        "_room",
        "_state",
        "_task",
        "_timer",
        "_transport",
        "_unreceived",
        "_unsent",
    )

    def __init__(self, host: Listener) -> None:
        self._host = host
        self._timer = Timer(host.loop, self._expire)
        self._state = State.HEAD
        self._peer = ""
        self._identity: tuple[str, ...] = ()  # names in the client certificate
        self._request: AnyRequest | None = None  # from its head to its response
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport
        self._paused = False
        self._room: asyncio.Event | None = None  # set when the write buffer has drained
        self._unsent: Final = Unsent(host.admission)
        self._unreceived: Unreceived | None = None  # created for the first long body

    # ---- implemented by subclasses

    @property
    def _has_begun(self) -> bool:
        """Whether part of a head has arrived; meaningful in state HEAD."""
        raise NotImplementedError

    def _unread(self) -> HttpRequest:
        """Return a placeholder for a request whose head was not read."""
        raise NotImplementedError

    def _send(self, response: HttpResponse) -> bool:
        """Write ``response`` without its body stream; return whether another may follow on the
        connection."""
        raise NotImplementedError

    def _send_more(self, body: Sequence[Buffer] | None) -> None:
        """Write another part of the response; None ends it."""
        raise NotImplementedError

    def _go_on(self, *, received: bool) -> None:
        """Continue with the next request, of which bytes may have arrived.

        ``received`` is True inside a receive callback, whose caller continues with those bytes.
        """
        raise NotImplementedError

    # ---- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register with the listener, or abort if the gate refuses."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._peer = peer_of(transport)
        self._identity = transport.get_extra_info("peer_identity", ())
        if not self._host.opened(self, self._peer):
            self._transport.abort()
            return
        self._timer.set(self._host.limits.header_time)

    def connection_lost(self, exc: BaseException | None) -> None:  # noqa: ARG002
        """Cancel the request in progress."""
        self._state = State.CLOSED
        self._timer.close()
        if self._task is None:
            self._over(None)
        else:
            # Not a ``finally`` in the task: a task cancelled before its first step never runs one.
            self._task.add_done_callback(self._over)
            self._task.cancel()

    def _over(self, _: asyncio.Task[None] | None) -> None:
        self._unsent.end()
        self._end_body()
        if self._request is not None:
            self._request.release()
        # A cancelled task refers to its error, and that to frames whose data would otherwise stay
        # alive until the next garbage collection.
        self._task = None
        self._host.closed(self)

    def pause_writing(self) -> None:
        """Note that the client does not keep up with a response."""
        self._paused = True

    def resume_writing(self) -> None:
        """Continue after the write buffer has drained.

        asyncio's transport would report its end twice if it were closed inside this callback.
        """
        self._paused = False
        self._unsent.end()
        if self._state is State.FLUSH:
            self._host.loop.call_soon(self._flushed)
        elif self._room is not None:
            self._timer.stop()
            self._room.set()

    def _flushed(self) -> None:
        if self._state is State.FLUSH and not self._paused:
            self._next()

    # ---- receiving

    def _await_body(self, received: int, missing: int) -> None:
        """Wait for more of the body: ``received`` bytes are here, ``missing`` are due (0 if its
        length is unknown)."""
        request, host = self._request, self._host
        assert request is not None
        now = host.loop.time()
        since = request.since = request.since or now
        self._timer.set_at(body_due(host.limits, since, received, now))
        if received + missing > SMALL:
            if self._unreceived is None:
                self._unreceived = Unreceived(host.admission)
            self._unreceived.receive(received + missing, missing, now, self)

    def _end_body(self) -> None:
        if self._unreceived is not None:
            self._unreceived.end()

    def cut_off_sender(self) -> None:
        """Reject the body soon if it is still slow; bytes pending in the socket are read first."""
        self._host.loop.call_later(A_TURN, self._give_up_sender)

    def _give_up_sender(self) -> None:
        sender, host = self._unreceived, self._host
        if sender is not None and sender.is_slow(host.loop.time(), host.limits.idle_body_time):
            self._refuse(too_slow())

    # ---- answering

    def _start(self, request: AnyRequest) -> None:
        """Serve a complete request."""
        self._end_body()
        self._timer.stop()
        self._state = State.BUSY
        self._task = self._host.loop.create_task(self._serve(request, self._host.app))

    async def _serve(self, request: AnyRequest, app: HttpApp) -> None:
        try:
            response = await app.respond(request.wire, request.call)
        except (Exception, asyncio.CancelledError) as failure:  # noqa: BLE001
            abort_error = request.call.cut
            if abort_error is not None and isinstance(failure, asyncio.CancelledError):
                failure = abort_error
            response = http_answer.instead(failure, app, request.wire, request.call)
        if response.rest is not None:
            await self._answer_on(response, response.rest, request)
        elif self._state is not State.CLOSED:
            self._task = None
            request.release()
            self._answer(response)

    async def _answer_on(self, response: HttpResponse, rest: Rest, request: AnyRequest) -> None:
        """Write a streamed response (Rule 4)."""
        try:
            keep = self._send(response)
            while True:
                await self._has_room()
                part = await rest.next()
                self._send_more(part)
                if part is None:
                    break
        except Exception:
            log.exception("a streamed response was aborted", extra=BUG)
            self._transport.abort()
            return
        finally:
            await rest.close()
        self._task = None
        request.release()
        if self._transport.is_closing():
            self._wait_for_the_end()
        else:
            self._sent((), keep=keep)

    async def _has_room(self) -> None:
        """Wait until the client has taken most of what was written."""
        if self._paused:
            self._room = asyncio.Event()
            self._flush(State.BUSY)
            await self._room.wait()
            self._room = None

    def _refuse(self, error: GatewayError) -> None:
        """Reject the current request in whatever state the connection is."""
        self._end_body()
        request = self._request
        if request is None:  # the head is incomplete
            wire = self._unread()
            call = Call(self._peer, time.monotonic(), peer_identity=self._identity)
        else:
            wire, call = request.wire, request.call
            request.release()
        self._answer(http_answer.refuse(self._host.app, error, wire, call))

    def _answer(self, response: HttpResponse) -> None:
        if self._transport.is_closing():
            self._wait_for_the_end()
            return
        keep = self._send(response)
        if self._request is None or not self._request.whole:
            self._linger()
        else:
            self._sent(response.body, keep=keep)

    def _sent(self, body: Sequence[Buffer], *, keep: bool) -> None:
        """Finish a response that has been written completely, ``body`` being its last part."""
        if not keep:
            self._close(body)
        elif self._paused:
            self._flush(State.FLUSH, body)
        else:
            self._next()

    def _next(self) -> None:
        """Accept the next request, which may have arrived already."""
        if self._is_last():
            self._close()
            return
        state = self._state
        self._request = None
        self._state = State.HEAD
        self._timer.set(self._host.limits.keepalive_time)
        self._go_on(received=state is State.HEAD or state is State.BODY)

    def _flush(self, state: State, body: Sequence[Buffer] = ()) -> None:
        """Wait for the client to take what was written, of which ``body`` is the last part."""
        self._state = state
        unsent = self._transport.get_write_buffer_size()
        if unsent:  # the whole last part stays in memory until all of it is taken
            unsent = max(unsent, size(body))
        self._unsent.begin(unsent, self._host.loop.time(), self)
        self._timer.set_at(self._unsent.due(self._host.limits))

    def _close(self, body: Sequence[Buffer] = ()) -> None:
        self._flush(State.LAST, body)
        self._transport.close()

    def _wait_for_the_end(self) -> None:
        """Wait for the client to take earlier responses, although it has closed its half."""
        if self._state is not State.CLOSED:
            self._flush(State.LAST)

    def _linger(self) -> None:
        self._state = State.LINGER
        self._timer.set(_LINGER)
        if self._transport.can_write_eof():
            try:
                self._transport.write_eof()
            except OSError:  # the client has reset the connection
                self._transport.abort()

    # ---- timeouts and shutdown

    def _expire(self) -> None:
        if self._state is State.BODY:
            self._refuse(http_head.timed_out("idle_body_time"))
            return
        if self._state is State.HEAD and self._has_begun:
            self._refuse(http_head.timed_out("header_time"))
            return
        if self._state in {State.FLUSH, State.LAST} or self._room is not None:
            host, now = self._host, self._host.loop.time()
            self._unsent.left(self._transport.get_write_buffer_size(), now)
            due = self._unsent.due(host.limits)
            if now < due:
                self._timer.set_at(due)
                return
            self._give_up_reader()
            return
        if self._state is State.HEAD:
            self._host.door.idle += 1
        self._transport.abort()

    def _give_up_reader(self) -> None:
        if not self._unsent.size:  # the client has read everything meanwhile
            return
        self._host.door.refuse(
            Refusal.SLOW_READER, self._peer, "the client does not read its response"
        )
        self._transport.abort()

    def awaited(self) -> int:
        """Return the number of bytes that the client has not taken yet."""
        return self._transport.get_write_buffer_size()

    def cut_off(self) -> None:
        """Disconnect the client soon if it still has not read its response."""
        self._host.loop.call_soon(self._give_up_reader)

    def finish(self) -> None:
        """Close after the request in progress, or now if there is none."""
        if (self._state is State.HEAD and not self._has_begun) or self._state is State.LINGER:
            self._transport.close()

    def give_up(self, error: GatewayError) -> None:
        """Answer the request in progress with ``error``, and close."""
        request = self._request
        if self._task is not None and request is not None:
            request.call.cut = error
            self._task.cancel()
        elif self._state is State.BODY or (self._state is State.HEAD and self._has_begun):
            self._refuse(error)
        else:
            self._transport.abort()

    def _is_last(self) -> bool:
        """Whether the connection ends with this response regardless of what the client asked
        for."""
        return self._host.stopping

    def calls(self) -> Iterator[asyncio.Task[None]]:
        """Return the task that is serving the request, if any."""
        if self._task is not None:
            yield self._task

    def abort(self) -> None:
        """Close now and cancel the request in progress."""
        self._transport.abort()
