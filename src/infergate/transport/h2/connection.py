"""The state machine of an HTTP/2 connection that both ends share (RFC 9113).

`receive` takes bytes and returns events; output gathers until `take_output`. `frame_reader` splits
the bytes into frames; `roles` has what server and client do differently.

- The connection's receive window is refilled as DATA is read from the socket, a stream's when its
  owner calls `release`; that is what makes a peer wait.
- Every frame that advances no request is charged to a budget (`limits`).
- A frame on a closed stream is an error of that stream alone, unless RFC 9113 demands more, because
  other calls share the connection. Frames that were in flight when we reset a stream are free of
  charge.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from infergate.core.tensor import Buffer
from infergate.transport.h2 import bounds, frames
from infergate.transport.h2.blocks import TooManyHeaders
from infergate.transport.h2.budget import Budget
from infergate.transport.h2.events import Data, Event, Failed, Goaway, Ready, Reset, Sent
from infergate.transport.h2.fields import BlockReader, Fields
from infergate.transport.h2.frames import ACK, END_STREAM, WORD, Code, ConnectionFault, StreamFault
from infergate.transport.h2.outbox import Outbox
from infergate.transport.h2.reader import PRIORITY_FIELDS, Reader
from infergate.transport.h2.stream import Stream

_REASON: Final = 200
"""Characters of a GOAWAY reason that are sent or reported."""
_ON_ITS_WAY: Final = 2
"""Header blocks that a peer may have sent before it received our RST_STREAM."""


class Connection(Reader):
    """A connection. `streams` holds the open streams by number."""

    opens_streams = False
    """Whether this end opens the streams, so that the peer can only end or break streams that it
    was sent."""

    def __init__(self, header_bytes: int) -> None:
        """`header_bytes`: the limit on a request's or response's headers. Blocks of a few times
        that size are still read, so that the stream can be refused with an error."""
        self.streams: dict[int, Stream] = {}
        self.last_stream = 0
        """The greatest stream number used by the peer (client: by us)."""
        self.is_over = False
        self.most_streams = 2**31
        """How many concurrent streams the peer allows."""
        super().__init__(bounds.BLOCK_TIMES * header_bytes)
        self._out = Outbox()
        self._blocks = BlockReader(self._most_block)
        self._calm = Budget(bounds.CALM, bounds.CALM_RATE)
        self._changes = Budget(bounds.CHANGES, bounds.CHANGES_RATE)
        self._pings = Budget(bounds.PINGS, bounds.PINGS_RATE)
        self._earned_frames = 0
        self._expected_updates = 0
        self._pinged_frames = 0
        self._now = self._greeted_at = 0.0
        self._events: list[Event] = []
        self._acks_due = 1
        self._window = frames.DEFAULT_WINDOW
        self._unreleased = 0
        self._closed: OrderedDict[int, tuple[int, int] | None] = OrderedDict()
        """Streams that were reset. For a stream that we reset: how many bytes of DATA and how many
        header blocks may still arrive. None: the peer reset it."""

    # ---- to be implemented by subclasses

    def _on_headers(self, number: int, fields: Fields, *, end: bool) -> None:
        """Handle a header block. Raises Http2ConnectionError and Http2StreamError."""
        raise NotImplementedError

    def _is_idle(self, number: int) -> bool:
        """Return whether a stream with this number was never opened."""
        raise NotImplementedError

    def _on_pong(self, payload: bytes) -> None:
        """Handle the answer to a PING of ours."""

    # ---- receiving

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Process received bytes and return the resulting events. `now`: seconds on any one
        clock."""
        self._now = now
        events = self._events = []
        if not self.is_over:
            try:
                self._read(data)
            except ConnectionFault as fault:
                self.fail(fault.code, fault.reason)
                events.append(Failed(fault.code, fault.reason))
        return events

    @property
    def heard_at(self) -> float:
        """When bytes were last received."""
        return self._now

    @property
    def is_inside_headers(self) -> bool:
        """Whether a header block, or another frame that is held, is incomplete."""
        return self._block is not None or bool(self._rest)

    def _on_frame(self, kind: int, stream: int, flags: int, payload: bytes) -> None:
        match kind:
            case frames.WINDOW_UPDATE:
                self._on_window_update(stream, payload)
            case frames.RST_STREAM:
                self._on_reset(stream, payload)
            case frames.PING:
                self._on_ping(flags, payload)
            case frames.SETTINGS:
                self._on_settings(flags, payload)
            case frames.GOAWAY:
                self._on_goaway(payload)
            case frames.PRIORITY:
                self._charge("priorities")
                if len(payload) != PRIORITY_FIELDS:
                    if self._is_idle(
                        stream
                    ):  # RST_STREAM is not allowed on an idle stream (RFC 9113, 6.4)
                        raise ConnectionFault(
                            Code.FRAME_SIZE_ERROR, "a PRIORITY frame of the wrong size"
                        )
                    raise StreamFault(stream, Code.FRAME_SIZE_ERROR)
            case _:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "PUSH_PROMISE although push is disabled")

    def _on_block(self, number: int, block: bytes, *, end: bool) -> None:
        self.advances += 1
        try:
            fields = self._blocks.read(block)
        except TooManyHeaders:
            if not self._may_skip():
                raise
            self._on_skipped(number)
            return
        self._on_headers(number, fields, end=end)

    def _may_skip(self) -> bool:
        """Return whether the peer has acknowledged our SETTINGS, so that it has no dynamic
        table."""
        return not self._acks_due

    def _on_data(self, number: int, flags: int, length: int, body: int) -> Stream | None:
        if length > self._window:
            raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "DATA beyond the connection window")
        self._window -= length
        self._unreleased += length
        if self._unreleased * 2 >= bounds.CONNECTION_WINDOW:
            self._grow(self._unreleased)
            self._unreleased = 0
        stream = self.streams.get(number)
        if stream is None:
            self._on_late_data(number, body)
            return None
        if not stream.remote_open:
            raise StreamFault(number, Code.STREAM_CLOSED)
        self._take_data(stream, flags, length, body)
        return stream

    def _on_late_data(self, number: int, body: int) -> None:
        """Handle DATA on a stream that is not open; `body` excludes padding. Raises
        Http2ConnectionError and Http2StreamError."""
        if self._is_idle(number):
            raise ConnectionFault(Code.PROTOCOL_ERROR, "DATA on a stream that was never opened")
        allowed = self._closed.get(number)
        if allowed is None:
            raise StreamFault(number, Code.STREAM_CLOSED)
        remaining_bytes, remaining_blocks = allowed
        if 0 < body <= remaining_bytes:
            self._closed[number] = remaining_bytes - body, remaining_blocks
        else:
            self._charge("DATA on closed streams")

    def _take_data(self, stream: Stream, flags: int, length: int, body: int) -> None:
        if length > stream.receive_window:
            raise StreamFault(stream.id, Code.FLOW_CONTROL_ERROR)
        if not stream.received_headers:
            raise StreamFault(stream.id, Code.PROTOCOL_ERROR)
        stream.receive_window -= body
        if length > body:  # return padding at once: the owner never sees it
            self._grow(length - body, stream)
        if stream.due is not None:
            stream.due -= body
            if stream.due < 0 or (flags & END_STREAM and stream.due):
                raise StreamFault(stream.id, Code.PROTOCOL_ERROR)

    def _counts(self, number: int, length: int) -> int:
        stream = self.streams.get(number)
        if stream is None or not stream.remote_open or not stream.received_headers:
            return 0
        before_update = bounds.CONNECTION_WINDOW // 2 - 1 - self._unreleased
        allowed = min(self._window, before_update, stream.receive_window)
        return (allowed if stream.due is None else min(allowed, stream.due)) // length

    def _on_run(self, number: int, size: int) -> Stream:
        stream = self.streams[number]
        self._window -= size
        self._unreleased += size
        stream.receive_window -= size
        if stream.due is not None:
            stream.due -= size
        return stream

    def _payload(self, stream: Stream, parts: Sequence[Buffer], size: int, *, end: bool) -> None:
        self._events.append(Data(stream, parts, size, end))
        if end:
            stream.remote_open = False
            if not stream.local_open:
                del self.streams[stream.id]

    def _broken(self, fault: StreamFault) -> None:
        if not self.opens_streams or fault.stream not in self.streams:
            self._charge("streams that break rules")
        self._break(fault.stream, fault.code)

    # ---- frames about streams

    def _on_reset(self, number: int, payload: bytes) -> None:
        if self._is_idle(number):
            raise ConnectionFault(
                Code.PROTOCOL_ERROR, "RST_STREAM on a stream that was never opened"
            )
        stream = self.streams.get(number)
        if stream is None or not self.opens_streams:
            self._charge("resets")
        if stream is not None:
            code = WORD.unpack(payload)[0]
            self._close(stream)
            self._remember_closed(number, None)
            self._events.append(Reset(stream, code, untouched=code == Code.REFUSED_STREAM))

    def _on_window_update(self, number: int, payload: bytes) -> None:
        out = self._out
        if self._expected_updates:
            self._expected_updates -= 1
        else:
            self._charge("window updates")
        increment = WORD.unpack(payload)[0] & frames.LARGEST_WINDOW
        if number == 0:
            if not increment:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            for waiting_stream in out.widen(increment):
                self._sent(waiting_stream)
            return
        stream = self.streams.get(number)
        if stream is None:
            if self._is_idle(number):
                raise ConnectionFault(
                    Code.PROTOCOL_ERROR, "WINDOW_UPDATE on a stream that was never opened"
                )
            return
        if not increment:
            raise StreamFault(number, Code.PROTOCOL_ERROR)
        self._widened(stream, out.widen_stream(stream, increment))

    def _widened(self, stream: Stream, sent: bool | None) -> None:  # noqa: FBT001
        if sent is None:
            raise StreamFault(stream.id, Code.FLOW_CONTROL_ERROR)
        if sent:
            self._sent(stream)

    def _sent(self, stream: Stream) -> None:
        self._events.append(Sent(stream))
        self._finish_sending(stream)

    # ---- frames about the connection

    def _on_settings(self, flags: int, payload: bytes) -> None:
        if flags & ACK:
            self._on_settings_ack(payload)
            return
        if len(payload) % frames.SETTING.size:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "SETTINGS of a wrong size")
        if not self._changes.spend(self._now):
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "too many SETTINGS")
        initial = self._out.initial
        for identifier, value in frames.SETTING.iter_unpack(payload):
            if identifier == frames.INITIAL_WINDOW_SIZE:
                initial = value  # applied once, however often it is repeated
                if value > frames.LARGEST_WINDOW:
                    raise ConnectionFault(
                        Code.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE is too large"
                    )
            else:
                self._set(identifier, value)
        if initial != self._out.initial:
            self._set_windows(initial)
        self._out.parts.append(frames.SETTINGS_ACK)
        if not self._is_greeted:
            self._is_greeted = True
            self._greeted_at = self._now
            self._events.append(Ready())

    def _on_settings_ack(self, payload: bytes) -> None:
        if payload:
            raise ConnectionFault(
                Code.FRAME_SIZE_ERROR, "a SETTINGS acknowledgement with a payload"
            )
        if not self._is_greeted or not self._acks_due:
            raise ConnectionFault(
                Code.PROTOCOL_ERROR, "a SETTINGS acknowledgement without SETTINGS"
            )
        self._acks_due -= 1
        self._blocks.settle()

    def _set(self, identifier: int, value: int) -> None:
        match identifier:
            case frames.ENABLE_PUSH:
                self._check_push(value)
            case frames.MAX_CONCURRENT_STREAMS:
                if value > self.most_streams and self._is_greeted:
                    self._events.append(Ready())
                self.most_streams = value
            case frames.MAX_FRAME_SIZE:
                if not frames.LEAST_FRAME <= value <= frames.LARGEST_FRAME:
                    raise ConnectionFault(Code.PROTOCOL_ERROR, "MAX_FRAME_SIZE out of range")
                self._out.frame_size = value

    def _set_windows(self, initial: int) -> None:
        out = self._out
        grown, out.initial = initial - out.initial, initial
        for stream in tuple(self.streams.values()):
            sent = out.widen_stream(stream, grown)
            if sent is None:
                raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "a stream window overflows")
            if sent:
                self._sent(stream)

    def _check_push(self, value: int) -> None:
        if value > 1:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "ENABLE_PUSH is not 0 or 1")

    def _on_ping(self, flags: int, payload: bytes) -> None:
        if flags & ACK:
            self._charge("PING acknowledgements")
            self._on_pong(payload)
            return
        if self._out.sent_frames > self._pinged_frames:
            self._pinged_frames = self._out.sent_frames
            self._pings.fill()
        if not self._pings.spend(self._now):
            # On this reason gRPC clients reduce their ping rate (gRFC A8).
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "too_many_pings")
        self._out.parts.append(frames.frame(frames.PING, ACK, 0, payload))

    def _on_goaway(self, payload: bytes) -> None:
        self._charge("GOAWAY frames")
        last, code, reason = frames.read_goaway(payload)
        self._gave_up_after(last, code)
        self._events.append(Goaway(code, reason[:_REASON]))

    def _gave_up_after(self, last: int, code: int) -> None:
        """Handle that the peer will not process our streams after `last`."""

    def _charge(self, what: str) -> None:
        sent = self._out.sent_frames
        if sent > self._earned_frames:  # the peer may answer each with two window updates
            self._calm.earn(2.0 * (sent - self._earned_frames))
            self._earned_frames = sent
        if not self._calm.spend(self._now):
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, f"too many {what}")

    # ---- sending

    def take(self) -> list[Buffer]:
        """Return the pending output, in order, and forget it."""
        parts, self._out.parts = self._out.parts, []
        return parts

    @property
    def has_output(self) -> bool:
        """Whether there is pending output."""
        return bool(self._out.parts)

    def send_headers(self, stream: Stream, block: bytes, *, end: bool = False) -> None:
        """Send a header block (`header_blocks.encode_block`). `end`: nothing follows."""
        if stream.local_open:
            self._out.headers(stream, block, end=end)
            if end:
                self._finish_sending(stream)

    def send_data(self, stream: Stream, parts: Sequence[Buffer], tail: bytes | None = None) -> bool:
        """Send part of a body, then its end unless `trailers` is None: with the trailers `trailers`
        if it is not empty. Return False if data has to wait for the peer's windows; a `Sent` event
        reports when it has been sent.

        Nothing is sent on a stream that has been reset.
        """
        if not stream.local_open:
            return True
        sent = self._out.data(stream, parts, tail)
        if sent and tail is not None:
            self._finish_sending(stream)
        return sent

    def send_all(self, stream: Stream, block: bytes, parts: Sequence[Buffer], tail: bytes) -> None:
        """Send all of a message on `stream`: header block, body and trailers."""
        if stream.local_open and self._out.all(stream, block, parts, tail):
            self._finish_sending(stream)

    def _finish_sending(self, stream: Stream) -> None:
        if not stream.local_open and not stream.remote_open:
            self.streams.pop(stream.id, None)

    def reset(self, stream: Stream, code: Code) -> None:
        """Reset `stream` if it is still open."""
        if stream.id in self.streams:
            self._cut(stream.id, code)
            self._close(stream)

    def release(self, stream: Stream, size: int) -> None:
        """Let the peer send `size` more bytes on `stream`, which the owner has consumed. Bytes
        granted by `expect` are not granted again."""
        extra = min(size, stream.invited)
        stream.invited -= extra
        stream.unreleased += size - extra
        if stream.remote_open and stream.unreleased * 2 >= bounds.STREAM_WINDOW:
            self._grow(stream.unreleased, stream)
            stream.receive_window += stream.unreleased
            stream.unreleased = 0

    def invite(self, stream: Stream, size: int) -> None:
        """Raise the window of `stream` so that `size` more bytes, which will be accepted, can
        arrive."""
        lacking = size - stream.receive_window
        if lacking > 0 and stream.remote_open:
            self._grow(lacking, stream)
            stream.receive_window += lacking
            stream.invited += lacking

    def _grow(self, size: int, stream: Stream | None = None) -> None:
        if stream is None:
            self._window += size
        self._out.parts.append(frames.window_update(0 if stream is None else stream.id, size))

    def _greet(self, values: Sequence[tuple[int, int]]) -> None:
        self._out.parts.append(frames.settings(values))
        self._grow(bounds.CONNECTION_WINDOW - self._window)

    def _break(self, number: int, code: Code) -> None:
        """Reset a stream, which may never have been open, and report it to its owner."""
        self._cut(number, code)
        stream = self.streams.get(number)
        if stream is not None:
            self._close(stream)
            self._events.append(Reset(stream, code, untouched=False))

    def _cut(self, number: int, code: Code) -> None:
        """Send RST_STREAM, and ignore what the peer has already sent on the stream."""
        stream = self.streams.get(number)
        if stream is not None and stream.remote_open:
            self._remember_closed(number, (stream.receive_window, _ON_ITS_WAY))
        elif stream is not None or number in self._closed or code is Code.STREAM_CLOSED:
            self._remember_closed(number, (0, 0))
        else:  # refused: open only from the peer's point of view
            self._remember_closed(number, (bounds.STREAM_WINDOW, _ON_ITS_WAY))
        self._out.parts.append(frames.reset(number, code))

    def _remember_closed(self, number: int, allowed: tuple[int, int] | None) -> None:
        self._closed[number] = allowed
        if len(self._closed) > bounds.REMEMBERED_RESETS:
            self._closed.popitem(last=False)

    def _close(self, stream: Stream) -> None:
        del self.streams[stream.id]
        self._out.forget(stream)
        stream.remote_open = False

    def fail(self, code: Code, reason: str) -> None:
        """End the connection with a GOAWAY that gives the reason."""
        self.is_over = True
        self._out.parts.append(frames.goaway(self._last_taken, code, reason[:_REASON]))
        for stream in self.streams.values():
            self._out.forget(stream)
            stream.remote_open = False
        self.streams.clear()

    @property
    def _last_taken(self) -> int:
        """The last stream of the peer that was processed."""
        return 0
