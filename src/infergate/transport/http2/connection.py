"""The state machine of an HTTP/2 connection that both ends share (RFC 9113). `receive` takes bytes
and returns events. The output accumulates in `outbound.output` until the caller takes it.

- The connection's receive window is refilled as DATA is read from the socket. A stream's window is
  refilled when its owner calls `release`, so a slow owner slows down the peer.
- Budgets (`limits`) are charged for frames that do not advance a request.
- A frame on a closed stream is a connection error only if RFC 9113 requires it, because other calls
  share the connection. Otherwise, it is at most a stream error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from infergate.core.tensor import Buffer
from infergate.transport.http2 import frames, limits
from infergate.transport.http2.closed_streams import ClosedStreams
from infergate.transport.http2.events import Data, Event, Failed, Goaway, Ready, Reset, Sent, new
from infergate.transport.http2.frame_budget import FrameBudget
from infergate.transport.http2.frame_reader import PRIORITY_SIZE, Http2FrameReader
from infergate.transport.http2.frames import Code, Http2ConnectionError, Http2StreamError
from infergate.transport.http2.header_block_decoder import HeaderBlockDecoder
from infergate.transport.http2.hpack_decoder import HeaderBlockTooLargeError
from infergate.transport.http2.outbound import OutboundFrames
from infergate.transport.http2.stream import Stream

_MAX_REASON: Final = 200  # the maximum length of a GOAWAY reason that is sent or reported
_UPDATE_AT: Final = limits.CONNECTION_WINDOW // 2
"""Received bytes after which the connection's window is refilled."""
_IN_FLIGHT_BLOCKS: Final = 2
"""Number of header blocks that may arrive on a stream after RST_STREAM has been sent, because they
were already in flight."""


