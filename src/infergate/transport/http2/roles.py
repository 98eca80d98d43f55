"""The two ends of an HTTP/2 connection, as gRPC uses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from infergate.core.tensor import Buffer
from infergate.transport.http2 import frames, limits
from infergate.transport.http2.connection import Http2Connection
from infergate.transport.http2.events import Headers, Reset, Trailers, new
from infergate.transport.http2.frames import Code, Http2ConnectionError, Http2StreamError
from infergate.transport.http2.header_blocks import HeaderBlock
from infergate.transport.http2.stream import Stream

_MAX_EXPECTED_UPDATES: Final = 2 * limits.EARLY_STREAMS
"""Maximum number of window updates that are expected for new streams, and so not charged to the
budget. A server also expects two updates for each stream of `max_streams`."""
_PING_PAYLOAD: Final = b"there? \0"
_DRAIN_PING_PAYLOAD: Final = b"draining"
"""Payload of the PING after the first GOAWAY. An acknowledgement of the PING confirms that the peer
has received the GOAWAY."""


class _RoleConnection(Http2Connection):
    """The base class of server and client connections."""

    def ping(self) -> None:
        """Send a PING. Any bytes that arrive afterwards show that the peer is alive."""
        self.outbound.output.append(frames.frame(frames.PING, 0, 0, _PING_PAYLOAD))

    def _on_trailers(self, stream: Stream, fields: HeaderBlock, *, end: bool) -> None:
        if not stream.remote_open:
            raise Http2StreamError(stream.id, Code.STREAM_CLOSED)
        if not end or not fields.is_trailers or stream.remaining_length:
            raise Http2StreamError(stream.id, Code.PROTOCOL_ERROR)
        stream.remote_open = False
        if not stream.local_open:
            del self.streams[stream.id]
        self._events.append(new(Trailers, (stream, fields)))

    def _on_closed_stream_headers(self, number: int) -> None:
        if not self.is_client and number not in self._closed_streams:
            # The stream may never have been open, and stream numbers must increase (RFC 9113,
            # 5.1.1).
            raise Http2ConnectionError("headers on a closed stream", Code.STREAM_CLOSED)
        if not self._closed_streams.accept_headers(number):
            self._charge_budget("headers on closed streams")

    def _on_skipped_block(self, number: int) -> None:
        if number not in self.streams and not self._is_opening(number):
            self._on_closed_stream_headers(number)
            return
        raise Http2StreamError(number, Code.ENHANCE_YOUR_CALM)

    def _is_opening(self, number: int) -> bool:
        """Return whether headers on stream `number`, which is not open, open the stream. Raises
        Http2ConnectionError."""
        raise NotImplementedError


class Http2ServerConnection(_RoleConnection):
    """The server's end of a connection, which serves at most `max_streams` streams at a time."""

    preface = frames.PREFACE

    def __init__(self, header_bytes: int, max_streams: int) -> None:
        super().__init__(header_bytes)
        self._max_streams: Final = max_streams
        self._announced_last_stream: int | None = None
        """The last stream that is served, or None until this stream is announced."""
        self._early_header_bytes = 0
        self._send_settings(
            (
                (frames.HEADER_TABLE_SIZE, 0),
                (frames.MAX_CONCURRENT_STREAMS, max_streams),
                (frames.INITIAL_WINDOW_SIZE, limits.STREAM_WINDOW),
                (frames.MAX_FRAME_SIZE, limits.MAX_FRAME),
                (frames.MAX_HEADER_LIST_SIZE, header_bytes),
            )
        )

    def drain(self) -> None:
        """Announce a drain with a GOAWAY. Streams that the peer opens before it receives the
        GOAWAY are still served (RFC 9113, 6.8)."""
        if self.is_draining or self.is_closed:
            return
        self.is_draining = True
        self.outbound.output.append(frames.goaway(frames.LAST_STREAM, Code.NO_ERROR, "draining"))
        self.outbound.output.append(frames.frame(frames.PING, 0, 0, _DRAIN_PING_PAYLOAD))

    def _on_pong(self, payload: bytes) -> None:
        if self.is_draining and payload == _DRAIN_PING_PAYLOAD:
            self.announce_last_stream()

    def announce_last_stream(self) -> None:
        """Announce the last stream that is served, and refuse all later streams."""
        if self._announced_last_stream is not None:
            return
        self.is_draining = True
        self._announced_last_stream = self.last_stream
        self.outbound.output.append(frames.goaway(self.last_stream, Code.NO_ERROR, "draining"))

    def _refuse_stream(self, number: int) -> None:
        if self._unacknowledged_settings and number < 2 * limits.EARLY_REFUSED_STREAMS:
            self._send_reset(number, Code.REFUSED_STREAM)
        else:
            self._on_stream_error(Http2StreamError(number, Code.REFUSED_STREAM))

    def _is_early_stream_allowed(self, size: int) -> bool:
        """Return whether the peer may exceed `max_streams` with headers of `size` bytes. The peer
        must respect the SETTINGS only after it has acknowledged them (RFC 9113, 6.5.3)."""
        self._early_header_bytes += size
        return (
            self._unacknowledged_settings > 0
            and len(self.streams) < self._max_streams + limits.EARLY_STREAMS
            and self._early_header_bytes <= limits.EARLY_HEADER_BYTES
            and self.last_received_at <= self._settings_received_at + limits.EARLY_SECONDS
        )

    @property
    def is_drained(self) -> bool:
        """Whether no stream is open and no further stream will be served."""
        return self._announced_last_stream is not None and not self.streams

    @property
    def _last_processed(self) -> int:
        return (
            self.last_stream if self._announced_last_stream is None else self._announced_last_stream
        )

    def _is_opening(self, number: int) -> bool:
        if not number % 2:
            raise Http2ConnectionError("an even stream number from a client")
        is_new = number > self.last_stream
        if is_new:
            self.last_stream = number
        return is_new

    def _on_headers(self, number: int, fields: HeaderBlock, *, end: bool) -> None:
        stream = self.streams.get(number)
        if stream is not None:
            self._on_trailers(stream, fields, end=end)
            return
        if number & 1 and number > self.last_stream:
            self.last_stream = number
        elif not self._is_opening(number):
            self._on_closed_stream_headers(number)
            return
        if self._announced_last_stream is not None or (
            len(self.streams) >= self._max_streams
            and not self._is_early_stream_allowed(fields.size)
        ):
            self._refuse_stream(number)
            return
        if not fields.is_request or (end and fields.content_length):
            raise Http2StreamError(number, Code.PROTOCOL_ERROR)
        stream = Stream(number, self.outbound.initial_window, limits.STREAM_WINDOW)
        stream.received_headers = True
        stream.remote_open = not end
        stream.remaining_length = fields.content_length
        self.streams[number] = stream
        # grpcio enlarges the windows of the stream and of the connection at the start of each call.
        if self._expected_updates < _MAX_EXPECTED_UPDATES + 2 * self._max_streams:
            self._expected_updates += 2
        self._events.append(new(Headers, (stream, fields, end)))


