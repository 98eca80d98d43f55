"""A gRPC call on a stream of a client's HTTP/2 connection: how it is answered, refused, given up,
whatever it asks. See ``h2_calls``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final, Protocol

from infergate.core.call import Call
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import Limits
from infergate.core.memory import SMALL
from infergate.core.tensor import Buffer
from infergate.core.vocabulary import BUG
from infergate.core.wire import RpcResponse, size
from infergate.transport.base import RpcApp
from infergate.transport.door import Door, Refusal
from infergate.transport.guard import Admission, Unreceived, Unsent, too_slow
from infergate.transport.h2 import calls
from infergate.transport.h2.calls import Asked
from infergate.transport.h2.events import Reset
from infergate.transport.h2.fields import Fields
from infergate.transport.h2.frames import Code
from infergate.transport.h2.messages import OVERHEAD, NoMessage, TooLong, prefix
from infergate.transport.h2.roles import ServerConnection
from infergate.transport.h2.stream import Stream
from infergate.transport.h2_link import NOBODY
from infergate.transport.timer import A_TURN

log = logging.getLogger(__name__)

_LATE: Final = 0.1
"""Seconds after a client's deadline in which the application may still say so itself."""
_LATE_WORDS: Final = "Deadline Exceeded"
LATE: Final = "the message did not come in time"


class CallListener(Protocol):
    """A gRPC listener, as its calls use it."""

    app: RpcApp
    limits: Limits
    admission: Admission

    @property
    def door(self) -> Door:
        """The gate that counts refused clients."""
        ...

    def refused(self, error: GatewayError, asked: Asked, call: Call) -> RpcResponse:
        """Return the application's response to ``error``, which the application records."""
        ...


class CallConnection(Protocol):
    """A client's HTTP/2 connection, as its calls use it."""

    peer: str
    identity: tuple[str, ...]

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the connection."""
        ...

    @property
    def core(self) -> ServerConnection:
        """The HTTP/2 engine of the connection."""
        ...

    @property
    def host(self) -> CallListener:
        """The listener that accepted the connection."""
        ...

    def flush(self) -> None:
        """Write the engine's output now."""
        ...

    def flush_soon(self) -> None:
        """Write the engine's output at the end of this event loop iteration."""
        ...

    async def writable(self) -> None:
        """Wait until the client reads again, or the connection is closing."""
        ...

    def let_end(self, stream: Stream) -> None:
        """Give a client that is still sending a moment to end ``stream``, then reset it."""
        ...

    def cut_off_soon(self, stream: Stream) -> None:
        """Reset ``stream`` in a moment if it is still open then."""
        ...

    def closed(self, call: Served) -> None:
        """Remove ``call``, which has ended."""
        ...


