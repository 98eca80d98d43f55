"""The two ends of an HTTP/2 connection, as gRPC uses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from infergate.core.tensor import Buffer
from infergate.transport.h2 import bounds, frames
from infergate.transport.h2.connection import Connection
from infergate.transport.h2.events import Headers, Reset, Trailers
from infergate.transport.h2.fields import Fields
from infergate.transport.h2.frames import Code, ConnectionFault, StreamFault
from infergate.transport.h2.stream import Stream

_MOST_UPDATES: Final = 2 * bounds.EARLY_STREAMS
"""Maximum number of window updates that a peer may send free of charge for opened streams."""
_STILL_THERE: Final = b"there? \0"
_DRAIN: Final = b"draining"
"""The payload of the PING whose answer shows that the peer has received our first GOAWAY."""


class _Peer(Connection):
    """What server and client connections share beyond `Http2Connection`."""

    def ping(self) -> None:
        """Send a PING. Any bytes received afterwards show that the peer is alive."""
        self._out.parts.append(frames.frame(frames.PING, 0, 0, _STILL_THERE))

    def _end_body(self, stream: Stream, fields: Fields, *, end: bool) -> None:
        """Handle trailers. Raises Http2StreamError."""
        if not stream.remote_open:
            raise StreamFault(stream.id, Code.STREAM_CLOSED)
        if not end or not fields.is_trailers or stream.due:
            raise StreamFault(stream.id, Code.PROTOCOL_ERROR)
        stream.remote_open = False
        if not stream.local_open:
            del self.streams[stream.id]
        self._events.append(Trailers(stream, fields))

    def _for_nobody(self, number: int) -> None:
        """Handle headers of a closed stream. Raises Http2ConnectionError and Http2StreamError."""
        allowed = self._closed.get(number)
        if allowed is None:
            if not self.opens_streams and number not in self._closed:
                # It may never have been opened, and stream numbers must grow (RFC 9113, 5.1.1).
                raise ConnectionFault(Code.STREAM_CLOSED, "headers on a closed stream")
            raise StreamFault(number, Code.STREAM_CLOSED)
        remaining_bytes, remaining_blocks = allowed
        if remaining_blocks:
            self._closed[number] = remaining_bytes, remaining_blocks - 1
        else:
            self._charge("headers on closed streams")

    def _on_skipped(self, number: int) -> None:
        if number not in self.streams and not self._opens(number):
            self._for_nobody(number)
            return
        raise StreamFault(number, Code.ENHANCE_YOUR_CALM)

    def _opens(self, number: int) -> bool:
        """Return whether headers on `number`, which is not an open stream, open it. Raises
        Http2ConnectionError."""
        raise NotImplementedError


class ServerConnection(_Peer):
    """The server's end, which serves at most `max_streams` streams at a time."""

    preface = frames.PREFACE

    def __init__(self, header_bytes: int, most: int) -> None:
        super().__init__(header_bytes)
        self._most: Final = most
        self.is_draining = False
        """Whether the peer was asked to open no more streams."""
        self._last_served: int | None = None
        """The last stream that is served, once it is known."""
        self._early_headers = 0
        self._greet(
            (
                (frames.HEADER_TABLE_SIZE, 0),
                (frames.MAX_CONCURRENT_STREAMS, most),
                (frames.INITIAL_WINDOW_SIZE, bounds.STREAM_WINDOW),
                (frames.MAX_FRAME_SIZE, bounds.FRAME),
                (frames.MAX_HEADER_LIST_SIZE, header_bytes),
            )
        )

    def drain(self) -> None:
        """Ask the peer to open no more streams. Streams that it opens before it has received the
        request are still served (RFC 9113, 6.8)."""
        if self.is_draining or self.is_over:
            return
        self.is_draining = True
        self._out.parts.append(frames.goaway(frames.LAST_STREAM, Code.NO_ERROR, "draining"))
        self._out.parts.append(frames.frame(frames.PING, 0, 0, _DRAIN))

    def _on_pong(self, payload: bytes) -> None:
        if self.is_draining and payload == _DRAIN:
            self.refuse_more()

    def refuse_more(self) -> None:
        """Announce the last stream that is served, and serve none after it."""
        if self._last_served is not None:
            return
        self.is_draining = True
        self._last_served = self.last_stream
        self._out.parts.append(frames.goaway(self.last_stream, Code.NO_ERROR, "draining"))

    def _refuse(self, number: int) -> None:
        if self._acks_due and number < 2 * bounds.EARLY_REFUSALS:
            self._cut(number, Code.REFUSED_STREAM)
        else:
            self._broken(StreamFault(number, Code.REFUSED_STREAM))

    def _may_be_early(self, size: int) -> bool:
        """Return whether the peer may open a stream with headers of `size` bytes although
        `max_streams` are open: RFC 9113, 6.5.3 binds it to our SETTINGS only after it has
        acknowledged them."""
        self._early_headers += size
        return (
            self._acks_due > 0
            and len(self.streams) < self._most + bounds.EARLY_STREAMS
            and self._early_headers <= bounds.EARLY_HEADERS
            and self._now <= self._greeted_at + bounds.EARLY_TIME
        )

    @property
    def is_drained(self) -> bool:
        """Whether no stream is open and none will be served any more."""
        return self._last_served is not None and not self.streams

    @property
    def _last_taken(self) -> int:
        return self.last_stream if self._last_served is None else self._last_served

    def _is_idle(self, number: int) -> bool:
        return number > self.last_stream or not number % 2

    def _opens(self, number: int) -> bool:
        if not number % 2:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "an even stream number from a client")
        is_new = number > self.last_stream
        if is_new:
            self.last_stream = number
        return is_new

    def _on_headers(self, number: int, fields: Fields, *, end: bool) -> None:
        stream = self.streams.get(number)
        if stream is not None:
            self._end_body(stream, fields, end=end)
            return
        if not self._opens(number):
            self._for_nobody(number)
            return
        if self._last_served is not None or (
            len(self.streams) >= self._most and not self._may_be_early(fields.size)
        ):
            self._refuse(number)
            return
        if not fields.is_request or (end and fields.length):
            raise StreamFault(number, Code.PROTOCOL_ERROR)
        stream = Stream(number, self._out.initial, bounds.STREAM_WINDOW)
        stream.received_headers = True
        stream.remote_open = not end
        stream.due = fields.length
        self.streams[number] = stream
        # grpcio enlarges both windows, of the stream and the connection, at the start of each call.
        if self._expected_updates < _MOST_UPDATES + 2 * self._most:
            self._expected_updates += 2
        self._events.append(Headers(stream, fields, end))


