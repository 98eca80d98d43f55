"""The gRPC client's end of an HTTP/2 connection to a backend, and what its calls have in common."""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Callable, Sequence
from typing import Final

from infergate import __version__
from infergate.core.errors import GatewayError, Kind, Origin, garbage
from infergate.core.limits import KIB, Limits
from infergate.core.memory import SMALL
from infergate.core.tensor import Buffer
from infergate.core.wire import RpcRequest, size
from infergate.transport.base import Endpoint
from infergate.transport.h2 import calls
from infergate.transport.h2.calls import Answered
from infergate.transport.h2.events import Failed, Goaway, Headers, Reset
from infergate.transport.h2.fields import Fields
from infergate.transport.h2.frames import Code
from infergate.transport.h2.messages import OVERHEAD, NoMessage, TooLong, prefix
from infergate.transport.h2.roles import ClientConnection
from infergate.transport.h2.stream import Stream
from infergate.transport.h2_link import NOBODY, Link
from infergate.transport.inflating import Late

_HEADER_BYTES: Final = 64 * KIB
"""Limit on a backend's response headers."""
_AGENT: Final = f"infergate/{__version__}"
_METHODS: Final = 256
"""Number of cached request header blocks, one per method."""
_SILENCE: Final = 310.0
"""Seconds without a sign of life after which a server that owes responses without a deadline is
pinged. gRPC servers treat pings more often than every 300 s as abuse."""
_ANSWER: Final = 20.0
"""Seconds within which it must answer (grpc's keepalive_timeout: 20 s)."""
_EARLY: Final = 0.005
"""Seconds by which a server's clock may be ahead of ours."""


class Untouched(Exception):  # noqa: N818
    """The server refused the stream without processing the call."""


class NoHttp2(ssl.SSLError):
    """The server did not select HTTP/2 in the TLS handshake."""


class ClientLink(Link):
    """One connection to `endpoint`. `on_ready` is called when it may be used, `on_capacity_change`
    when it has capacity again, or, with the connection, when it is over."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        endpoint: Endpoint,
        limits: Limits,
        opened: Callable[[ClientLink], None],
        changed: Callable[[ClientLink | None], None],
    ) -> None:
        core = ClientConnection(_HEADER_BYTES)
        super().__init__(loop, core)
        self.core: Final = core
        self.endpoint: Final = endpoint
        self.most: Final = limits.body + OVERHEAD
        self._opened: Final = opened
        self._changed: Final = changed
        self._ready: asyncio.Future[None] = loop.create_future()
        self._ready.add_done_callback(_retrieve)  # unused if connecting failed
        self.over: asyncio.Future[None] = loop.create_future()
        self._is_lost = False
        self._calls: set[Asked] = set()
        self._due = math.inf  # when the timer fires; not later than any call's deadline
        self._alarm: asyncio.TimerHandle | None = None
        self._beginnings: dict[str, bytes] = {}
        self._patient: set[Asked] = set()  # the calls without a deadline
        self._watch: asyncio.TimerHandle | None = None

    async def ready(self, protocol: str) -> None:
        """Wait for the server's SETTINGS. With `protocol`, raise an error first unless the server
        selected it in the TLS handshake. Raises OSError."""
        if protocol:
            tls_object = self._transport.get_extra_info("ssl_object")
            if tls_object is None or tls_object.selected_alpn_protocol() != protocol:
                raise NoHttp2("the server does not speak HTTP/2")
        await self._ready

    def abort(self) -> None:
        """Close now."""
        self._transport.abort()

    def beginning(self, method: str) -> bytes:
        """Return the start of the header block that all calls of `method` share."""
        block = self._beginnings.get(method)
        if block is None:
            if len(self._beginnings) >= _METHODS:
                self._beginnings.clear()
            scheme = "https" if self.endpoint.tls else "http"
            block = calls.asking(method, self.endpoint.authority, scheme, _AGENT)
            self._beginnings[method] = block
        return block

    def hears_since(self, moment: float) -> bool:
        """Return whether the server has sent anything since `moment` (loop time), and reads what it
        is sent."""
        return self.core.heard_at >= moment and not self._transport.get_write_buffer_size()

    def distrust(self) -> None:
        """Send no more calls to a server that may be gone; calls in progress may finish."""
        self.core.is_leaving = True
        self._changed(self)

    def _leave(self) -> None:
        """Close. Abort if output is pending, because the server might never read it."""
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()

    def began(self, call: Asked) -> None:
        """Register `call`, whose request is queued."""
        self._calls.add(call)
        if call.deadline < self._due:
            self._set_alarm(call.deadline)
        self.flush_soon()
        if call.is_patient:
            self._patient.add(call)
            if self._watch is None:
                self._watch = self.loop.call_later(_SILENCE, self._look, None)

    def _look(self, asked_at: float | None) -> None:
        """While calls without a deadline are open, check that the server is still there.
        `pinged_at`: when an unanswered PING was sent, if any."""
        self._watch = None
        heard_at = self.core.heard_at
        if not self._patient or self._is_lost:
            return
        if asked_at is not None and heard_at < asked_at:
            self.abort()
            return
        now = self.loop.time()
        silent = now - heard_at
        if silent < _SILENCE:
            self._watch = self.loop.call_later(_SILENCE - silent, self._look, None)
            return
        self.core.ping()
        self.flush()
        self._watch = self.loop.call_later(_ANSWER, self._look, now)

    def _set_alarm(self, due: float) -> None:
        """Set the timer to `due`. Ended calls leave it unchanged: most end long before their
        deadlines, and newer calls have later ones."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._due = due
        if due < math.inf:
            self._alarm = self.loop.call_at(due, self._ring)

    def _ring(self) -> None:
        now = self.loop.time()
        for call in tuple(self._calls):
            if call.deadline <= now:
                call.expire()
        self._set_alarm(min((call.deadline for call in self._calls), default=math.inf))

    def ended(self, call: Asked) -> None:
        """Remove `call`, which is over."""
        self._calls.discard(call)
        self._patient.discard(call)
        if self.core.has_room:
            self._changed(None)
        elif self.core.is_leaving and not self._calls:
            self._leave()

    # ---- asyncio callbacks and engine events

    def connection_lost(self, exc: BaseException | None) -> None:
        """Fail the calls: the connection is closed."""
        self._is_lost = True
        self.core.is_leaving = True
        self._set_alarm(math.inf)
        if self._watch is not None:
            self._watch.cancel()
        self._wake()
        reason = OSError(f"{self.endpoint}: the connection closed before SETTINGS arrived: {exc!r}")
        if not self._ready.done():
            self._ready.set_exception(reason)
        self._changed(self)
        for call in tuple(self._calls):
            call.lost(exc)
        self.over.set_result(None)

    def _on_ready(self) -> None:
        if self._ready.done():
            self._changed(None)
        else:
            self._opened(self)
            self._ready.set_result(None)

    def _on_headers(self, event: Headers) -> None:
        event.stream.owner.headers(event.fields, event.end)

    def _on_goaway(self, event: Goaway) -> None:  # noqa: ARG002
        self._changed(self)
        if not self._calls:
            self._leave()

    def _on_failed(self, event: Failed) -> None:
        if not self._ready.done():
            self._ready.set_exception(OSError(f"{self.endpoint}: {event.reason}"))
        self.flush()
        self._leave()
        for call in tuple(self._calls):
            call.fail(garbage("the backend's answer is not HTTP/2", f"{self.endpoint}: {event}"))