class Served:
    """A call. ``add``, ``end``, ``sent`` and ``gone`` are told what happens on its stream."""

    __slots__ = (
        "_alarm",
        "_asked",
        "_has_ended",
        "_has_headers",
        "_link",
        "_most",
        "_stream",
        "_task",
        "_unreceived",
        "_unsent",
        "call",
    )

    def __init__(self, link: CallConnection, stream: Stream, asked: Asked) -> None:
        now = time.monotonic()
        timeout = asked.timeout
        self._link: Final = link
        self._stream: Final = stream
        self._asked: Final = asked
        self._most: Final = link.host.limits.body + OVERHEAD
        self._has_headers = False  # told the client
        self._has_ended = False  # told it how it ends
        self._task: asyncio.Task[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._unsent: Unsent | None = None
        self._unreceived: Unreceived | None = None
        self.call: Final = Call(
            link.peer,
            now,
            None if timeout is None else now + timeout,
            headers=asked.headers,
            peer_identity=link.identity,
        )
        if timeout is not None:
            self._alarm = link.loop.call_later(timeout + _LATE, self._expire)

    def add(self, parts: Sequence[Buffer], size: int, end: bool) -> None:  # noqa: FBT001
        """Some of the body, of ``size`` bytes."""
        raise NotImplementedError

    def end(self, fields: Fields) -> None:
        """The body ended with trailers, in which gRPC says nothing."""
        raise NotImplementedError

    def sent(self) -> None:
        """Nothing of the answer waits for the client's windows any more."""

    def gone(self, event: Reset) -> None:  # noqa: ARG002
        """The client gave the call up."""
        self.cancel()

    @property
    def task(self) -> asyncio.Task[None] | None:
        """What serves it, while that is under way."""
        return self._task

    def cancel(self) -> None:
        """Nobody waits for the answer any more."""
        task = self._task
        if task is None or task.done():
            self._close()
        else:
            task.add_done_callback(lambda _: self._close())
            task.cancel()

    def overdue(self, now: float, limits: Limits) -> bool:
        """Whether the client has let us wait too long."""
        raise NotImplementedError

    def _is_late(self, late: bool) -> bool:  # noqa: FBT001
        """``late``, of a message: which is recorded."""
        if late:
            self.refused(GatewayError(Kind.TIMEOUT, LATE, limit="idle_body_time"))
        return late

    def _await_message(self, size: int, missing: int, now: float) -> None:
        """A message that holds ``size`` bytes of memory is on its way, and ``missing`` of them are
        to come."""
        if size > SMALL:
            if self._unreceived is None:
                self._unreceived = Unreceived(self._link.host.admission)
            self._unreceived.receive(size, missing, now, self)

    def _end_message(self) -> None:
        if self._unreceived is not None:
            self._unreceived.end()

    def cut_off_sender(self) -> None:
        """See ``guard.Sender``. What waits in the socket is read first."""
        self._link.loop.call_later(A_TURN, self._give_up_sender)

    def _give_up_sender(self) -> None:
        sender, link = self._unreceived, self._link
        if sender is not None and sender.is_slow(link.loop.time(), link.host.limits.idle_body_time):
            sender.end()
            self._refuse_message(too_slow())

    def _refuse_message(self, error: GatewayError) -> None:
        """End the call, whose message is on its way, with ``error``."""
        raise NotImplementedError

    def _hold(self) -> None:
        """Of an answer that the stream does not take, count what waits."""
        queue = self._stream.queue
        if queue is not None:
            if self._unsent is None:
                self._unsent = Unsent(self._link.host.admission)
            self._unsent.begin(size(queue), self._link.loop.time(), self)

    def _is_unread(self, now: float, limits: Limits) -> bool:
        """Whether the client has not taken for too long what waits for its windows."""
        queue, unsent = self._stream.queue, self._unsent
        if queue is None or unsent is None:
            return False
        unsent.left(size(queue), now)
        if now < unsent.due(limits):
            return False
        self._refuse_reader()
        return True

    def _refuse_reader(self) -> None:
        told = "it does not read an answer: that is given up"
        self._link.host.door.refuse(Refusal.SLOW_READER, self._link.peer, told)
        self._link.core.reset(self._stream, Code.CANCEL)

    def awaited(self) -> int:
        """See ``guard.Client``."""
        queue = self._stream.queue
        return 0 if queue is None else size(queue)

    def cut_off(self) -> None:
        """See ``guard.Client``."""
        self._link.loop.call_soon(self._give_up_reader)

    def _give_up_reader(self) -> None:
        if self._stream.queue is not None:
            self._refuse_reader()
            self.give_up(LATE)

    def _close(self) -> None:
        """Its answer is known, or not wanted. What it, its stream and its task hold of each other
        would keep them, and a message, until the collector of cycles runs."""
        if self._unsent is not None:
            self._unsent.end()
        self._end_message()
        self._stream.owner = NOBODY
        self._task = None
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._link.closed(self)

    def _expire(self) -> None:
        self._alarm = None
        self.give_up(_LATE_WORDS)

    def cut(self, error: GatewayError) -> None:
        """End it with ``error``, whatever it is at."""
        link, stream = self._link, self._stream
        if not self._has_ended:
            self.call.cut = error
            self._refuse(self.refused(error))
            if stream.remote_open and stream.queue is None:
                link.core.reset(stream, Code.NO_ERROR)
        self.cancel()

    def _refuse(self, refusal: RpcResponse) -> None:
        self.finish(refusal)

    def give_up(self, why: str) -> None:
        """End it without the application, or without the client where that does not take the
        answer."""
        if self._has_ended:
            self._link.core.reset(self._stream, Code.CANCEL)
            self._link.flush_soon()
        else:
            self.finish(RpcResponse(code=calls.DEADLINE_EXCEEDED, details=why))
            if self._stream.queue is not None:
                self._link.cut_off_soon(self._stream)  # it might never be taken
        self.cancel()

    def refused(self, error: GatewayError) -> RpcResponse:
        """How the application tells ``error``."""
        return self._link.host.refused(error, self._asked, self.call)

    def wrong(self, error: TooLong | NoMessage) -> RpcResponse:
        """How gRPC itself tells what is wrong with a message, whatever is spoken in it; the
        application records it."""
        self.refused(error)
        return self.described(error)

    @staticmethod
    def described(error: TooLong | NoMessage) -> RpcResponse:
        """The same, of what the application has recorded."""
        code = calls.RESOURCE_EXHAUSTED if isinstance(error, TooLong) else calls.INTERNAL
        return RpcResponse(code=code, details=error.public)

    def finish(self, response: RpcResponse) -> None:
        """Send the end of the answer: all of it, where it is unary."""
        if self._has_ended:
            return
        self._has_ended = True
        core, stream = self._link.core, self._stream
        code, length = response.code, size(response.message)
        if not code and length > self._most:
            code = calls.RESOURCE_EXHAUSTED
            response = RpcResponse(
                code=code,
                details=f"Sent message larger than max ({length} vs. {self._most}) (limits.body)",
            )
        ending = calls.ending(code, response.details, response.metadata)
        if code and not self._has_headers:
            block = calls.refusing(200, code, response.details, response.metadata)
            core.send_headers(stream, block, end=True)
        elif code or self._is_stream:
            if not self._has_headers:
                core.send_headers(stream, calls.HEADERS)
            core.send_data(stream, (), ending)
        else:
            core.send_all(stream, calls.HEADERS, (prefix(length), *response.message), ending)
        self._link.let_end(stream)
        self._link.flush_soon()

    _is_stream: bool = False

    def _bug(self) -> RpcResponse:
        """To be called where one was caught."""
        log.exception("answering %s failed", self._asked.method, extra=BUG)  # noqa: LOG004
        return self.refused(GatewayError(Kind.INTERNAL, "internal error"))
