"""Cuts requests out of what a client sends.

*Strategy.* Bytes are received into a scratch of the caller's, which nothing refers to afterwards.
A body whose length is told and of which some is missing goes on into memory of its own size, where
the kernel puts its bytes. Nothing is parsed but heads and chunks.

*Rule 1.* Requests are taken one by one: what is pipelined behind one waits as it came.
*Rule 2.* Memory for a body is had when its bytes are asked for (``room``): whoever refuses it
before that has none.
*Rule 3.* Where a request may have both lengths, only a connection's first may: it is certain where
that one begins. It is the last one too, as RFC 9112, 6.1 wants.
"""

from __future__ import annotations

from typing import Final

from infergate.core.limits import Limits
from infergate.core.tensor import Buffer
from infergate.transport import http_head
from infergate.transport.h1.chunks import Chunks
from infergate.transport.h1.head import Head, Heads, Judge, check_size
from infergate.transport.rooms import room

_EMPTY_LINE = b"\r\n\r\n"
_BEGUN: Final = 16
"""Bytes by which it is told what is not HTTP."""


class Reader:
    """Between requests ``head`` gives the next one's head; then ``body`` what follows it, when it
    is complete. ``received`` counts the bytes of that body that have come."""

    __slots__ = (
        "_at",
        "_both",
        "_chunks",
        "_data",
        "_heads",
        "_judge",
        "_length",
        "_limits",
        "_memory",
        "_scratch",
        "received",
    )

    def __init__(
        self, scratch: memoryview, limits: Limits, *, accept_both_lengths: bool = False
    ) -> None:
        self._scratch = scratch
        self._limits = limits
        self._heads = Heads(limits)
        self._both = accept_both_lengths  # until the first head is there
        self._judge: Judge | None = None  # of a head that comes in pieces
        self._data = b""  # what was received and not taken, from _at on
        self._at = 0
        self._length = 0  # of the body, where that was told
        self._memory: memoryview | None = None  # for it
        self._chunks: Chunks | None = None
        self.received = 0

    # ---- receiving

    def room(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self.received >= self._length:
            return self._scratch
        memory = self._memory
        if memory is None:
            # Not filled (bytearray would be, with zeros): what was only announced costs nothing.
            memory = self._memory = room(self._length)
            memory[: self.received] = self._data[self._at :]
            self._data, self._at = b"", 0
        return memory[self.received :]

    def wrote(self, count: int) -> None:
        """``count`` bytes are in the room."""
        if self._memory is not None:
            self.received += count
            return
        data = bytes(self._scratch[:count])
        left = self._data
        self._data = left[self._at :] + data if left else data
        self._at = 0

    @property
    def missing(self) -> int:
        """Bytes of the body that have not come; 0 where its length was not told."""
        return self._length - self.received if self._chunks is None else 0

    @property
    def waiting(self) -> int:
        """Bytes that are here and were not taken."""
        return len(self._data) - self._at

    def drop(self) -> None:
        """Throw away all that is here: no more of it is wanted."""
        self._data, self._at = b"", 0
        self._memory = self._chunks = None
        self._length = self.received = 0

    @property
    def begun(self) -> bytes:
        """How what waits begins."""
        return self._data[self._at : self._at + _BEGUN]

    # ---- taking

    def head(self) -> Head | None:
        """The next request's; None where some of it is missing. Raises HeadError."""
        data, at = self._data, self._at
        if data[at : at + 1] in {b"\r", b"\n"}:  # RFC 9112, 2.2
            self._at = at = len(data) - len(data[at:].lstrip(b"\r\n"))
            self._both = False
        end = data.find(_EMPTY_LINE, at) + 4
        if end < 4:
            self._check_begun(data[at:])
            return None
        raw = data[at:end]
        if self._both:
            self._both = False
            raw = http_head.chunked_alone(raw)
        head = self._heads.read(raw)
        self._at = end
        self._judge = None
        if head.chunked:
            self._chunks = Chunks(self._limits)
            self._length = self.received = 0
        else:
            self._length = head.length
            self.received = min(head.length, len(data) - end)
        return head

    def _check_begun(self, begun: bytes) -> None:
        """Of a head that is not complete. What can be none is refused before it is."""
        if not begun:
            return
        check_size(begun, self._limits)
        if not self._both:
            judge = self._judge = self._judge or Judge()
            if not judge.allows(begun):
                raise http_head.not_http()

    def body(self) -> Buffer | None:
        """All of the body, without its coding; None where some is missing.

        Raises HeadError where it is none, TOO_LARGE where it is, as soon as that is told.
        """
        chunks = self._chunks
        if chunks is not None:
            self._took(chunks.take(self._data, self._at))
            self.received = len(chunks.body)
            if not chunks.whole:
                return None
            self._chunks = None
            return chunks.body
        length = self._length
        if self.received < length:
            return None
        self._length = 0
        memory = self._memory
        if memory is not None:
            self._memory = None
            return memory
        data, at = self._data, self._at
        self._took(at + length)
        return data[at : at + length]

    def _took(self, at: int) -> None:
        """Up to ``at``. What is not needed is not kept: connections are idle most of the time."""
        if at == len(self._data):
            self._data, at = b"", 0
        self._at = at
