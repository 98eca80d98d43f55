"""Size-prefixed frames: a little-endian uint32 with the length of the message, then the message.
This module has no I/O.

Bytes are received into a small fixed buffer, so a short frame needs only one system call. The rest
of a longer frame is received directly into its own buffer. Only ``open`` allocates that buffer,
after the caller has checked the length. The buffer is not zeroed, so it uses memory only
for bytes that have arrived.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import KIB
from infergate.core.tensor import Buffer
from infergate.core.wire import total_size
from infergate.transport.net.buffer_pool import allocate

PREFIX: Final = struct.Struct("<I")
MAX_LENGTH: Final = 2**32 - 1
MAX_READ_AHEAD: Final = 16 * KIB


def encode_prefix(body: Sequence[Buffer]) -> bytes:
    """Return the length prefix of ``body``. Raises TOO_LARGE."""
    length = total_size(body)
    if length > MAX_LENGTH:
        public = f"a message of {length} bytes exceeds the frame limit of {MAX_LENGTH}"
        raise GatewayError(Kind.TOO_LARGE, public)
    return PREFIX.pack(length)


class FrameReader:
    """Splits received bytes into frames. Between frames, ``announced_length`` is the length of the
    next frame, which the caller must ``open`` or ``skip``. ``take`` returns the open frame when it
    is complete."""

    def __init__(self) -> None:
        self._read_ahead = memoryview(bytearray(MAX_READ_AHEAD))
        self._start = self._end = 0
        self._body: memoryview | None = None  # one byte longer than an incomplete frame
        self._length = 0
        self.received = 0  # received bytes of the open frame

    def get_buffer(self) -> memoryview:
        """Return the buffer for the next bytes. The buffer is empty if ``is_full``."""
        if self._body is not None:
            return self._body[self.received :]
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == MAX_READ_AHEAD:
            held = self._end - self._start
            self._read_ahead[:held] = self._read_ahead[self._start : self._end]
            self._start, self._end = 0, held
        return self._read_ahead[self._end :]

    def buffer_written(self, count: int) -> None:
        """Accept ``count`` bytes that were written to the buffer."""
        if self._body is not None:
            self.received += count
        else:
            self._end += count

    @property
    def missing(self) -> int:
        """The number of bytes of the open frame that have not arrived."""
        return self._length - self.received

    @property
    def has_partial_frame(self) -> bool:
        """Whether there are received bytes that do not belong to an open frame."""
        return self._end > self._start

    @property
    def is_full(self) -> bool:
        """Whether no more bytes can be received until a frame is opened or skipped."""
        return self._end - self._start == MAX_READ_AHEAD

    @property
    def announced_length(self) -> int | None:
        """The length of the next frame, or None if its prefix is incomplete."""
        if self._end - self._start < PREFIX.size:
            return None
        length: int = PREFIX.unpack_from(self._read_ahead, self._start)[0]
        return length

    def peek(self, count: int) -> bytes:
        """Return up to ``count`` of the received bytes after the open frame."""
        return bytes(self._read_ahead[self._start : min(self._end, self._start + count)])

    def has_complete_frame(self, length: int) -> bool:
        """Return whether the next frame, which has ``length`` bytes, has arrived completely."""
        return self._end - self._start - PREFIX.size >= length

    def skip(self, length: int) -> None:
        """Discard the next frame, which must have arrived completely."""
        self._start += PREFIX.size + length

    def open(self, length: int) -> None:
        """Start receiving the next frame, which has ``length`` bytes."""
        start = self._start + PREFIX.size
        self._length = length
        if self.has_complete_frame(length):
            self._start = start + length
            self.received = length
            self._body = memoryview(bytes(self._read_ahead[start : self._start]))
            return
        self.received = self._end - start
        self._body = allocate(length + 1)
        self._body[: self.received] = self._read_ahead[start : self._end]
        self._start = self._end = 0

    def discard(self) -> None:
        self._body = None
        self._start = self._end = 0

    def take(self) -> memoryview | None:
        body = self._body
        if body is None or self.received < self._length:
            return None
        self._body = None
        if self.received > self._length:
            self._read_ahead[0] = body[self._length]
            self._end = 1
        return body[: self._length]