def _retrieve(ready: asyncio.Future[None]) -> None:
    """Retrieve the exception, so that asyncio does not report it as never retrieved."""
    if not ready.cancelled():
        ready.exception()


class Asked:
    """A call. The connection calls `headers`, `add`, `end`, `sent` and `gone` for events on the
    call's stream."""

    def __init__(self, link: ClientLink, wire: RpcRequest, deadline: float | None) -> None:
        """Send the request. `deadline`: loop time."""
        loop = link.loop
        self._began: Final = loop.time()
        self._memory: Final = wire.memory
        self._counted = 0  # bytes of the response counted in `_memory`
        remaining = None if deadline is None else deadline - self._began
        block = link.beginning(wire.method) + calls.rest_of_asking(remaining, wire.metadata)
        message = wire.message
        self._link: Final = link
        self.deadline: Final = math.inf if deadline is None else deadline
        self._waiter: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self._is_over = False
        self._heard = False
        self._ending: Answered | None = None
        self._stream: Final[Stream] = link.core.ask(block, (prefix(size(message)), *message))
        self._stream.owner = self
        link.began(self)

    @property
    def is_patient(self) -> bool:
        """Whether the call has no deadline."""
        return self.deadline == math.inf

    # ---- to be implemented by subclasses

    def _expect(self, answered: Answered) -> None:
        """Prepare for response messages."""
        raise NotImplementedError

    def _take(self, parts: Sequence[Buffer]) -> None:
        """Take part of the messages. Raises MessageTooLongError, InvalidMessageError and
        OVERLOADED."""
        raise NotImplementedError

    # ---- stream events

    def headers(self, fields: Fields, end: bool) -> None:  # noqa: FBT001
        """Handle the response headers. `end`: there is nothing else."""
        self._heard = True
        response: Answered | None = fields.meaning
        if response is None:
            response = fields.meaning = Answered(fields)
        if end:
            self._conclude(response)
        elif response.is_grpc:
            self._expect(response)
        elif response.status != 200:
            self._link.core.reset(self._stream, Code.CANCEL)
            self._conclude(response)
        else:
            self.fail(garbage("the backend's answer is not gRPC", self._said("content-type")))

    def add(self, parts: Sequence[Buffer], size: int, end: bool) -> None:  # noqa: FBT001, ARG002
        """Take `size` bytes of the response."""
        if self._is_over:
            return
        try:
            self._take(parts)
        except (TooLong, NoMessage) as error:
            self.fail(self._wrong(error))
        except GatewayError as error:
            self.fail(error)
        else:
            if end:
                self.fail(garbage("the backend's answer broke off", self._said("no grpc-status")))

    def end(self, fields: Fields) -> None:
        """Handle the response trailers."""
        response: Answered | None = fields.meaning
        if response is None:
            response = fields.meaning = Answered(fields)
        self._conclude(response)

    def sent(self) -> None:
        """Ignore that all of the request was sent."""

    def gone(self, event: Reset) -> None:
        """Handle that the server reset the stream or broke a rule."""
        detail = f"reset: {event.code}"
        if event.untouched:
            self.fail(Untouched(self._said(detail)))
        elif self._is_late:
            self.expire()
        else:
            self.fail(garbage("the backend's answer broke off", self._said(detail)))

    @property
    def _is_late(self) -> bool:
        """Whether the deadline has passed, so that a server that gives up does so because of it."""
        return self._link.loop.time() >= self.deadline - _EARLY

    def lost(self, error: BaseException | None) -> None:
        """Handle that the connection is closed."""
        detail = self._said(repr(error))
        if self._heard:
            self.fail(garbage("the backend's answer broke off", detail))
        else:
            self.fail(garbage("the backend closed the connection before answering", detail))

    def fail(self, error: BaseException) -> None:
        """End the call with `error`."""
        if not self._is_over:
            self._error = error
            self._finish()

    def _conclude(self, answered: Answered) -> None:
        if self._is_over:
            return
        code, details = answered.code, answered.details
        is_abandoned = code is not None and calls.is_abandoned(code, details)
        if self._is_late and (is_abandoned or code == calls.DEADLINE_EXCEEDED):
            self.expire()
            return
        self._ending = answered
        if code is None or is_abandoned:
            reason = "no grpc-status" if code is None else f"grpc-status {code}: {details}"
            self._error = garbage("the backend's answer broke off", self._said(reason))
        self._finish()

    def _finish(self) -> None:
        self._is_over = True
        link, stream = self._link, self._stream
        stream.owner = NOBODY  # a reference cycle would keep the messages until garbage collection
        if stream.local_open or stream.remote_open:
            link.core.reset(stream, Code.CANCEL)
            link.flush_soon()
        link.ended(self)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def expire(self) -> None:
        """Handle that the deadline has passed."""
        if not self._link.hears_since(self._began):
            self._link.distrust()
        self.fail(
            GatewayError(
                Kind.TIMEOUT,
                "the backend did not answer in time",
                origin=Origin.BACKEND,
                detail=str(self._link.endpoint),
            )
        )

    def _raise(self) -> None:
        """Raise the error of the call, if any. The exception is not kept: its traceback refers to
        frames that refer to this call."""
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error

    async def _wait(self) -> None:
        waiter = self._waiter = self._link.loop.create_future()
        try:
            await waiter
        finally:
            self._waiter = None

    def _count(self, size: int) -> None:
        """Record that `size` bytes of the response are held. Raises OVERLOADED."""
        growth = size - self._counted
        if growth < 0:
            self._memory.shrink(-growth)
        elif size <= SMALL:
            return
        else:
            self._memory.grow(growth)
        self._counted = size

    async def _whole(self, message: Buffer | Late) -> Buffer:
        """Return `message`, inflated if necessary. Raises GatewayError."""
        if not isinstance(message, Late):
            return message
        try:
            inflated = await message.whole(self._memory)
        except (TooLong, NoMessage) as error:
            raise self._wrong(error) from None
        self._counted += len(inflated)
        return inflated

    def _wrong(self, error: TooLong | NoMessage) -> GatewayError:
        """Return the error for an invalid message of the backend."""
        detail = self._said(error)
        if isinstance(error, NoMessage):
            return garbage("the backend's answer broke off", detail)
        public = "the backend's answer is too large"
        return GatewayError(Kind.TOO_LARGE, public, origin=Origin.BACKEND, detail=detail)

    def _said(self, what: object) -> str:
        return f"{self._link.endpoint}: {what}"

    def close(self) -> None:
        """End the call: nobody waits for it any more."""
        if not self._is_over:
            self._finish()
