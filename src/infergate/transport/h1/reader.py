"""Splits the bytes of a client into requests.

Bytes are received into a scratch buffer that nothing refers to afterwards. A body of known length
that has not arrived completely continues in a buffer of its own size, into which the kernel writes
directly. Only heads and chunks are parsed.

- Rule 1. Requests are taken one at a time; pipelined bytes stay unparsed.
- Rule 2. The buffer of a body is allocated when space is requested (``get_buffer``), so a request
  rejected before that has none.
- Rule 3. If requests may have both Content-Length and Transfer-Encoding, only the first request of
  a connection may, because only its start is certain. It is also the last one (RFC 9112, 6.1).
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
"""Number of bytes returned to recognize data that is not HTTP."""


class Reader:
    """Between requests, ``read_head`` returns the next head; then ``read_body`` returns its body
    when complete.

    ``received`` counts the bytes of that body that have arrived.
    """

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
        self._both = accept_both_lengths  # until the first head is complete
        self._judge: Judge | None = None  # for a head that arrives in pieces
        self._data = b""  # received bytes, taken up to _at
        self._at = 0
        self._length = 0  # of the body, if announced
        self._memory: memoryview | None = None  # buffer of the body
        self._chunks: Chunks | None = None
        self.received = 0

    # ---- receiving

    def room(self) -> memoryview:
        """Return the buffer for the next bytes; never empty."""
        if self.received >= self._length:
            return self._scratch
        memory = self._memory
        if memory is None:
            # Not zeroed, unlike a bytearray: bytes that are only announced cost nothing.
            memory = self._memory = room(self._length)
            memory[: self.received] = self._data[self._at :]
            self._data, self._at = b"", 0
        return memory[self.received :]

    def wrote(self, count: int) -> None:
        """Accept ``count`` bytes that were written to the buffer."""
        if self._memory is not None:
            self.received += count
            return
        data = bytes(self._scratch[:count])
        pending = self._data
        self._data = pending[self._at :] + data if pending else data
        self._at = 0

    @property
    def missing(self) -> int:
        """Missing bytes of the body; 0 if its length is unknown."""
        return self._length - self.received if self._chunks is None else 0

    @property
    def waiting(self) -> int:
        """Number of received bytes that have not been taken."""
        return len(self._data) - self._at

    def drop(self) -> None:
        """Discard everything received."""
        self._data, self._at = b"", 0
        self._memory = self._chunks = None
        self._length = self.received = 0

    @property
    def begun(self) -> bytes:
        """The first untaken bytes."""
        return self._data[self._at : self._at + _BEGUN]

    # ---- taking

    def head(self) -> Head | None:
        """Return the next request's head, or None if it is incomplete. Raises HeadError."""
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
        """Reject an incomplete head as soon as it cannot become valid."""
        if not begun:
            return
        check_size(begun, self._limits)
        if not self._both:
            judge = self._judge = self._judge or Judge()
            if not judge.allows(begun):
                raise http_head.not_http()

    def body(self) -> Buffer | None:
        """Return the whole decoded body, or None if it is incomplete.

        Raises HeadError for a malformed body, and TOO_LARGE as soon as its size is known to exceed
        the limit.
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
        """Mark bytes as taken up to ``at``; keep none if all are, because connections are mostly
        idle."""
        if at == len(self._data):
            self._data, at = b"", 0
        self._at = at
