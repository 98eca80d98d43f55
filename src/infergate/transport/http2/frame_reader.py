"""Splits the bytes from an HTTP/2 peer into frames (RFC 9113, 4 and 6.10). Only header blocks and
small frames are held until they are complete. DATA is passed on as views of the received bytes. A
length is checked when it is announced, before the payload arrives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from infergate.core.tensor import Buffer
from infergate.transport.http2 import frames, limits
from infergate.transport.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    FRAME_HEADER_SIZE,
    HEADERS,
    LAST_STREAM,
    PADDED,
    PING,
    SETTINGS,
    UINT32,
    WINDOW_UPDATE,
    Code,
    Http2ConnectionError,
    Http2StreamError,
)
from infergate.transport.http2.header_blocks import HeaderBlock
from infergate.transport.http2.limits import MAX_FRAME
from infergate.transport.http2.stream import Stream

NOTHING: Final = b""
PRIORITY_SIZE: Final = 5
_PING_SIZE: Final = 8
_MAX_COPIED: Final = 4096  # up to this many bytes, copying a payload costs less than a view
_MAX_FIRST_BYTES: Final = 16  # bytes that are kept if a connection does not start as HTTP/2


class Http2FrameReader:
    """The frame parser. The methods that subclasses implement may raise Http2ConnectionError, and
    those that handle one stream may also raise Http2StreamError."""

    preface: bytes  # the bytes with which the peer must start
    _cached_blocks: Mapping[bytes, HeaderBlock]
    """The fields of header blocks that were received recently."""

    def __init__(self, max_block: int) -> None:
        """`max_block` is the size of the longest accepted header block in bytes."""
        self._max_block = max_block
        self._max_headers = min(max_block, MAX_FRAME)  # the longest HEADERS frame
        self._unparsed = NOTHING
        self.progress_count = 0
        """Counts complete header blocks, and frames that arrived in part. While the count does not
        change, the same header block or frame is incomplete."""
        self._expected_preface = self.preface
        self.first_bytes = b""  # the first bytes from the peer, if they are not HTTP/2
        self._has_received_settings = False  # whether SETTINGS have arrived
        self._payload_left = 0  # missing bytes of a DATA frame or of a discarded frame
        self._padding_left = 0  # the part of `_payload_left` that is padding
        self._data_stream: Stream | None = None
        self._ends_stream = False
        self._block: bytearray | None = None  # an incomplete header block
        self._block_stream = 0
        self._block_flags = 0
        self._continuations = 0
        self._is_skipping = False  # whether the header block is too long and is being discarded

    # ---- to be implemented by subclasses

    def _on_frame(self, kind: int, stream: int, flags: int, payload: bytes) -> None:
        """Handle a frame of any known type except DATA, WINDOW_UPDATE and the frames of header
        blocks."""
        raise NotImplementedError

    def _on_data(self, number: int, flags: int, length: int, body: int) -> Stream | None:
        """Process the start of a DATA frame of `length` bytes, including padding. `body` is the
        number of bytes without padding. Return the stream, or None to discard the data."""
        raise NotImplementedError

    def _countable_frames(self, number: int, length: int) -> int:
        """Return how many DATA frames of `length` bytes, without padding and END_STREAM, fit into
        the receive windows before a window update is due."""
        raise NotImplementedError

    def _on_data_run(self, number: int, size: int) -> Stream:
        """Subtract `size` bytes of several DATA frames from the windows. Return the stream of the
        frames."""
        raise NotImplementedError

    def _on_data_payload(
        self, stream: Stream, parts: Sequence[Buffer], size: int, *, end: bool
    ) -> None:
        """Handle `size` bytes of DATA, in `parts`. `end` means that the peer ends the stream."""
        raise NotImplementedError

    def _on_whole_data(self, number: int, payload: Buffer, *, end: bool) -> bool:
        """Handle a complete, non-empty DATA frame without padding. Return False, and do nothing, if
        the frame needs further checks."""
        raise NotImplementedError

    def _on_window_update(self, number: int, increment: int) -> None:
        """Handle a WINDOW_UPDATE. The highest bit of `increment` is reserved."""
        raise NotImplementedError

    def _on_block(self, number: int, block: bytes, *, end: bool) -> None:
        """Decode and handle a header block."""
        raise NotImplementedError

    def _on_headers(self, number: int, fields: HeaderBlock, *, end: bool) -> None:
        """Handle the fields of a header block."""
        raise NotImplementedError

    def _on_ping(self, flags: int, payload: bytes) -> None:
        raise NotImplementedError

    def _can_skip_block(self) -> bool:
        """Return whether a header block may be discarded. This is allowed if later blocks do not
        depend on it."""
        raise NotImplementedError

    def _on_skipped_block(self, number: int) -> None:
        """Handle a header block of stream `number` that was too long and was discarded."""
        raise NotImplementedError

    def _charge_budget(self, reason: str) -> None:
        """Charge the peer's budget for a frame that advances no request."""
        raise NotImplementedError

    def _on_stream_error(self, fault: Http2StreamError) -> None:
        """Reset the stream. The error may count against the peer's budget."""
        raise NotImplementedError

    # ---- splitting

    def _split(  # noqa: C901, PLR0912, PLR0915 - as in `_read_frame`
        self, data: bytes | bytearray, end: int
    ) -> None:
        """Split the first `end` bytes of `data`. Raises Http2ConnectionError."""
        if self._unparsed:
            data = self._unparsed + data[:end]
            end = len(data)
            self._unparsed = NOTHING
        position = 0
        if self._expected_preface:
            # An incomplete preface uses up all data, so the loop below does not run.
            position = self._read_preface(data[:end])
        view = memoryview(data)
        small = _MAX_COPIED if type(data) is bytes else 0
        cached_blocks, unpack = self._cached_blocks, FRAME_HEADER.unpack_from
        is_between_frames = False
        while position < end:
            # Complete frames of the usual form, such as the frames of short messages, are read
            # with the fewest steps.
            start = position + FRAME_HEADER_SIZE
            if start <= end and (
                is_between_frames
                or (self._has_received_settings and not self._payload_left and self._block is None)
            ):
                is_between_frames = True
                length_and_kind, flags, number = unpack(data, position)
                length = length_and_kind >> 8
                stop = start + length
                if stop <= end and number <= LAST_STREAM:
                    kind = length_and_kind & 0xFF
                    if kind == HEADERS:
                        if flags in _WHOLE_BLOCK_FLAGS and number and length <= self._max_headers:
                            block = data[start:stop]
                            if type(block) is not bytes:
                                block = bytes(block)
                            fields = cached_blocks.get(block)
                            try:
                                if fields is None:
                                    self._on_block(number, block, end=flags != END_HEADERS)
                                else:
                                    self.progress_count += 1
                                    self._on_headers(number, fields, end=flags != END_HEADERS)
                            except Http2StreamError as fault:
                                self._on_stream_error(fault)
                            position = stop
                            continue
                    elif kind == DATA:
                        if (
                            0 < length <= MAX_FRAME
                            and flags <= END_STREAM
                            # Frames with equal headers are read together (`_read_run`).
                            and (flags or not data.startswith(data[position:start], stop))
                            and self._on_whole_data(
                                number,
                                (data if length <= small else view)[start:stop],
                                end=flags == END_STREAM,
                            )
                        ):
                            position = stop
                            continue
                    elif kind == WINDOW_UPDATE:
                        if length == UINT32.size:
                            try:
                                self._on_window_update(number, UINT32.unpack_from(data, start)[0])
                            except Http2StreamError as fault:
                                self._on_stream_error(fault)
                            position = stop
                            continue
                    elif kind == PING and length == _PING_SIZE and not number:
                        self._on_ping(flags, bytes(data[start:stop]))
                        position = stop
                        continue
            is_between_frames = False
            if self._payload_left:
                next_position = self._continue_frame(view, position, end)
            else:
                next_position = self._read_frame(data, view, position, end)
            if next_position == position:
                self._unparsed = bytes(view[position:end])
                if position and self._block is None:
                    self.progress_count += 1
                return
            position = next_position

    def _read_preface(self, data: bytes | bytearray) -> int:
        expected = self._expected_preface
        length = min(len(data), len(expected))
        if data[:length] != expected[:length]:
            self.first_bytes = bytes(data[:_MAX_FIRST_BYTES])
            raise Http2ConnectionError("not HTTP/2")
        self._expected_preface = expected[length:]
        return length

    def _read_frame(  # noqa: C901, PLR0912 - another call would cost time for each frame
        self, data: bytes | bytearray, view: memoryview, at: int, end: int
    ) -> int:
        """Read the frame at `at`. For a DATA frame or a frame of an unknown type, read only the
        header and the padding length; `_continue_frame` reads the payload. Read a run of DATA
        frames with equal headers at once. `view` is a view of `data`. Return the position after the
        bytes that were read, or `at` if more bytes are needed."""
        payload_start = at + FRAME_HEADER_SIZE
        if payload_start > end:
            return at
        length_and_kind: int
        length_and_kind, flags, stream = FRAME_HEADER.unpack_from(data, at)
        length, kind = length_and_kind >> 8, length_and_kind & 0xFF
        stream &= LAST_STREAM
        payload_end = payload_start + length
        if kind == DATA and self._block is None:
            if not flags and data.startswith(data[at:payload_start], payload_end):
                next_position = self._read_run(data, at, end, stream, length)
                if next_position != at:
                    return next_position
            if not flags & PADDED:
                self._begin_data(stream, flags, length, 0)
                return payload_start
            if payload_start == end:
                return at
            self._begin_data(stream, flags, length, data[payload_start] + 1)
            return payload_start + 1
        self._check_frame(kind, stream, length)
        if kind > frames.CONTINUATION:
            self._charge_budget("frames of unknown types")
            self._payload_left, self._padding_left, self._data_stream = length, 0, None
            return payload_start
        if payload_end > end:
            return at
        try:
            payload = bytes(view[payload_start:payload_end])
            if kind == WINDOW_UPDATE:
                self._on_window_update(stream, UINT32.unpack(payload)[0])
            elif kind == HEADERS:
                self._begin_block(stream, flags, payload)
            elif kind == frames.CONTINUATION:
                self._continue_block(stream, flags, payload)
            else:
                self._on_frame(kind, stream, flags, payload)
        except Http2StreamError as fault:
            self._on_stream_error(fault)
        return payload_end

    def _read_run(
        self, data: bytes | bytearray, at: int, end: int, number: int, length: int
    ) -> int:
        """Read consecutive DATA frames with equal headers in one step. Return the position after
        them, or `at` if fewer than two such frames have arrived within the receive windows."""
        frame_size = FRAME_HEADER_SIZE + length
        if not 0 < length <= MAX_FRAME:
            return at
        max_frames = min((end - at) // frame_size, self._countable_frames(number, length))
        head, next_position = data[at : at + FRAME_HEADER_SIZE], at
        limit = at + max_frames * frame_size
        while next_position < limit and data.startswith(head, next_position):
            next_position += frame_size
        if next_position <= at + frame_size:
            return at
        view = memoryview(data)
        parts = [
            view[start + FRAME_HEADER_SIZE : start + frame_size]
            for start in range(at, next_position, frame_size)
        ]
        size = len(parts) * length
        self._on_data_payload(self._on_data_run(number, size), parts, size, end=False)
        return next_position

    def _check_frame(self, kind: int, stream: int, length: int) -> None:
        """Check the length, stream and order of a frame before its payload arrives."""
        if length > MAX_FRAME:
            raise Http2ConnectionError("a frame is too long", Code.FRAME_SIZE_ERROR)
        if not self._has_received_settings and kind != SETTINGS:
            raise Http2ConnectionError("the first frame is not SETTINGS")
        if self._block is not None and (
            kind != frames.CONTINUATION or stream != self._block_stream
        ):
            raise Http2ConnectionError("a header block was interrupted")
        if kind > frames.CONTINUATION:
            return
        min_length, max_length, on_stream = _FRAME_RULES[kind]
        if kind in _BLOCK_KINDS and length > self._max_block:
            raise Http2ConnectionError("a header block is too long", Code.ENHANCE_YOUR_CALM)
        if not min_length <= length <= max_length:
            reason = "the frame's size is wrong for its type"
            raise Http2ConnectionError(reason, Code.FRAME_SIZE_ERROR)
        if on_stream is not None and on_stream != (stream != 0):
            raise Http2ConnectionError("the frame's stream is wrong for its type")

    def _data_target(self, number: int, flags: int, length: int, padding: int) -> Stream | None:
        """Return the stream of a DATA frame, or None to discard it. `padding` includes the padding
        length byte."""
        if length > MAX_FRAME:
            raise Http2ConnectionError("a frame is too long", Code.FRAME_SIZE_ERROR)
        if not self._has_received_settings:
            raise Http2ConnectionError("the first frame is not SETTINGS")
        if not number or padding > length:
            raise Http2ConnectionError(
                "a DATA frame is on stream 0, or its padding exceeds its length"
            )
        try:
            return self._on_data(number, flags, length, length - padding)
        except Http2StreamError as fault:
            self._on_stream_error(fault)
            return None

    def _begin_data(self, number: int, flags: int, length: int, padding: int) -> None:
        """Process the start of a DATA frame whose padding length has been read."""
        stream = self._data_target(number, flags, length, padding)
        body = length - padding
        self._payload_left = length - 1 if padding else length
        self._padding_left = padding - 1 if padding else 0
        self._data_stream = None
        self._ends_stream = bool(flags & END_STREAM)
        if stream is None:
            return
        if body:
            self._data_stream = stream
            return
        if not self._ends_stream:
            self._charge_budget("empty DATA")
        self._on_data_payload(stream, (), 0, end=self._ends_stream)

    def _continue_frame(self, view: memoryview, at: int, end: int) -> int:
        """Pass on the available bytes of an unfinished DATA frame. Discard the bytes of other
        frames, and of DATA frames without a stream."""
        body = self._payload_left - self._padding_left
        target = self._data_stream
        if target is None or not target.remote_open:
            stop = min(end, at + self._payload_left)
            self._payload_left -= stop - at
            if not self._payload_left:
                self._padding_left = 0
            return stop
        stop = min(end, at + body)
        self._payload_left -= stop - at
        is_last = stop - at == body
        if is_last:
            self._data_stream = None
        self._on_data_payload(
            target, (view[at:stop],), stop - at, end=is_last and self._ends_stream
        )
        return stop

    # ---- header blocks

    def _begin_block(self, number: int, flags: int, payload: bytes) -> None:
        begin, end = 0, len(payload)
        if flags & PADDED:
            begin = 1
            end -= payload[0] if payload else 1
        if flags & frames.WITH_PRIORITY:  # deprecated and ignored (RFC 9113, 5.3)
            begin += PRIORITY_SIZE
        if begin > end:
            raise Http2ConnectionError("HEADERS shorter than their padding")
        if begin or end < len(payload):
            payload = payload[begin:end]
        if flags & END_HEADERS:
            self._on_block(number, payload, end=bool(flags & END_STREAM))
            return
        self._block = bytearray(payload)
        self._block_stream, self._block_flags, self._continuations = number, flags, 0

    def _continue_block(self, number: int, flags: int, payload: bytes) -> None:
        block = self._block
        if block is None:
            raise Http2ConnectionError("CONTINUATION without HEADERS")
        self._continuations += 1
        if (
            self._is_skipping
            or self._continuations > limits.MAX_CONTINUATIONS
            or len(block) + len(payload) > self._max_block
        ):
            if not self._can_skip_block():
                raise Http2ConnectionError("a header block is too long", Code.ENHANCE_YOUR_CALM)
            self._is_skipping = True
            self._charge_budget("header blocks that are too long")
        else:
            block += payload
        if flags & END_HEADERS:
            self._block = None
            if self._is_skipping:
                self._is_skipping = False
                self._on_skipped_block(number)
                return
            end = bool(self._block_flags & END_STREAM)
            self._on_block(number, bytes(block), end=end)


_WHOLE_BLOCK_FLAGS: Final = frozenset({END_HEADERS, END_HEADERS | END_STREAM})
"""Flags of HEADERS frames that hold a complete header block without padding or priority."""
_ANY_LENGTH: Final = frames.LARGEST_FRAME_SIZE
_BLOCK_KINDS: Final = frozenset({HEADERS, frames.CONTINUATION})
_FRAME_RULES: Final[Sequence[tuple[int, int, bool | None]]] = (
    (0, _ANY_LENGTH, True),  # DATA
    (0, _ANY_LENGTH, True),  # HEADERS
    (0, 64, True),  # PRIORITY: a wrong size is a stream error
    (4, 4, True),  # RST_STREAM
    (0, limits.MAX_SETTINGS * frames.SETTING.size, False),
    (0, _ANY_LENGTH, True),  # PUSH_PROMISE
    (8, 8, False),  # PING
    (8, limits.MAX_GOAWAY, False),
    (4, 4, None),  # WINDOW_UPDATE
    (0, _ANY_LENGTH, True),  # CONTINUATION
)
"""For each frame type, by its number: the minimum length, the maximum length, and where the frame
may occur: on a stream (True), on the connection (False), or on both (None)."""
