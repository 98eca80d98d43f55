"""A client's connection, however its requests are cut out of its bytes.

*Strategy.* A state machine in the protocol's callbacks. What the bytes mean is the matter of those
derived from it (``http_connection``, ``frame_connection``): they gather a request as it arrives.
Its one task starts when it is complete; until then a refusal is written straight from the callback.
One timer serves all limits.

*Rule 1.* The task belongs to the connection and is cancelled when the client goes away. An end of
file counts as going away: TCP cannot tell a half-close from a close.
*Rule 2.* Every request is released: when its answer is known, or when its task is over.
*Rule 3.* A request refused before its body was read ends the connection: the answer is sent, the
rest of the body read and thrown away for a while (closing at once would reset the connection and
might destroy the answer on its way), then the connection is closed.
*Rule 4.* The rest of an answer is pulled when what came before it has left our buffer, or nearly.
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


class Request(Protocol):
    """A request on its way in. ``whole``: all of it was received; ``since`` is when its body began
    to come (loop time), 0 before."""

    wire: HttpRequest
    call: Call
    since: float
    whole: bool

    def release(self) -> None:
        """Give back what was admitted, if anything was, and let go of the body."""
        ...


AnyRequest = TypeVar("AnyRequest", bound=Request)


class Served(asyncio.BaseProtocol, Generic[AnyRequest]):
    """See the module."""

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
        self._identity: tuple[str, ...] = ()  # see Call.peer_identity
        self._request: AnyRequest | None = None  # from its head to its answer
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport
        self._paused = False
        self._room: asyncio.Event | None = None  # where the rest of an answer waits for it
        self._unsent: Final = Unsent(host.admission)
        self._unreceived: Unreceived | None = None  # once a long body has come

    # ---- what those derived from it say

    @property
    def _has_begun(self) -> bool:
        """Whether the state HEAD means that some of a head is here."""
        raise NotImplementedError

    def _unread(self) -> HttpRequest:
        """What stands for a request whose head was not read."""
        raise NotImplementedError

    def _send(self, response: HttpResponse) -> bool:
        """Write ``response`` to the request, but for its rest; whether another may follow."""
        raise NotImplementedError

    def _send_more(self, body: Sequence[Buffer] | None) -> None:
        """Write more of the answer; None: that was all."""
        raise NotImplementedError

    def _go_on(self, *, received: bool) -> None:
        """Free for another request, of which bytes may be here. ``received``: this is called while
        bytes are being looked at, and the caller goes on with them."""
        raise NotImplementedError

    # ---- what asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accepted."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by name
        self._peer = peer_of(transport)
        self._identity = transport.get_extra_info("peer_identity", ())
        if not self._host.opened(self, self._peer):
            self._transport.abort()
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
        self._unsent.end()
        self._end_body()
        if self._request is not None:
            self._request.release()
        # A task that was cancelled knows its error, and that knows the frames that it went
        # through: what they hold would stay until cycles are collected.
        self._task = None
        self._host.closed(self)

    def pause_writing(self) -> None:
        """The client does not keep up with an answer."""
        self._paused = True

    def resume_writing(self) -> None:
        """It does again. (Closed here, asyncio's transport would end twice.)"""
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
        """``received`` bytes of the request's body are here, and more is due: ``missing`` bytes,
        or 0 where no length was announced."""
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
        """See ``guard.Sender``. What waits in the socket is read first."""
        self._host.loop.call_later(A_TURN, self._give_up_sender)

    def _give_up_sender(self) -> None:
        sender, host = self._unreceived, self._host
        if sender is not None and sender.is_slow(host.loop.time(), host.limits.idle_body_time):
            self._refuse(too_slow())

    # ---- answering

    def _start(self, request: AnyRequest) -> None:
        """``request`` is complete: serve it."""
        self._end_body()
        self._timer.stop()
        self._state = State.BUSY
        self._task = self._host.loop.create_task(self._serve(request, self._host.app))

    async def _serve(self, request: AnyRequest, app: HttpApp) -> None:
        try:
            response = await app.respond(request.wire, request.call)
        except (Exception, asyncio.CancelledError) as failure:  # noqa: BLE001
            cut = request.call.cut
            if cut is not None and isinstance(failure, asyncio.CancelledError):
                failure = cut
            response = http_answer.instead(failure, app, request.wire, request.call)
        if response.rest is not None:
            await self._answer_on(response, response.rest, request)
        elif self._state is not State.CLOSED:
            self._task = None
            request.release()
            self._answer(response)

    async def _answer_on(self, response: HttpResponse, rest: Rest, request: AnyRequest) -> None:
        """Rule 4."""
        try:
            keep = self._send(response)
            while True:
                await self._has_room()
                body = await rest.next()
                self._send_more(body)
                if body is None:
                    break
        except Exception:
            log.exception("an answer was given up", extra=BUG)
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
        """Wait until the client has taken most of what was written, for as long as it takes any."""
        if self._paused:
            self._room = asyncio.Event()
            self._flush(State.BUSY)
            await self._room.wait()
            self._room = None

    def _refuse(self, error: GatewayError) -> None:
        """Turn the request away, wherever in it the connection is."""
        self._end_body()
        request = self._request
        if request is None:  # inside its head
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
        """All of the answer is written, with ``body`` last."""
        if not keep:
            self._close(body)
        elif self._paused:
            self._flush(State.FLUSH, body)
        else:
            self._next()

    def _next(self) -> None:
        """The connection is free for another request, which may have come already."""
        if self._is_last():
            self._close()
            return
        state = self._state
        self._request = None
        self._state = State.HEAD
        self._timer.set(self._host.limits.keepalive_time)
        self._go_on(received=state is State.HEAD or state is State.BODY)

    def _flush(self, state: State, body: Sequence[Buffer] = ()) -> None:
        """Wait for the client, which has not taken all of what was written, such as ``body``."""
        self._state = state
        waiting = self._transport.get_write_buffer_size()
        if waiting:  # what the system has taken of the answer is held as long as the rest
            waiting = max(waiting, size(body))
        self._unsent.begin(waiting, self._host.loop.time(), self)
        self._timer.set_at(self._unsent.due(self._host.limits))

    def _close(self, body: Sequence[Buffer] = ()) -> None:
        self._flush(State.LAST, body)
        self._transport.close()

    def _wait_for_the_end(self) -> None:
        """The client ended its half: what it has not taken of answers before is all that keeps the
        connection, and has its time like any last answer."""
        if self._state is not State.CLOSED:
            self._flush(State.LAST)

    def _linger(self) -> None:
        self._state = State.LINGER
        self._timer.set(_LINGER)
        if self._transport.can_write_eof():
            try:
                self._transport.write_eof()
            except OSError:  # the client has reset the connection meanwhile
                self._transport.abort()

    # ---- time, and the end of the server

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
        if not self._unsent.size:  # it has read all meanwhile
            return
        self._host.door.refuse(Refusal.SLOW_READER, self._peer, "it does not read its answer")
        self._transport.abort()

    def awaited(self) -> int:
        """See ``guard.Client``."""
        return self._transport.get_write_buffer_size()

    def cut_off(self) -> None:
        """See ``guard.Client``."""
        self._host.loop.call_soon(self._give_up_reader)

    def finish(self) -> None:
        """Close when the request being received or answered is done; now where there is none."""
        if (self._state is State.HEAD and not self._has_begun) or self._state is State.LINGER:
            self._transport.close()

    def give_up(self, error: GatewayError) -> None:
        """Answer what is under way with ``error``, and close."""
        request = self._request
        if self._task is not None and request is not None:
            request.call.cut = error
            self._task.cancel()
        elif self._state is State.BODY or (self._state is State.HEAD and self._has_begun):
            self._refuse(error)
        else:
            self._transport.abort()

    def _is_last(self) -> bool:
        """Whether the connection ends with this answer, however its client asked."""
        return self._host.stopping

    def calls(self) -> Iterator[asyncio.Task[None]]:
        """What serves its request now."""
        if self._task is not None:
            yield self._task

    def abort(self) -> None:
        """Close now, cancelling what is under way."""
        self._transport.abort()
