"""One client connection of the frame server: requests and responses in frames, in order.

It serves an ``HttpApp``: a frame is the body of a POST to ``/``, and only the body of the response
is sent back, so the application must report errors there.

- Rule 1. A frame is rejected as soon as its length is known. If it has arrived completely it is
  skipped and the connection continues; otherwise the connection ends.
- Rule 2. Every request gets a response frame; a response without a body is an empty frame.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from infergate.core.call import Call
from infergate.core.errors import GatewayError, bad_request
from infergate.core.limits import Limits
from infergate.core.tensor import Buffer
from infergate.core.vocabulary import BUG
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.transport import http_head
from infergate.transport.door import HELLO, is_hello
from infergate.transport.frames import PREFIX, Frames, prefix
from infergate.transport.guard import Admission, Share
from infergate.transport.listener import Listener
from infergate.transport.served import Served, State

log = logging.getLogger(__name__)


def _unspoken() -> HttpRequest:
    return HttpRequest("POST", "/")


class FrameRequest:
    """A frame that is arriving, with ``length`` announced bytes."""

    __slots__ = ("_length", "_share", "call", "since", "whole", "wire")

    def __init__(
        self,
        call: Call,
        length: int,
        admission: Admission,
        *,
        whole: bool,
    ) -> None:
        self.wire = _unspoken()
        self.call = call
        self.whole = whole
        self.since = 0.0
        self._length = length
        self._share = Share(admission)
        call.memory = self._share

    def admit(self, limits: Limits) -> None:
        """Check the length and admit the request. Raises GatewayError."""
        if not self._length:
            raise bad_request("the frame is empty")
        if self._length > limits.body:
            raise http_head.too_large(self._length, limits)
        self._share.take(self._length)

    def complete(self, body: memoryview) -> None:
        """Complete the request with its whole ``body``."""
        self.whole = True
        self.wire.body = [body]
        self.call.bytes_in = self._length

    def release(self) -> None:
        """Release the request if it was admitted, and drop the body."""
        self._share.release()
        self.wire.body = ()


class FrameConnection(Served[FrameRequest], asyncio.BufferedProtocol):
    """The server side of a connection with size-prefixed frames."""

    __slots__ = ("_frames", "_in_prefix")

    def __init__(self, host: Listener) -> None:
        super().__init__(host)
        self._frames = Frames()
        self._in_prefix = False

    @property
    def _has_begun(self) -> bool:
        return self._frames.has_begun

    # ---- receiving

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return the buffer for the next bytes."""
        return self._frames.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Process bytes of the current frame, or of the next one while a response is being
        produced.

        Bytes after an early rejection are not recorded, so the next ones overwrite them.
        """
        state, frames = self._state, self._frames
        if state is State.BODY:
            frames.wrote(nbytes)
            self._gather()
        elif state is State.HEAD:
            frames.wrote(nbytes)
            self._receive()
        elif state is State.BUSY or state is State.FLUSH:
            frames.wrote(nbytes)
            if frames.is_full:
                self._transport.pause_reading()

    def _receive(self) -> None:
        frames = self._frames
        while self._state is State.HEAD:
            length = frames.announced
            if length is None:
                if frames.has_begun and not self._in_prefix:
                    self._in_prefix = True
                    self._timer.set(self._host.limits.header_time)
                return
            self._in_prefix = False
            self._begin(length)

    def _begin(self, length: int) -> None:
        """Start a frame of ``length`` announced bytes."""
        host, frames = self._host, self._frames
        if is_hello(frames.begun(HELLO)):  # as a length, a ClientHello is many megabytes
            host.door.refuse_tls(self._peer)
            self._state = State.CLOSED
            self._transport.abort()
            return
        whole = frames.holds(length)
        call = Call(self._peer, time.monotonic(), peer_identity=self._identity)
        request = self._request = FrameRequest(call, length, host.admission, whole=whole)
        self._state = State.BODY
        try:
            request.admit(host.limits)
        except GatewayError as error:
            if whole:
                frames.skip(length)
            self._refuse(error)
            return
        frames.open(length)
        self._gather()

    def _gather(self) -> None:
        """Serve the request when its frame is complete."""
        request, frames = self._request, self._frames
        assert request is not None
        body = frames.take()
        if body is not None:
            request.complete(body)
            self._start(request)
        else:
            self._await_body(frames.received, frames.missing)

    # ---- answering

    def _unread(self) -> HttpRequest:
        return _unspoken()

    def _send(self, response: HttpResponse) -> bool:
        body = response.body
        try:
            head = prefix(body)
        except GatewayError:
            log.exception("cannot send a response", extra=BUG)
            head, body = PREFIX.pack(0), ()
        for part in http_head.gathered(head, body):
            self._transport.write(part)
        return not self._is_last()

    def _is_last(self) -> bool:
        """Whether the connection ends with this response.

        The protocol cannot announce a shutdown, so requests that have already arrived are still
        answered.
        """
        return self._host.stopping and not self._frames.has_begun

    def _send_more(self, body: Sequence[Buffer] | None) -> None:  # noqa: ARG002
        raise AssertionError  # no framed protocol streams a response body

    def _go_on(self, *, received: bool) -> None:
        if received:
            return  # rejected within _receive, which continues
        if not self._transport.is_reading():
            self._transport.resume_reading()
        self._receive()

    def _linger(self) -> None:
        self._frames.drop()  # frees the buffer for data that is discarded
        super()._linger()
