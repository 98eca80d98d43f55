"""An HTTP/1.1 listener on the built-in engine.

See ``server_connection`` for the states of a connection and ``request_reader`` for how bytes are
received. One scratch buffer serves all connections of a listener, because an event loop processes
what it received before it fills the buffer again. Pipelined requests wait unparsed, and what
exceeds ``MAX_READ_AHEAD`` bytes waits in the client's socket.
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
"""This much of a long body is copied once; the rest is received into its final buffer."""
PATIENCE: Final = 256 * KIB
_FAST: Final = 16 * KIB
"""If at least this much of a long body arrives at once, the loop is next notified after
``BODY_WATERMARK`` more bytes, or at the end of the body. Slow senders are read each time."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class H1Server(Listener):
    """A ``Server`` for HTTP.

    ``accept_both_lengths``: a request may have Content-Length besides Transfer-Encoding
    (docs/decisions/0009-content-length-with-chunked.md).
    """

    def __init__(  # noqa: PLR0913 - as `ServeHttp` requires
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
    """A request that is arriving. ``body_started_at`` is in loop time."""

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
        """Account for the body bytes ``received`` so far.

        The first call admits the request with the announced length. Raises OVERLOADED.
        """
        if self._received is None:
            self._share.take(self._head.length)
        if self._head.chunked:
            self._share.receive(received - (self._received or 0))
        self._received = received

    def release(self) -> None:
        """Release the request if it was admitted, and drop the body."""
        self._share.release()
        self.wire.body = ()


class Connection(HttpServed[Incoming], asyncio.BufferedProtocol):
    """An HTTP/1.1 server connection that reads requests with the built-in engine."""

    __slots__ = ("_begun", "_reader", "_waking")

    def __init__(self, host: Listener, reader: Reader) -> None:
        super().__init__(host)
        self._reader: Final = reader
        self._begun = False  # part of a head has arrived
        self._waking: Waking | None = None  # created for the first long body

    @property
    def _has_begun(self) -> bool:
        return self._begun

    # ---- receiving

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return the buffer for the next bytes."""
        return self._reader.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Process bytes of the current request, or of the next one while a response is being
        produced.

        Bytes after an early rejection are not recorded, so the next ones overwrite them.
        """
        state, reader = self._state, self._reader
        if state is State.HEAD:
            reader.wrote(nbytes)
            self._receive(came=True)
        elif state is State.BODY:
            reader.wrote(nbytes)
            self._gather()
            if self._state is State.BODY:
                self._wait_for(reader.missing, nbytes)
            elif self._state is State.HEAD:  # rejected, but it had arrived completely
                self._receive()
        elif state is State.BUSY or state is State.FLUSH:
            reader.wrote(nbytes)
            if reader.waiting > AHEAD:
                self._transport.pause_reading()

    def _receive(self, *, came: bool = False) -> None:
        """Take requests until one is being served or more bytes are needed.

        ``has_new_bytes`` is True if bytes have just arrived.
        """
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
        """Take the received part of the body; serve the request when it is complete."""
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
        """Set the receive watermark, with ``missing`` body bytes due after ``came`` bytes have
        just arrived."""
        watermark = self._waking
        if watermark is None:
            if missing < PATIENCE:
                return
            watermark = self._waking = Waking(self._transport)
        watermark.wait_for(min(missing, PATIENCE) if came >= _FAST and missing else 1)

    def _hear_all(self) -> bool:
        """Reset the receive watermark; return whether it was set."""
        watermark = self._waking
        if watermark is None or watermark.least == 1:
            return False
        watermark.wait_for(1)
        return True

    def cut_off_sender(self) -> None:
        """Reject the body soon if it is still slow."""
        self._hear_all()
        super().cut_off_sender()

    def _expire(self) -> None:
        """Read bytes below the watermark before anything times out."""
        if self._state is State.BODY and self._hear_all():
            self._timer.set(A_TURN)
        else:
            super()._expire()

    # ---- answering

    def _go_on(self, *, received: bool) -> None:
        self._hear_all()
        if received:
            return  # rejected within _receive or _gather, whose caller continues
        if not self._transport.is_reading():
            self._transport.resume_reading()
        if self._reader.waiting:
            self._receive()

    def _linger(self) -> None:
        self._hear_all()
        self._reader.drop()  # frees the buffer for data that is discarded
        super()._linger()