class ClientConnection(_Peer):
    """The client's end."""

    opens_streams = True
    preface = b""

    def __init__(self, header_bytes: int) -> None:
        super().__init__(header_bytes)
        self.is_leaving = False
        """Whether the peer accepts no more streams, or stream numbers are exhausted."""
        self._out.parts.append(frames.PREFACE)
        self._greet(
            (
                (frames.HEADER_TABLE_SIZE, 0),
                (frames.ENABLE_PUSH, 0),
                (frames.INITIAL_WINDOW_SIZE, bounds.STREAM_WINDOW),
                (frames.MAX_FRAME_SIZE, bounds.FRAME),
                (frames.MAX_HEADER_LIST_SIZE, header_bytes),
            )
        )

    @property
    def has_room(self) -> bool:
        """Whether a stream may be opened."""
        return (
            self._is_greeted
            and not self.is_leaving
            and not self.is_over
            and len(self.streams) < self.most_streams
        )

    def ask(self, block: bytes, parts: Sequence[Buffer]) -> Stream:
        """Open a stream with the header block `block` and the whole body `parts`. `can_open_stream`
        must be true."""
        number = self.last_stream + 2 if self.last_stream else 1
        self.last_stream = number
        self.is_leaving = self.is_leaving or number + 2 > frames.LAST_STREAM
        stream = Stream(number, self._out.initial, bounds.STREAM_WINDOW)
        self.streams[number] = stream
        if self._expected_updates < _MOST_UPDATES:  # a server may enlarge both windows
            self._expected_updates += 2
        self._out.all(stream, block, parts, b"")
        return stream

    def _is_idle(self, number: int) -> bool:
        return number > self.last_stream or not number % 2

    def _opens(self, number: int) -> bool:
        if self._is_idle(number):
            raise ConnectionFault(
                Code.PROTOCOL_ERROR, "a response on a stream that was never opened"
            )
        return False

    def _check_push(self, value: int) -> None:
        if value:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "the server enables push")

    def _gave_up_after(self, last: int, code: int) -> None:
        self.is_leaving = True
        for stream in [each for each in self.streams.values() if each.id > last]:
            self._close(stream)
            self._events.append(Reset(stream, code, untouched=True))

    def _on_headers(self, number: int, fields: Fields, *, end: bool) -> None:
        stream = self.streams.get(number)
        if stream is None:
            self._opens(number)
            self._for_nobody(number)
            return
        if stream.received_headers:
            self._end_body(stream, fields, end=end)
            return
        if not stream.remote_open:
            raise StreamFault(number, Code.STREAM_CLOSED)
        status = fields.status
        if status is None or (end and fields.length) or status == 101:
            raise StreamFault(number, Code.PROTOCOL_ERROR)
        if status < 200:
            self._charge("informational responses")
            if end:
                raise StreamFault(number, Code.PROTOCOL_ERROR)
            return
        stream.received_headers = True
        stream.due = fields.length
        if end:
            stream.remote_open = False
            if not stream.local_open:
                del self.streams[number]
        self._events.append(Headers(stream, fields, end))
