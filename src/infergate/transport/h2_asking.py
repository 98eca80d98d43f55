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
"""What a backend's headers may come to."""
_AGENT: Final = f"infergate/{__version__}"
_METHODS: Final = 256
"""How many methods' headers are kept made."""
_SILENCE: Final = 310.0
"""Seconds in which a server that owes answers without a deadline may say nothing, before it is
asked whether it is there: gRPC's servers take it for an attack more often than every 300 s."""
_ANSWER: Final = 20.0
"""Seconds that it has for saying so (grpc's keepalive_timeout: 20 s)."""
_EARLY: Final = 0.005
"""Seconds by which a server's clock may be ahead of ours."""


class Untouched(Exception):  # noqa: N818 - it is what the server said
    """The server did not look at the call."""


class NoHttp2(ssl.SSLError):
    """The server's TLS did not agree on HTTP/2."""


class ClientLink(Link):
    """One connection to ``endpoint``. ``opened`` is told when it may be used, ``changed`` when it
    has room again, or, with the link, that it is over."""

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
        self._ready.add_done_callback(_retrieve)  # nobody waits for it where connecting failed
        self.over: asyncio.Future[None] = loop.create_future()
        self._is_lost = False
        self._calls: set[Asked] = set()
        self._due = math.inf  # when the alarm rings; it is no later than any call's deadline
        self._alarm: asyncio.TimerHandle | None = None
        self._beginnings: dict[str, bytes] = {}
        self._patient: set[Asked] = set()  # those without a deadline
        self._watch: asyncio.TimerHandle | None = None

    async def ready(self, protocol: str) -> None:
        """Wait for the server's settings, where it agreed on ``protocol`` in its TLS handshake, if
        one is given. Raises OSError."""
        if protocol:
            made = self._transport.get_extra_info("ssl_object")
            if made is None or made.selected_alpn_protocol() != protocol:
                raise NoHttp2("the server does not speak HTTP/2")
        await self._ready

    def abort(self) -> None:
        """Close now."""
        self._transport.abort()

    def beginning(self, method: str) -> bytes:
        """The headers that all calls of ``method`` share."""
        made = self._beginnings.get(method)
        if made is None:
            if len(self._beginnings) >= _METHODS:
                self._beginnings.clear()
            scheme = "https" if self.endpoint.tls else "http"
            made = calls.asking(method, self.endpoint.authority, scheme, _AGENT)
            self._beginnings[method] = made
        return made

    def hears_since(self, moment: float) -> bool:
        """Whether the server was heard since ``moment`` (loop time), and takes what it is sent."""
        return self.core.heard_at >= moment and not self._transport.get_write_buffer_size()

    def distrust(self) -> None:
        """The server may be gone: let it finish what it has, ask it nothing more."""
        self.core.is_leaving = True
        self._changed(self)

    def _leave(self) -> None:
        """Close. What it has not taken yet, it might never take."""
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()

    def began(self, call: Asked) -> None:
        """``call`` is on its way."""
        self._calls.add(call)
        if call.deadline < self._due:
            self._set_alarm(call.deadline)
        self.flush_soon()
        if call.is_patient:
            self._patient.add(call)
            if self._watch is None:
                self._watch = self.loop.call_later(_SILENCE, self._look, None)

    def _look(self, asked_at: float | None) -> None:
        """While calls without a deadline are open, make sure that the server is still there;
        ``asked_at`` is when it was asked for that, if it was."""
        self._watch = None
        heard = self.core.heard_at
        if not self._patient or self._is_lost:
            return
        if asked_at is not None and heard < asked_at:
            self.abort()
            return
        now = self.loop.time()
        silent = now - heard
        if silent < _SILENCE:
            self._watch = self.loop.call_later(_SILENCE - silent, self._look, None)
            return
        self.core.ping()
        self.flush()
        self._watch = self.loop.call_later(_ANSWER, self._look, now)

    def _set_alarm(self, due: float) -> None:
        """Calls that are over leave it as it is: most are, long before their deadlines, and those
        of later ones are later."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._due = due
        if due < math.inf:
            self._alarm = self.loop.call_at(due, self._ring)

    def _ring(self) -> None:
        now = self.loop.time()
        for each in tuple(self._calls):
            if each.deadline <= now:
                each.expire()
        self._set_alarm(min((each.deadline for each in self._calls), default=math.inf))

    def ended(self, call: Asked) -> None:
        """``call`` is over."""
        self._calls.discard(call)
        self._patient.discard(call)
        if self.core.has_room:
            self._changed(None)
        elif self.core.is_leaving and not self._calls:
            self._leave()

    # ---- what asyncio and the core tell

    def connection_lost(self, exc: BaseException | None) -> None:
        """The server closed, or we did."""
        self._is_lost = True
        self.core.is_leaving = True
        self._set_alarm(math.inf)
        if self._watch is not None:
            self._watch.cancel()
        self._wake()
        reason = OSError(f"{self.endpoint}: closed before it was ready: {exc!r}")
        if not self._ready.done():
            self._ready.set_exception(reason)
        self._changed(self)
        for each in tuple(self._calls):
            each.lost(exc)
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
        for each in tuple(self._calls):
            each.fail(garbage("the backend's answer is not HTTP/2", f"{self.endpoint}: {event}"))


def _retrieve(ready: asyncio.Future[None]) -> None:
    """An exception that was retrieved is not reported by asyncio."""
    if not ready.cancelled():
        ready.exception()


class Asked:
    """A call. ``headers``, ``add``, ``end``, ``sent`` and ``gone`` are told what happens on its
    stream."""

    def __init__(self, link: ClientLink, wire: RpcRequest, deadline: float | None) -> None:
        """Sends it. ``deadline``: loop time."""
        loop = link.loop
        self._began: Final = loop.time()
        self._memory: Final = wire.memory
        self._counted = 0  # bytes of the answer that are counted there
        left = None if deadline is None else deadline - self._began
        block = link.beginning(wire.method) + calls.rest_of_asking(left, wire.metadata)
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
        """Whether it has no deadline."""
        return self.deadline == math.inf

    # ---- what those derived from it say

    def _expect(self, answered: Answered) -> None:
        """Messages follow."""
        raise NotImplementedError

    def _take(self, parts: Sequence[Buffer]) -> None:
        """Some of them. Raises TooLong, NoMessage, OVERLOADED."""
        raise NotImplementedError

    # ---- what happens

    def headers(self, fields: Fields, end: bool) -> None:  # noqa: FBT001
        """The answer begins; ``end``: and that is all of it."""
        self._heard = True
        answered: Answered | None = fields.meaning
        if answered is None:
            answered = fields.meaning = Answered(fields)
        if end:
            self._conclude(answered)
        elif answered.is_grpc:
            self._expect(answered)
        elif answered.status != 200:
            self._link.core.reset(self._stream, Code.CANCEL)
            self._conclude(answered)
        else:
            self.fail(garbage("the backend's answer is not gRPC", self._said("a content-type")))

    def add(self, parts: Sequence[Buffer], size: int, end: bool) -> None:  # noqa: FBT001, ARG002
        """Some of the answer, of ``size`` bytes."""
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
                self.fail(garbage("the backend's answer broke off", self._said("no status")))

    def end(self, fields: Fields) -> None:
        """The answer's trailers."""
        answered: Answered | None = fields.meaning
        if answered is None:
            answered = fields.meaning = Answered(fields)
        self._conclude(answered)

    def sent(self) -> None:
        """All of the request is on its way."""

    def gone(self, event: Reset) -> None:
        """The server gave the call up, or broke a rule of the stream."""
        said = f"reset: {event.code}"
        if event.untouched:
            self.fail(Untouched(self._said(said)))
        elif self._is_late:
            self.expire()
        else:
            self.fail(garbage("the backend's answer broke off", self._said(said)))

    @property
    def _is_late(self) -> bool:
        """Whether it is the deadline that a server which gives up means."""
        return self._link.loop.time() >= self.deadline - _EARLY

    def lost(self, error: BaseException | None) -> None:
        """The connection is over."""
        said = self._said(repr(error))
        if self._heard:
            self.fail(garbage("the backend's answer broke off", said))
        else:
            self.fail(garbage("the backend closed the connection before answering", said))

    def fail(self, error: BaseException) -> None:
        """``error`` is what comes of it."""
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
            said = "no grpc-status" if code is None else f"grpc-status {code}: {details}"
            self._error = garbage("the backend's answer broke off", self._said(said))
        self._finish()

    def _finish(self) -> None:
        self._is_over = True
        link, stream = self._link, self._stream
        stream.owner = NOBODY  # a cycle would hold the messages until it is collected
        if stream.local_open or stream.remote_open:
            link.core.reset(stream, Code.CANCEL)
            link.flush_soon()
        link.ended(self)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def expire(self) -> None:
        """Its deadline has come."""
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
        """Raise what came of it, if that is an error. It knows the frames that it goes through, and
        those know the call: it must not be kept."""
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
        """That so many bytes of the answer are held. Raises OVERLOADED."""
        more = size - self._counted
        if more < 0:
            self._memory.shrink(-more)
        elif size <= SMALL:
            return
        else:
            self._memory.grow(more)
        self._counted = size

    async def _whole(self, message: Buffer | Late) -> Buffer:
        """``message``, inflated where it is not. Raises GatewayError."""
        if not isinstance(message, Late):
            return message
        try:
            whole = await message.whole(self._memory)
        except (TooLong, NoMessage) as error:
            raise self._wrong(error) from None
        self._counted += len(whole)
        return whole

    def _wrong(self, error: TooLong | NoMessage) -> GatewayError:
        """What is wrong with a message of the backend."""
        said = self._said(error)
        if isinstance(error, NoMessage):
            return garbage("the backend's answer broke off", said)
        told = "the backend's answer is too large"
        return GatewayError(Kind.TOO_LARGE, told, origin=Origin.BACKEND, detail=said)

    def _said(self, what: object) -> str:
        return f"{self._link.endpoint}: {what}"

    def close(self) -> None:
        """Nobody waits for it any more."""
        if not self._is_over:
            self._finish()
