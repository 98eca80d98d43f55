"""Cuts the bytes of an HTTP/2 peer into frames (RFC 9113, 4 and 6.10).

*Strategy.* No frame but those of a header block and the few bytes of small ones is ever held: DATA
is handed on as views of what came, what nobody knows is thrown away as it comes.

*Rule.* A length is judged when it is announced, before its bytes are here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from infergate.core.tensor import Buffer
from infergate.transport.h2 import bounds, frames
from infergate.transport.h2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEAD_SIZE,
    HEADERS,
    PADDED,
    SETTINGS,
    Code,
    ConnectionFault,
    StreamFault,
)
from infergate.transport.h2.stream import Stream

NOTHING: Final = b""
PRIORITY_FIELDS: Final = 5
_BEGUN: Final = 16
"""Bytes that are kept of what is not HTTP/2."""


class Reader:
    """See the module. What frames mean is the matter of those derived from it."""

    preface: bytes
    """What the peer's bytes begin with."""

    def __init__(self, most_block: int) -> None:
        """``most_block``: the most bytes of a header block."""
        self._most_block = most_block
        self._rest = NOTHING
        self.advances = 0
        """Grows whenever a header block has come, or another frame is held than before."""
        self._expected_preface = self.preface
        self.begun = b""
        """How the peer began, if that was not HTTP/2."""
        self._is_greeted = False  # by SETTINGS
        self._left = 0  # bytes to come of a DATA frame, or of one that is thrown away
        self._padding = 0  # at their end
        self._target: Stream | None = None
        self._ends = False
        self._block: bytearray | None = None  # a header block that is not complete
        self._block_stream = 0
        self._block_flags = 0
        self._continuations = 0
        self._is_skipping = False  # the rest of a header block that is too long

    # ---- what those derived from it say

    def _on_frame(self, kind: int, stream: int, flags: int, payload: bytes) -> None:
        """Any frame but DATA and those of header blocks. Raises ConnectionFault, StreamFault."""
        raise NotImplementedError

    def _on_data(self, number: int, flags: int, length: int, body: int) -> Stream | None:
        """DATA of ``length`` bytes begins, of which ``body`` are no padding; whose it is, None if
        nobody's. Raises ConnectionFault, StreamFault."""
        raise NotImplementedError

    def _counts(self, number: int, length: int) -> int:
        """How many frames of DATA of ``length`` bytes, which is not 0, with no padding and no end,
        ``_on_data`` would do nothing about but count them."""
        raise NotImplementedError

    def _on_run(self, number: int, size: int) -> Stream:
        """So many came, of ``size`` bytes together; whose they are."""
        raise NotImplementedError

    def _payload(self, stream: Stream, parts: Sequence[Buffer], size: int, *, end: bool) -> None:
        """Some of that, or the end of it."""
        raise NotImplementedError

    def _on_block(self, number: int, block: bytes, *, end: bool) -> None:
        """A header block is complete. Raises ConnectionFault, StreamFault."""
        raise NotImplementedError

    def _may_skip(self) -> bool:
        """Whether a header block may be left unread: it has no effect on others."""
        raise NotImplementedError

    def _on_skipped(self, number: int) -> None:
        """A header block on ``number`` was too long. Raises ConnectionFault, StreamFault."""
        raise NotImplementedError

    def _charge(self, what: str) -> None:
        """Something came that serves nobody. Raises ConnectionFault when it is too much."""
        raise NotImplementedError

    def _broken(self, fault: StreamFault) -> None:
        """The peer broke a rule of a stream. Raises ConnectionFault when it is too much."""
        raise NotImplementedError

    # ---- cutting

    def _read(self, data: bytes) -> None:
        """Raises ConnectionFault."""
        if self._rest:
            data = self._rest + data
            self._rest = NOTHING
        at, end = 0, len(data)
        if self._expected_preface:
            at = self._read_preface(data)  # no frame before it is complete: _rest is empty then
        view = memoryview(data)
        while at < end:
            if self._left:
                after = self._read_on(view, at, end)
            else:
                after = self._read_frame(data, view, at, end)
            if after == at:
                self._rest = data[at:]
                if at and self._block is None:
                    self.advances += 1
                return
            at = after

    def _read_preface(self, data: bytes) -> int:
        expected = self._expected_preface
        known = min(len(data), len(expected))
        if data[:known] != expected[:known]:
            self.begun = bytes(data[:_BEGUN])
            raise ConnectionFault(Code.PROTOCOL_ERROR, "this is not HTTP/2")
        self._expected_preface = expected[known:]
        return known

    def _read_frame(  # noqa: C901 - a call more would be one more a frame
        self, data: bytes, view: memoryview, at: int, end: int
    ) -> int:
        """The frame at ``at``, of DATA that is not here whole just its head; where it ends, or
        ``at`` if that is not here yet. ``view`` is of ``data``. Raises ConnectionFault."""
        begin = at + HEAD_SIZE
        if begin > end:
            return at
        first: int
        first, flags, stream = HEAD.unpack_from(data, at)
        length, kind = first >> 8, first & 0xFF
        stream &= frames.LAST_STREAM
        stop = begin + length
        if kind == DATA and self._block is None:
            if not flags and data.startswith(data[at:begin], stop):
                after = self._read_run(data, at, end, stream, length)
                if after != at:
                    return after
            if not flags & PADDED:
                if 0 < length <= end - begin:
                    self._read_data(stream, flags, view[begin:stop])
                    return stop
                self._begin_data(stream, flags, length, 0)
                return begin
            if begin == end:
                return at
            self._begin_data(stream, flags, length, data[begin] + 1)
            return begin + 1
        self._check(kind, stream, length)
        if kind > frames.CONTINUATION:
            self._charge("frames of unknown kinds")
            self._left, self._padding, self._target = length, 0, None
            return begin
        if stop > end:
            return at
        try:
            if kind == HEADERS and flags in _PLAIN:
                self._on_block(stream, data[begin:stop], end=flags & END_STREAM != 0)
            else:
                self._read_whole(kind, stream, flags, data[begin:stop])
        except StreamFault as fault:
            self._broken(fault)
        return stop

    def _read_run(self, data: bytes, at: int, end: int, number: int, length: int) -> int:
        """Frames of DATA whose heads are all the one at ``at``, if they are here whole and need
        nothing but to be counted; where they end, or ``at`` if there are less than two."""
        step = HEAD_SIZE + length
        if not 0 < length <= bounds.FRAME:
            return at
        most = min((end - at) // step, self._counts(number, length))
        head, after, stop = data[at : at + HEAD_SIZE], at, at + most * step
        while after < stop and data.startswith(head, after):
            after += step
        if after <= at + step:
            return at
        view = memoryview(data)
        parts = [view[each + HEAD_SIZE : each + step] for each in range(at, after, step)]
        size = len(parts) * length
        self._payload(self._on_run(number, size), parts, size, end=False)
        return after

    def _read_whole(self, kind: int, stream: int, flags: int, payload: bytes) -> None:
        if kind == HEADERS:
            self._begin_block(stream, flags, payload)
        elif kind == frames.CONTINUATION:
            self._continue_block(stream, flags, payload)
        else:
            self._on_frame(kind, stream, flags, payload)

    def _check(self, kind: int, stream: int, length: int) -> None:
        """Rule 1, and the order of frames. Raises ConnectionFault."""
        if length > bounds.FRAME:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "a frame is too long")
        if not self._is_greeted and kind != SETTINGS:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if self._block is not None and (
            kind != frames.CONTINUATION or stream != self._block_stream
        ):
            raise ConnectionFault(Code.PROTOCOL_ERROR, "a header block is interrupted")
        if kind > frames.CONTINUATION:
            return
        least, most, on_stream = _SHAPES[kind]
        if kind in _BLOCK_KINDS and length > self._most_block:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "a header block is too long")
        if not least <= length <= most:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "a frame has not its kind's size")
        if on_stream is not None and on_stream != (stream != 0):
            raise ConnectionFault(Code.PROTOCOL_ERROR, "a frame is not on its kind's stream")

    def _whose(self, number: int, flags: int, length: int, padding: int) -> Stream | None:
        """Whose the DATA is that begins, if anybody wants it. ``padding`` includes the byte that
        tells of it. Raises ConnectionFault."""
        if length > bounds.FRAME:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "a frame is too long")
        if not self._is_greeted:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if not number or padding > length:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "DATA on no stream, or all padding")
        try:
            return self._on_data(number, flags, length, length - padding)
        except StreamFault as fault:
            self._broken(fault)
            return None

    def _read_data(self, number: int, flags: int, payload: memoryview) -> None:
        """All of a frame's DATA, which is not empty and has no padding. Raises ConnectionFault."""
        length = len(payload)
        stream = self._whose(number, flags, length, 0)
        if stream is not None:
            self._payload(stream, (payload,), length, end=flags & END_STREAM != 0)

    def _begin_data(self, number: int, flags: int, length: int, padding: int) -> None:
        """As ``_whose``; the byte that tells of padding was read. Raises ConnectionFault."""
        stream = self._whose(number, flags, length, padding)
        body = length - padding
        self._left = length - 1 if padding else length
        self._padding = padding - 1 if padding else 0
        self._target = None
        self._ends = bool(flags & END_STREAM)
        if stream is None:
            return
        if body:
            self._target = stream
            return
        if not self._ends:
            self._charge("empty DATA")
        self._payload(stream, (), 0, end=self._ends)

    def _read_on(self, view: memoryview, at: int, end: int) -> int:
        """Inside a frame that is not held: hand on or throw away what is here of it."""
        body = self._left - self._padding
        target = self._target
        if target is None or not target.remote_open:
            stop = min(end, at + self._left)
            self._left -= stop - at
            if not self._left:
                self._padding = 0
            return stop
        stop = min(end, at + body)
        self._left -= stop - at
        last = stop - at == body
        if last:
            self._target = None
        self._payload(target, (view[at:stop],), stop - at, end=last and self._ends)
        return stop

    # ---- header blocks

    def _begin_block(self, number: int, flags: int, payload: bytes) -> None:
        begin, end = 0, len(payload)
        if flags & PADDED:
            begin = 1
            end -= payload[0] if payload else 1
        if flags & frames.WITH_PRIORITY:  # which nobody heeds any more (RFC 9113, 5.3)
            begin += PRIORITY_FIELDS
        if begin > end:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "HEADERS are shorter than their padding")
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
            raise ConnectionFault(Code.PROTOCOL_ERROR, "CONTINUATION of nothing")
        self._continuations += 1
        if (
            self._is_skipping
            or self._continuations > bounds.CONTINUATIONS
            or len(block) + len(payload) > self._most_block
        ):
            if not self._may_skip():
                raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "a header block is too long")
            self._is_skipping = True
            self._charge("header blocks that are too long")
        else:
            block += payload
        if flags & END_HEADERS:
            self._block = None
            if self._is_skipping:
                self._is_skipping = False
                self._on_skipped(number)
                return
            end = bool(self._block_flags & END_STREAM)
            self._on_block(number, bytes(block), end=end)


_PLAIN: Final = frozenset({END_HEADERS, END_HEADERS | END_STREAM})
"""Flags of HEADERS that are a whole header block and nothing else."""
_ANY: Final = frames.LARGEST_FRAME
_BLOCK_KINDS: Final = frozenset({HEADERS, frames.CONTINUATION})
_SHAPES: Final[Sequence[tuple[int, int, bool | None]]] = (
    (0, _ANY, True),  # DATA
    (0, _ANY, True),  # HEADERS
    (0, 64, True),  # PRIORITY: its size is a matter of the stream
    (4, 4, True),  # RST_STREAM
    (0, bounds.SETTINGS_ENTRIES * frames.SETTING.size, False),
    (0, _ANY, True),  # PUSH_PROMISE
    (8, 8, False),  # PING
    (8, bounds.LONGEST_GOAWAY, False),
    (4, 4, None),  # WINDOW_UPDATE
    (0, _ANY, True),  # CONTINUATION
)
"""By kind: least and most bytes; whether it is on a stream, on the connection, or (None) either."""
