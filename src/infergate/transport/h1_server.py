"""An HTTP/1.1 listener on an engine of our own.

*Strategy.* See ``served`` for the states of a connection, ``h1.reader`` for what it receives. One
scratch serves all connections of a listener: a loop fills it and has it read before it fills it
again.

*Rule.* What a client pipelines waits unread, and more than ``AHEAD`` bytes of it wait in the
client's socket.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

import numpy as np

from infergate.core.call import Call
from infergate.core.errors import GatewayError
from infergate.core.limits import KIB, Limits
from infergate.core.wire import HttpRequest
from infergate.transport.base import Address, HttpApp
from infergate.transport.door import Door, is_hello
from infergate.transport.guard import Admission, Share
from infergate.transport.h1.head import Head
from infergate.transport.h1.reader import Reader
from infergate.transport.http_served import HttpServed
from infergate.transport.listener import Listener
from infergate.transport.served import State
from infergate.transport.timer import A_TURN
from infergate.transport.waking import Waking

AHEAD: Final = 64 * KIB
_SCRATCH: Final = 64 * KIB
"""As much of a long body is copied once; the rest of it is received where it stays."""
PATIENCE: Final = 256 * KIB
_FAST: Final = 16 * KIB
"""Where so much of a long body comes at once, the loop is told of the rest when ``PATIENCE`` bytes
more are there, or all. Who sends little by little is heard each time."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class H1Server(Listener):
    """A :class:`~infergate.transport.base.Server` for HTTP.

    ``accept_both_lengths``: a request may have Content-Length beside Transfer-Encoding
    (docs/decisions/0009-both-lengths.md).
    """

    def __init__(  # noqa: PLR0913 - see ServeHttp
        self,
        address: Address,
        app: HttpApp,
        limits: Limits,
        admission: Admission,
        door: Door | None = None,
        *,
        accept_both_lengths: bool = False,
    ) -> None:
        scratch = np.empty(_SCRATCH, np.uint8).data
        super().__init__(
            address,
            app,
            limits,
            admission,
            lambda: Connection(
                self, Reader(scratch, self.limits, accept_both_lengths=accept_both_lengths)
            ),
            door,
        )


class Incoming:
    """A request on its way in. ``since`` is when its body began to come (loop time)."""

    __slots__ = ("_head", "_received", "_share", "call", "keep", "old", "since", "whole", "wire")

    def __init__(self, head: Head, call: Call, admission: Admission) -> None:
        self.wire = HttpRequest(head.method, head.path, head.query, head.headers)
        self.call = call
        self.keep = head.keep
        self.old = head.old
        self.since = 0.0
        self.whole = False
        self._head = head
        self._received: int | None = None
        self._share = Share(admission)
        call.memory = self._share

    def count(self, received: int) -> None:
        """So much of its body is here; the first time, let it in with what its head announced.
        Raises OVERLOADED."""
        if self._received is None:
            self._share.take(self._head.length)
        if self._head.chunked:
            self._share.receive(received - (self._received or 0))
        self._received = received

    def release(self) -> None:
        """Give back what was admitted, if anything was, and let go of the body."""
        self._share.release()
        self.wire.body = ()


class Connection(HttpServed[Incoming], asyncio.BufferedProtocol):
    """See the module."""

    __slots__ = ("_begun", "_reader", "_waking")

    def __init__(self, host: Listener, reader: Reader) -> None:
        super().__init__(host)
        self._reader: Final = reader
        self._begun = False  # some of a head is here
        self._waking: Waking | None = None  # once a long body has come

    @property
    def _has_begun(self) -> bool:
        return self._begun

    # ---- receiving

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Where the next bytes go."""
        return self._reader.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes of this request, or of the next while this one is being answered. Those after a
        refusal are not counted, so that the next ones take their place."""
        state, reader = self._state, self._reader
        if state is State.HEAD:
            reader.wrote(nbytes)
            self._receive(came=True)
        elif state is State.BODY:
            reader.wrote(nbytes)
            self._gather()
            if self._state is State.BODY:
                self._wait_for(reader.missing, nbytes)
            elif self._state is State.HEAD:  # refused, but all of it was here
                self._receive()
        elif state is State.BUSY or state is State.FLUSH:
            reader.wrote(nbytes)
            if reader.waiting > AHEAD:
                self._transport.pause_reading()

    def _receive(self, *, came: bool = False) -> None:
        """Take requests until one is served, or more has to come. ``came``: something just did."""
        reader = self._reader
        while self._state is State.HEAD:
            try:
                head = reader.head()
            except GatewayError as error:
                if is_hello(reader.begun):
                    self._host.door.refuse_tls(self._peer)
                self._refuse(error)
                return
            if head is None:
                if not self._begun and (came or reader.waiting):
                    self._begun = True
                    self._timer.set(self._host.limits.header_time)
                return
            self._begun = came = False
            self._begin(head)

    def _begin(self, head: Head) -> None:
        host = self._host
        call = Call(
            self._peer, time.monotonic(), headers=head.headers, peer_identity=self._identity
        )
        self._request = Incoming(head, call, host.admission)
        if head.wrong is not None:
            self._refuse(head.wrong)
            return
        self._state = State.BODY
        self._gather()
        if self._state is State.BODY and head.waits:
            self._transport.write(_CONTINUE)

    def _gather(self) -> None:
        """Take what is here of the body; serve when that is all."""
        request, reader = self._request, self._reader
        assert request is not None
        try:
            body = reader.body()
            request.whole = body is not None
            request.count(reader.received)
        except GatewayError as error:
            self._refuse(error)
            return
        if body is None:
            self._await_body(reader.received, reader.missing)
            return
        request.wire.body = (body,) if body else ()
        request.call.bytes_in = reader.received
        self._start(request)

    def _wait_for(self, missing: int, came: int) -> None:
        """Be told of more of a body of which ``missing`` bytes are due, and ``came`` have come."""
        waking = self._waking
        if waking is None:
            if missing < PATIENCE:
                return
            waking = self._waking = Waking(self._transport)
        waking.wait_for(min(missing, PATIENCE) if came >= _FAST and missing else 1)

    def _hear_all(self) -> bool:
        """Be told of whatever comes; whether this is new."""
        waking = self._waking
        if waking is None or waking.least == 1:
            return False
        waking.wait_for(1)
        return True

    def cut_off_sender(self) -> None:
        """See ``guard.Sender``."""
        self._hear_all()
        super().cut_off_sender()

    def _expire(self) -> None:
        """What was not told of is looked at before anybody is called late."""
        if self._state is State.BODY and self._hear_all():
            self._timer.set(A_TURN)
        else:
            super()._expire()

    # ---- answering

    def _go_on(self, *, received: bool) -> None:
        self._hear_all()
        if received:
            return  # refused within _receive or _gather, whose caller goes on
        if not self._transport.is_reading():
            self._transport.resume_reading()
        if self._reader.waiting:
            self._receive()

    def _linger(self) -> None:
        self._hear_all()
        self._reader.drop()  # there has to be room for what is read and thrown away
        super()._linger()
