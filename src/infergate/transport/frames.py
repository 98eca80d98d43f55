"""Size-prefixed frames: a uint32, little-endian, that says how many bytes follow, and those bytes.

Flatbuffers calls such a message size-prefixed. Pure: no sockets, no clock.

*Strategy.* Bytes are received ahead into a small room that is always the same, so that a short
frame takes one system call; a longer one goes on into memory of its own size, where the kernel puts
its bytes.

*Rule 1.* No more is allocated than was announced and asked for by ``open``: what a frame may have
is decided before. It is not filled (``bytearray`` would be, with zeros): announcing costs nothing.
*Rule 2.* Not more than ``AHEAD`` bytes are held of what comes after a frame.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import KIB
from infergate.core.tensor import Buffer
from infergate.core.wire import size
from infergate.transport.rooms import room

PREFIX: Final = struct.Struct("<I")
LONGEST: Final = 2**32 - 1
AHEAD: Final = 16 * KIB


def prefix(body: Sequence[Buffer]) -> bytes:
    """What announces ``body``. Raises TOO_LARGE."""
    length = size(body)
    if length > LONGEST:
        raise GatewayError(
            Kind.TOO_LARGE, f"a message of {length} bytes fits no frame, which has {LONGEST}"
        )
    return PREFIX.pack(length)


class Frames:
    """Cuts frames out of what is received. Between frames ``announced`` says what comes; ``open``
    or ``skip`` deal with it; ``take`` gives what was opened, when it is complete."""

    __slots__ = ("_ahead", "_body", "_end", "_length", "_start", "received")

    def __init__(self) -> None:
        self._ahead = memoryview(bytearray(AHEAD))
        self._start = self._end = 0
        self._body: memoryview | None = None  # of one byte more, which is the next frame's
        self._length = 0
        self.received = 0
        """Bytes of the frame that is open."""

    def room(self) -> memoryview:
        """Where the next bytes go; empty where ``is_full``."""
        if self._body is not None:
            return self._body[self.received :]
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == AHEAD:
            held = self._end - self._start
            self._ahead[:held] = self._ahead[self._start : self._end]
            self._start, self._end = 0, held
        return self._ahead[self._end :]

    def wrote(self, count: int) -> None:
        """``count`` bytes are in the room."""
        if self._body is not None:
            self.received += count
        else:
            self._end += count

    @property
    def missing(self) -> int:
        """Bytes of it that have not come."""
        return self._length - self.received

    @property
    def has_begun(self) -> bool:
        """Whether something is here that was not opened."""
        return self._end > self._start

    @property
    def is_full(self) -> bool:
        """Whether nothing more can be received ahead."""
        return self._end - self._start == AHEAD

    @property
    def announced(self) -> int | None:
        """The length of the next frame; None where that is not told yet."""
        if self._end - self._start < PREFIX.size:
            return None
        length: int = PREFIX.unpack_from(self._ahead, self._start)[0]
        return length

    def begun(self, count: int) -> bytes:
        """Up to ``count`` bytes of what was received and not opened."""
        return bytes(self._ahead[self._start : min(self._end, self._start + count)])

    def holds(self, length: int) -> bool:
        """Whether the next frame, of ``length`` bytes, is here already."""
        return self._end - self._start - PREFIX.size >= length

    def skip(self, length: int) -> None:
        """Throw away the next frame, which is here."""
        self._start += PREFIX.size + length

    def open(self, length: int) -> None:
        """Begin to receive the next frame, of ``length`` bytes."""
        begin = self._start + PREFIX.size
        self._length = length
        if self.holds(length):
            self._start = begin + length
            self.received = length
            self._body = memoryview(bytes(self._ahead[begin : self._start]))
            return
        self.received = self._end - begin
        self._body = room(length + 1)
        self._body[: self.received] = self._ahead[begin : self._end]
        self._start = self._end = 0

    def drop(self) -> None:
        """Throw away all that is here, so that there is room again."""
        self._body = None
        self._start = self._end = 0

    def take(self) -> memoryview | None:
        """The frame that is open; None as long as some of it is missing."""
        body = self._body
        if body is None or self.received < self._length:
            return None
        self._body = None
        if self.received > self._length:
            self._ahead[0] = body[self._length]
            self._end = 1
        return body[: self._length]
