"""Splits the bytes from a client into requests, one at a time. Pipelined bytes stay unparsed.

Bytes are received into a shared scratch buffer. The rest of an incomplete body of known length is
received into its own buffer. ``get_buffer`` allocates this buffer, so a request that is rejected
before its body is read has no buffer.

With ``accept_both_lengths``, only the first request of a connection may have both Content-Length
and Transfer-Encoding, because only the first request begins at a known position. The connection is
closed after such a request (RFC 9112, 6.1)."""

from __future__ import annotations

from typing import Final

from infergate.core.limits import Limits
from infergate.core.tensor import Buffer
from infergate.transport.http1 import message_head, request_head
from infergate.transport.http1.chunked import ChunkedBody
from infergate.transport.net.buffer_pool import allocate

_PREFIX_BYTES: Final = 16  # number of bytes by which other protocols are recognized


class RequestReader:
    """Reads the requests of a connection. ``read_head`` returns the next head, then ``read_body``
    returns the body."""

    def __init__(
        self, scratch: memoryview, limits: Limits, *, accept_both_lengths: bool = False
    ) -> None:
        self._scratch = scratch
        self._limits = limits
        self._head_parser = request_head.RequestHeadParser(limits)
        self._accepts_both_lengths = accept_both_lengths  # False after the first head
        self._head_checker: request_head.PartialHeadChecker | None = None
        self._data = b""  # received bytes, of which _at bytes have been read
        self._at = 0
        self._length = 0  # Content-Length of the body
        self._body_buffer: memoryview | None = None
        self._chunked_body: ChunkedBody | None = None
        self.received = 0

    # ---- receiving

    def get_buffer(self) -> memoryview:
        if self.received >= self._length:
            return self._scratch
        memory = self._body_buffer
        if memory is None:
            # Unlike a bytearray, this buffer is not zeroed, so a body that was announced but not
            # sent occupies no memory.
            memory = self._body_buffer = allocate(self._length)
            memory[: self.received] = self._data[self._at :]
            self._data, self._at = b"", 0
        return memory[self.received :]

    def buffer_written(self, count: int) -> None:
        if self._body_buffer is not None:
            self.received += count
            return
        data = bytes(self._scratch[:count])
        pending = self._data
        self._data = pending[self._at :] + data if pending else data
        self._at = 0

    @property
    def missing(self) -> int:
        """The number of bytes of the body that have not arrived, or 0 for a chunked body."""
        return self._length - self.received if self._chunked_body is None else 0

    @property
    def untaken_bytes(self) -> int:
        """The number of received bytes that belong to no request yet."""
        return len(self._data) - self._at

    def discard(self) -> None:
        self._data, self._at = b"", 0
        self._body_buffer = self._chunked_body = None
        self._length = self.received = 0

    @property
    def prefix(self) -> bytes:
        """The first bytes that belong to no request yet."""
        return self._data[self._at : self._at + _PREFIX_BYTES]

    # ---- taking

    def read_head(self) -> request_head.HttpRequestHead | None:
        """Return the next request's head, or None if it is incomplete. Raises HeadError."""
        data, at = self._data, self._at
        if data[at : at + 1] in {b"\r", b"\n"}:  # empty lines before a request (RFC 9112, 2.2)
            self._at = at = len(data) - len(data[at:].lstrip(b"\r\n"))
            self._accepts_both_lengths = False
        end = data.find(b"\r\n\r\n", at) + 4
        if end < 4:
            self._check_partial_head(data[at:])
            return None
        raw = data[at:end]
        if self._accepts_both_lengths:
            self._accepts_both_lengths = False
            raw = message_head.drop_content_length(raw)
        head = self._head_parser.read(raw)
        self._at = end
        self._head_checker = None
        if head.is_chunked:
            self._chunked_body = ChunkedBody(self._limits)
            self._length = self.received = 0
        else:
            self._length = head.length
            self.received = min(head.length, len(data) - end)
        return head

    def _check_partial_head(self, received: bytes) -> None:
        """Reject an incomplete head as soon as it cannot become valid."""
        if not received:
            return
        request_head.check_size(received, self._limits)
        if not self._accepts_both_lengths:
            checker = self._head_checker = self._head_checker or request_head.PartialHeadChecker()
            if not checker.allows(received):
                raise message_head.not_http()

    def read_body(self) -> Buffer | None:
        """Return the complete decoded body, or None if it is incomplete. For a chunked body, raises
        HeadError if it is malformed, and TOO_LARGE as soon as the chunk sizes exceed the limit.
        ``read_head`` has already checked Content-Length."""
        chunks = self._chunked_body
        if chunks is not None:
            self._at = chunks.feed(self._data, self._at)
            if self._at == len(self._data):  # free the data
                self._data, self._at = b"", 0
            self.received = len(chunks.body)
            if not chunks.is_complete:
                return None
            self._chunked_body = None
            return chunks.body
        length = self._length
        if self.received < length:
            return None
        self._length = 0
        memory = self._body_buffer
        if memory is not None:
            self._body_buffer = None
            return memory
        data, at = self._data, self._at
        end = at + length
        if end == len(data):
            self._data, self._at = b"", 0
        else:
            self._at = end
        return data[at:end]