class Http2Connection(Http2FrameReader):
    """The base class of both ends of a connection. `streams` holds the open streams by number."""

    is_client = False  # whether the gateway opens the streams

    def __init__(self, header_bytes: int) -> None:
        """`header_bytes` limits the headers of a request or response. Blocks of up to
        `limits.HEADER_BLOCK_FACTOR` times that size are decoded, so that the stream can be refused
        with an error."""
        self.streams: dict[int, Stream] = {}
        self.last_stream = 0  # the highest number of a stream that the client opened
        self.is_closed = False
        self.is_draining = False  # whether the gateway has announced the drain with a GOAWAY
        self.peer_max_streams = 2**31  # the number of concurrent streams that the peer allows
        super().__init__(limits.HEADER_BLOCK_FACTOR * header_bytes)
        self.outbound = OutboundFrames()
        self._header_decoder = HeaderBlockDecoder(self._max_block)
        self._cached_blocks = self._header_decoder.cache
        self._glitch_budget = FrameBudget(limits.GLITCH_BURST, limits.GLITCH_RATE)
        self._settings_budget = FrameBudget(limits.SETTINGS_BURST, limits.SETTINGS_RATE)
        self._ping_budget = FrameBudget(limits.PING_BURST, limits.PING_RATE)
        self._refunded_frames = 0
        self._expected_updates = 0
        self._frames_at_ping = 0
        self.last_received_at = self._settings_received_at = 0.0
        self._events: list[Event] = []
        self._unacknowledged_settings = 1
        self._receive_window = frames.DEFAULT_WINDOW
        self._unreleased = 0
        self._closed_streams = ClosedStreams()

    # ---- to be implemented by subclasses

    def _is_idle(self, number: int) -> bool:
        return number > self.last_stream or not number % 2

    def _on_pong(self, payload: bytes) -> None:
        """Process the acknowledgement of a PING that the gateway sent."""

    # ---- receiving

    def receive(self, data: bytes | bytearray, now: float, size: int = -1) -> list[Event]:
        """Process the first `size` bytes of `data`, or all bytes if `size` is -1. Return the
        events, which refer to `data`. `now` is in seconds on a monotonic clock."""
        self.last_received_at = now
        events = self._events = []
        if not self.is_closed:
            try:
                self._split(data, len(data) if size < 0 else size)
            except Http2ConnectionError as error:
                self.fail(error.code, error.reason)
                events.append(Failed(error.code, error.reason))
        self._events = []  # otherwise an idle connection would hold the bytes of its last read
        return events

    @property
    def is_frame_pending(self) -> bool:
        """Whether the connection holds an incomplete header block or frame."""
        return self._block is not None or bool(self._unparsed)

    def _on_frame(self, kind: int, stream: int, flags: int, payload: bytes) -> None:
        match kind:
            case frames.RST_STREAM:
                self._on_reset(stream, payload)
            case frames.PING:
                self._on_ping(flags, payload)
            case frames.SETTINGS:
                self._on_settings(flags, payload)
            case frames.GOAWAY:
                self._on_goaway(payload)
            case frames.PRIORITY:
                self._charge_budget("PRIORITY frames")
                if len(payload) != PRIORITY_SIZE:
                    if self._is_idle(stream):  # an idle stream cannot be reset (RFC 9113, 6.4)
                        reason = "a PRIORITY frame of the wrong size"
                        raise Http2ConnectionError(reason, Code.FRAME_SIZE_ERROR)
                    raise Http2StreamError(stream, Code.FRAME_SIZE_ERROR)
            case _:
                raise Http2ConnectionError("PUSH_PROMISE although push is disabled")

    def _on_block(self, number: int, block: bytes, *, end: bool) -> None:
        self.progress_count += 1
        try:
            fields = self._header_decoder.decode(block)
        except HeaderBlockTooLargeError:
            if not self._can_skip_block():
                raise
            self._on_skipped_block(number)
            return
        self._on_headers(number, fields, end=end)

    def _can_skip_block(self) -> bool:
        return not self._unacknowledged_settings

    def _on_whole_data(self, number: int, payload: Buffer, *, end: bool) -> bool:
        stream = self.streams.get(number)
        size = len(payload)
        if (
            stream is None
            or not stream.remote_open
            or not stream.received_headers
            or size > self._receive_window
            or size > stream.receive_window
            or self._unreleased + size >= _UPDATE_AT
        ):
            return False
        left = stream.remaining_length
        if left is not None:
            if left < size or (end and left > size):
                return False
            stream.remaining_length = left - size
        self._receive_window -= size
        self._unreleased += size
        stream.receive_window -= size
        events = self._events
        last = events[-1] if events else None
        if type(last) is Data and last.stream is stream:
            self._on_data_payload(stream, (payload,), size, end=end)
            return True
        if end:
            stream.remote_open = False
            if not stream.local_open:
                del self.streams[number]
        events.append(new(Data, (stream, [payload], size, end)))
        return True

    def _on_data(self, number: int, flags: int, length: int, body: int) -> Stream | None:
        if length > self._receive_window:
            raise Http2ConnectionError("DATA beyond the connection window", Code.FLOW_CONTROL_ERROR)
        self._receive_window -= length
        self._unreleased += length
        if self._unreleased >= _UPDATE_AT:
            self._send_window_update(self._unreleased)
            self._unreleased = 0
        stream = self.streams.get(number)
        if stream is None:
            self._on_closed_stream_data(number, body)
            return None
        if not stream.remote_open:
            raise Http2StreamError(number, Code.STREAM_CLOSED)
        self._accept_data(stream, flags, length, body)
        return stream

    def _on_closed_stream_data(self, number: int, body: int) -> None:
        """Handle DATA on a stream that is not open; `body` excludes padding."""
        if self._is_idle(number):
            raise Http2ConnectionError("DATA on a stream that was never opened")
        if not self._closed_streams.accept_data(number, body):
            self._charge_budget("DATA frames on closed streams")

    def _accept_data(self, stream: Stream, flags: int, length: int, body: int) -> None:
        if length > stream.receive_window:
            raise Http2StreamError(stream.id, Code.FLOW_CONTROL_ERROR)
        if not stream.received_headers:
            raise Http2StreamError(stream.id, Code.PROTOCOL_ERROR)
        stream.receive_window -= body
        if length > body:  # release padding now, because the owner does not receive it
            self._send_window_update(length - body, stream)
        if stream.remaining_length is not None:
            stream.remaining_length -= body
            is_end = flags & frames.END_STREAM
            if stream.remaining_length < 0 or (is_end and stream.remaining_length):
                raise Http2StreamError(stream.id, Code.PROTOCOL_ERROR)

    def _countable_frames(self, number: int, length: int) -> int:
        stream = self.streams.get(number)
        if stream is None or not stream.remote_open or not stream.received_headers:
            return 0
        before_update = _UPDATE_AT - 1 - self._unreleased
        allowed = min(self._receive_window, before_update, stream.receive_window)
        return (
            allowed if stream.remaining_length is None else min(allowed, stream.remaining_length)
        ) // length

    def _on_data_run(self, number: int, size: int) -> Stream:
        stream = self.streams[number]
        self._receive_window -= size
        self._unreleased += size
        stream.receive_window -= size
        if stream.remaining_length is not None:
            stream.remaining_length -= size
        return stream

    def _on_data_payload(
        self, stream: Stream, parts: Sequence[Buffer], size: int, *, end: bool
    ) -> None:
        events = self._events
        last = events[-1] if events else None
        # The end of a frame, complete frames and the start of another frame become one event if
        # they arrive in one read.
        if type(last) is Data and last.stream is stream:
            last.parts.extend(parts)
            events[-1] = new(Data, (stream, last.parts, last.size + size, end))
        else:
            events.append(new(Data, (stream, list(parts), size, end)))
        if end:
            stream.remote_open = False
            if not stream.local_open:
                del self.streams[stream.id]

    def _on_stream_error(self, error: Http2StreamError) -> None:
        if not self.is_client or error.stream not in self.streams:
            self._charge_budget("streams that break rules")
        self._reset_and_report(error.stream, error.code)

    # ---- frames about streams

    def _on_reset(self, number: int, payload: bytes) -> None:
        if self._is_idle(number):
            raise Http2ConnectionError("RST_STREAM on a stream that was never opened")
        stream = self.streams.get(number)
        if stream is None or not self.is_client:
            self._charge_budget("resets")
        if stream is not None:
            code = frames.UINT32.unpack(payload)[0]
            self._remove_stream(stream)
            self._closed_streams.add(number, None)
            self._events.append(Reset(stream, code, is_unprocessed=code == Code.REFUSED_STREAM))

    def _on_window_update(  # noqa: C901 - inlined, because clients send two updates per call
        self, number: int, increment: int
    ) -> None:
        out = self.outbound
        if self._expected_updates:
            self._expected_updates -= 1
        else:
            self._charge_budget("window updates")
        increment &= frames.LARGEST_WINDOW
        if number == 0:
            if not increment:
                raise Http2ConnectionError("WINDOW_UPDATE of 0")
            out.window += increment
            if out.window > frames.LARGEST_WINDOW:
                reason = "the connection window overflows"
                raise Http2ConnectionError(reason, Code.FLOW_CONTROL_ERROR)
            if out.waiting:
                for waiting_stream in out.resume_waiting():
                    self._on_queue_sent(waiting_stream)
            return
        stream = self.streams.get(number)
        if stream is None:
            if self._is_idle(number):
                raise Http2ConnectionError("WINDOW_UPDATE on a stream that was never opened")
            return
        if not increment:
            raise Http2StreamError(number, Code.PROTOCOL_ERROR)
        stream.send_window += increment
        if stream.send_window > frames.LARGEST_WINDOW:
            raise Http2StreamError(stream.id, Code.FLOW_CONTROL_ERROR)
        if stream.send_queue is not None and out.resume(stream):
            self._on_queue_sent(stream)

    def _on_queue_sent(self, stream: Stream) -> None:
        self._events.append(Sent(stream))
        self._finish_sending(stream)

    # ---- frames about the connection

    def _on_settings(self, flags: int, payload: bytes) -> None:
        if flags & frames.ACK:
            self._on_settings_ack(payload)
            return
        if len(payload) % frames.SETTING.size:
            raise Http2ConnectionError("SETTINGS of a wrong size", Code.FRAME_SIZE_ERROR)
        if not self._settings_budget.spend(self.last_received_at):
            raise Http2ConnectionError("too many SETTINGS", Code.ENHANCE_YOUR_CALM)
        initial = self.outbound.initial_window
        for identifier, value in frames.SETTING.iter_unpack(payload):
            if identifier == frames.INITIAL_WINDOW_SIZE:
                initial = value  # only the last value is applied
                if value > frames.LARGEST_WINDOW:
                    reason = "INITIAL_WINDOW_SIZE is too large"
                    raise Http2ConnectionError(reason, Code.FLOW_CONTROL_ERROR)
            else:
                self._apply_setting(identifier, value)
        # The ACK precedes the data that a larger window allows. grpc-core enlarges its window when
        # it reads the ACK, and ends a connection that sends the data earlier.
        self.outbound.output.append(frames.SETTINGS_ACK)
        if initial != self.outbound.initial_window:
            self._apply_initial_window(initial)
        if not self._has_received_settings:
            self._has_received_settings = True
            self._settings_received_at = self.last_received_at
            self._events.append(Ready())

    def _on_settings_ack(self, payload: bytes) -> None:
        if payload:
            reason = "a SETTINGS acknowledgement with a payload"
            raise Http2ConnectionError(reason, Code.FRAME_SIZE_ERROR)
        if not self._has_received_settings or not self._unacknowledged_settings:
            raise Http2ConnectionError("a SETTINGS acknowledgement without SETTINGS")
        self._unacknowledged_settings -= 1
        self._header_decoder.disable_table()

    def _apply_setting(self, identifier: int, value: int) -> None:
        match identifier:
            case frames.ENABLE_PUSH:
                self._check_push(value)
            case frames.MAX_CONCURRENT_STREAMS:
                if value > self.peer_max_streams and self._has_received_settings:
                    self._events.append(Ready())
                self.peer_max_streams = value
            case frames.MAX_FRAME_SIZE:
                if not frames.MIN_FRAME_SIZE <= value <= frames.LARGEST_FRAME_SIZE:
                    raise Http2ConnectionError("MAX_FRAME_SIZE out of range")
                self.outbound.max_frame_size = value

    def _apply_initial_window(self, initial: int) -> None:
        out = self.outbound
        grown, out.initial_window = initial - out.initial_window, initial
        for stream in tuple(self.streams.values()):
            stream.send_window += grown
            if stream.send_window > frames.LARGEST_WINDOW:
                raise Http2ConnectionError("a stream window overflows", Code.FLOW_CONTROL_ERROR)
            if stream.send_queue is not None and out.resume(stream):
                self._on_queue_sent(stream)

    def _check_push(self, value: int) -> None:
        if value > 1:
            raise Http2ConnectionError("ENABLE_PUSH is not 0 or 1")

    def _on_ping(self, flags: int, payload: bytes) -> None:
        if flags & frames.ACK:
            self._charge_budget("PING acknowledgements")
            self._on_pong(payload)
            return
        if self.outbound.sent_frames > self._frames_at_ping:
            self._frames_at_ping = self.outbound.sent_frames
            self._ping_budget.refill_and_spend(self.last_received_at)
        elif not self._ping_budget.spend(self.last_received_at):
            # gRPC clients that receive this reason reduce their ping rate (gRFC A8).
            raise Http2ConnectionError("too_many_pings", Code.ENHANCE_YOUR_CALM)
        self.outbound.output.append(frames.PONG_HEADER + payload)

    def _on_goaway(self, payload: bytes) -> None:
        self._charge_budget("GOAWAY frames")
        last, code, reason = frames.read_goaway(payload)
        self._on_streams_rejected(last, code)
        self._events.append(Goaway(code, reason[:_MAX_REASON]))

    def _on_streams_rejected(self, last: int, code: int) -> None:
        """Fail the streams after `last`, which the peer will not process."""

    def _charge_budget(self, reason: str) -> None:
        sent = self.outbound.sent_frames
        if sent > self._refunded_frames:  # the peer may send two window updates for each sent frame
            self._glitch_budget.add(2.0 * (sent - self._refunded_frames))
            self._refunded_frames = sent
        if not self._glitch_budget.spend(self.last_received_at):
            raise Http2ConnectionError(f"too many {reason}", Code.ENHANCE_YOUR_CALM)

    # ---- sending

    def take_output(self) -> list[Buffer]:
        """Return the pending output in order, and clear it."""
        parts, self.outbound.output = self.outbound.output, []
        return parts

    def send_headers(self, stream: Stream, block: bytes, *, end: bool = False) -> None:
        """Send a header block (`header_blocks.encode_block`). `end` means that the block ends the
        stream."""
        if stream.local_open:
            self.outbound.send_headers(stream, block, end=end)
            if end:
                self._finish_sending(stream)

    def send_data(
        self, stream: Stream, parts: Sequence[Buffer], trailers: bytes | None = None
    ) -> bool:
        """Send part of a body. `trailers` end the body. If they are empty, the body ends without
        trailers; if they are None, more parts follow. Return False if data waits for
        flow-control windows. A `Sent` event then follows."""
        if not stream.local_open:
            return True
        sent = self.outbound.send_data(stream, parts, trailers)
        if sent and trailers is not None:
            self._finish_sending(stream)
        return sent

    def send_message(
        self, stream: Stream, block: bytes, parts: Sequence[Buffer], trailers: bytes
    ) -> None:
        """Send a complete message on `stream`: header block, body and trailers."""
        if (
            stream.local_open
            and self.outbound.send_message(stream, block, parts, trailers)
            and not stream.remote_open
        ):
            self.streams.pop(stream.id, None)

    def _finish_sending(self, stream: Stream) -> None:
        if not stream.local_open and not stream.remote_open:
            self.streams.pop(stream.id, None)

    def reset(self, stream: Stream, code: Code) -> None:
        """Reset `stream` if it is still open."""
        if stream.id in self.streams:
            self._send_reset(stream.id, code)
            self._remove_stream(stream)

    def release(self, stream: Stream, size: int) -> None:
        """Let the peer send `size` more bytes on `stream`, minus the bytes that `expect` has
        already granted."""
        extra = min(size, stream.extra_granted)
        stream.extra_granted -= extra
        stream.unreleased += size - extra
        if stream.remote_open and stream.unreleased * 2 >= limits.STREAM_WINDOW:
            self._send_window_update(stream.unreleased, stream)
            stream.receive_window += stream.unreleased
            stream.unreleased = 0

    def expect(self, stream: Stream, size: int) -> None:
        """Raise the window of `stream` so that `size` more bytes can arrive."""
        missing = size - stream.receive_window
        if missing > 0 and stream.remote_open:
            self._send_window_update(missing, stream)
            stream.receive_window += missing
            stream.extra_granted += missing

    def _send_window_update(self, size: int, stream: Stream | None = None) -> None:
        if stream is None:
            self._receive_window += size
        self.outbound.output.append(frames.window_update(0 if stream is None else stream.id, size))

    def _send_settings(self, values: Sequence[tuple[int, int]]) -> None:
        self.outbound.output.append(frames.settings(values))
        self._send_window_update(limits.CONNECTION_WINDOW - self._receive_window)

    def _reset_and_report(self, number: int, code: Code) -> None:
        """Reset a stream, which may never have been open, and report the reset to its owner."""
        self._send_reset(number, code)
        stream = self.streams.get(number)
        if stream is not None:
            self._remove_stream(stream)
            self._events.append(Reset(stream, code, is_unprocessed=False))

    def _send_reset(self, number: int, code: Code) -> None:
        """Send RST_STREAM, and ignore frames on the stream that are already in flight."""
        stream = self.streams.get(number)
        if stream is not None and stream.remote_open:
            self._closed_streams.add(number, (stream.receive_window, _IN_FLIGHT_BLOCKS))
        elif stream is not None or number in self._closed_streams or code is Code.STREAM_CLOSED:
            self._closed_streams.add(number, (0, 0))
        else:  # a refused stream is open only for the peer
            self._closed_streams.add(number, (limits.STREAM_WINDOW, _IN_FLIGHT_BLOCKS))
        self.outbound.output.append(frames.reset(number, code))

    def _remove_stream(self, stream: Stream) -> None:
        del self.streams[stream.id]
        self.outbound.discard(stream)
        stream.remote_open = False

    def fail(self, code: Code, reason: str) -> None:
        """End the connection with a GOAWAY that gives the reason."""
        self.is_closed = True
        self.outbound.output.append(frames.goaway(self._last_processed, code, reason[:_MAX_REASON]))
        for stream in self.streams.values():
            self.outbound.discard(stream)
            stream.remote_open = False
        self.streams.clear()

    @property
    def _last_processed(self) -> int:
        """The number of the peer's last stream that was processed, or 0."""
        return 0