class Http2ClientConnection(_RoleConnection):
    """The client's end of a connection."""

    is_client = True
    preface = b""

    def __init__(self, header_bytes: int) -> None:
        super().__init__(header_bytes)
        self.is_retired = False
        """Whether the peer accepts no more streams, or stream numbers are exhausted."""
        self.outbound.output.append(frames.PREFACE)
        self._send_settings(
            (
                (frames.HEADER_TABLE_SIZE, 0),
                (frames.ENABLE_PUSH, 0),
                (frames.INITIAL_WINDOW_SIZE, limits.STREAM_WINDOW),
                (frames.MAX_FRAME_SIZE, limits.MAX_FRAME),
                (frames.MAX_HEADER_LIST_SIZE, header_bytes),
            )
        )

    @property
    def can_open_stream(self) -> bool:
        return (
            self._has_received_settings
            and not self.is_retired
            and not self.is_closed
            and len(self.streams) < self.peer_max_streams
        )

    def open_stream(self, block: bytes, parts: Sequence[Buffer]) -> Stream:
        """Open a stream with the header block `block` and the complete body `parts`."""
        number = self.last_stream + 2 if self.last_stream else 1
        self.last_stream = number
        self.is_retired = self.is_retired or number + 2 > frames.LAST_STREAM
        stream = Stream(number, self.outbound.initial_window, limits.STREAM_WINDOW)
        self.streams[number] = stream
        if self._expected_updates < _MAX_EXPECTED_UPDATES:  # a server may enlarge both windows
            self._expected_updates += 2
        self.outbound.send_message(stream, block, parts, b"")
        return stream

    def _is_opening(self, number: int) -> bool:
        if self._is_idle(number):
            raise Http2ConnectionError("a response on a stream that was never opened")
        return False

    def _check_push(self, value: int) -> None:
        if value:
            raise Http2ConnectionError("the server enables push")

    def _on_streams_rejected(self, last: int, code: int) -> None:
        self.is_retired = True
        for stream in [each for each in self.streams.values() if each.id > last]:
            self._remove_stream(stream)
            self._events.append(Reset(stream, code, is_unprocessed=True))

    def _on_headers(self, number: int, fields: HeaderBlock, *, end: bool) -> None:
        stream = self.streams.get(number)
        if stream is None:
            self._is_opening(number)
            self._on_closed_stream_headers(number)
            return
        if stream.received_headers:
            self._on_trailers(stream, fields, end=end)
            return
        if not stream.remote_open:
            raise Http2StreamError(number, Code.STREAM_CLOSED)
        status = fields.status
        if status is None or (end and fields.content_length) or status == 101:
            raise Http2StreamError(number, Code.PROTOCOL_ERROR)
        if status < 200:
            self._charge_budget("informational responses")
            if end:
                raise Http2StreamError(number, Code.PROTOCOL_ERROR)
            return
        stream.received_headers = True
        stream.remaining_length = fields.content_length
        if end:
            stream.remote_open = False
            if not stream.local_open:
                del self.streams[number]
        self._events.append(new(Headers, (stream, fields, end)))
