"""One gRPC call on a stream of a client's HTTP/2 connection: what unary calls and streams share.
Both kinds are in `server_call_kinds`."""

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
"""Seconds after a client's deadline in which the application may still report it itself."""
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
    """A call. The connection calls `add`, `end`, `sent` and `gone` for events on the call's
    stream."""

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
        self._has_headers = False  # response headers were sent
        self._has_ended = False  # the status was sent
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
        """Take `size` bytes of the body."""
        raise NotImplementedError

    def end(self, fields: Fields) -> None:
        """Handle the end of the body by trailers, which have no meaning in gRPC requests."""
        raise NotImplementedError

    def sent(self) -> None:
        """Handle that no part of the response waits for the client's windows any more."""

    def gone(self, event: Reset) -> None:  # noqa: ARG002
        """Handle that the client reset the stream."""
        self.cancel()

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The task that serves the call, while it runs."""
        return self._task

    def cancel(self) -> None:
        """Cancel the call: nobody waits for its response."""
        task = self._task
        if task is None or task.done():
            self._close()
        else:
            task.add_done_callback(lambda _: self._close())
            task.cancel()

    def overdue(self, now: float, limits: Limits) -> bool:
        """Return whether the client has exceeded a time limit."""
        raise NotImplementedError

    def _is_late(self, late: bool) -> bool:  # noqa: FBT001
        """Report a message that exceeded a time limit to the application; return `is_late`."""
        if late:
            self.refused(GatewayError(Kind.TIMEOUT, LATE, limit="idle_body_time"))
        return late

    def _await_message(self, size: int, missing: int, now: float) -> None:
        """Account for an incoming message: it holds `size` bytes of memory, of which `missing` are
        still to come."""
        if size > SMALL:
            if self._unreceived is None:
                self._unreceived = Unreceived(self._link.host.admission)
            self._unreceived.receive(size, missing, now, self)

    def _end_message(self) -> None:
        if self._unreceived is not None:
            self._unreceived.end()

    def cut_off_sender(self) -> None:
        """Give up on a slow sender, after reading what already waits in the socket."""
        self._link.loop.call_later(A_TURN, self._give_up_sender)

    def _give_up_sender(self) -> None:
        sender, link = self._unreceived, self._link
        if sender is not None and sender.is_slow(link.loop.time(), link.host.limits.idle_body_time):
            sender.end()
            self._refuse_message(too_slow())

    def _refuse_message(self, error: GatewayError) -> None:
        """End the call with `error` while its message is still arriving."""
        raise NotImplementedError

    def _hold(self) -> None:
        """Count the part of the response that waits for the client's windows."""
        queue = self._stream.queue
        if queue is not None:
            if self._unsent is None:
                self._unsent = Unsent(self._link.host.admission)
            self._unsent.begin(size(queue), self._link.loop.time(), self)

    def _is_unread(self, now: float, limits: Limits) -> bool:
        """Return whether the client has left the response waiting for too long; the call is then
        refused."""
        queue, unsent = self._stream.queue, self._unsent
        if queue is None or unsent is None:
            return False
        unsent.left(size(queue), now)
        if now < unsent.due(limits):
            return False
        self._refuse_reader()
        return True

    def _refuse_reader(self) -> None:
        reason = "the client does not read a response, which is abandoned"
        self._link.host.door.refuse(Refusal.SLOW_READER, self._link.peer, reason)
        self._link.core.reset(self._stream, Code.CANCEL)

    def awaited(self) -> int:
        """Return the bytes of the response that the client has not taken."""
        queue = self._stream.queue
        return 0 if queue is None else size(queue)

    def cut_off(self) -> None:
        """Give up on the client in the next event loop iteration."""
        self._link.loop.call_soon(self._give_up_reader)

    def _give_up_reader(self) -> None:
        if self._stream.queue is not None:
            self._refuse_reader()
            self.give_up(LATE)

    def _close(self) -> None:
        """Release everything the call holds. References between the call, its stream and its task
        would otherwise form a cycle that keeps a message alive until the garbage collector runs."""
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
        """End the call with `error`, whatever its state."""
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
        """End the call with DEADLINE_EXCEEDED without asking the application, or reset the stream
        if the status was already sent."""
        if self._has_ended:
            self._link.core.reset(self._stream, Code.CANCEL)
            self._link.flush_soon()
        else:
            self.finish(RpcResponse(code=calls.DEADLINE_EXCEEDED, details=why))
            if self._stream.queue is not None:
                self._link.cut_off_soon(self._stream)  # the client might never read it
        self.cancel()

    def refused(self, error: GatewayError) -> RpcResponse:
        """Return the application's response to `error`."""
        return self._link.host.refused(error, self._asked, self.call)

    def wrong(self, error: TooLong | NoMessage) -> RpcResponse:
        """Return gRPC's own status for an invalid message, independent of the protocol spoken in
        the messages. The application records the error."""
        self.refused(error)
        return self.described(error)

    @staticmethod
    def described(error: TooLong | NoMessage) -> RpcResponse:
        """Return the same status for an error that the application has already recorded."""
        code = calls.RESOURCE_EXHAUSTED if isinstance(error, TooLong) else calls.INTERNAL
        return RpcResponse(code=code, details=error.public)

    def finish(self, response: RpcResponse) -> None:
        """Send the end of the response, which for a unary call is all of it."""
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
        """Return the response to an unexpected exception; to be called in its handler."""
        log.exception("answering %s failed", self._asked.method, extra=BUG)  # noqa: LOG004
        return self.refused(GatewayError(Kind.INTERNAL, "internal error"))
