"""Strict decoding of the chunked transfer coding (RFC 9112, 7.1). Lines must end with CRLF.
Extensions and trailers are discarded; their size is limited."""

from __future__ import annotations

import re
from typing import Final

from infergate.core.limits import Limits
from infergate.transport.http1 import message_head

_EXTENSION: Final = rb"(?:;[\t\x20-\x7e\x80-\xff]{0,255})?"
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})" + _EXTENSION + rb"\r\n")
_PARTIAL_SIZE = re.compile(rb"(?:[0-9A-Fa-f]{1,16}(?:" + _EXTENSION + rb"\r?)?)?")
_MAX_SIZE_LINE: Final = 16 + 1 + 255 + 2
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r\n")
_CRLF: Final = b"\r\n"


class ChunkedBody:
    """A body in chunked coding. ``body`` is the part that has been decoded."""

    def __init__(self, limits: Limits) -> None:
        self.body = bytearray()
        self.is_complete = False
        self._limits = limits
        self._missing = 0  # bytes of the current chunk that have not arrived
        self._expects_crlf = False  # whether a CRLF must follow the current chunk
        self._in_trailers = False  # whether the last chunk has arrived
        self._trailers = 0

    def feed(self, data: bytes, at: int) -> int:
        """Decode ``data``, starting at ``at``. Return the position after the last byte that was
        used. Raises HeadError for malformed chunks or trailers, and TOO_LARGE as soon as the chunk
        sizes exceed the limit."""
        with memoryview(data) as view:
            while not self._in_trailers:
                if self._missing:
                    piece = view[at : at + self._missing]
                    self.body += piece
                    at += len(piece)
                    self._missing -= len(piece)
                    if self._missing:
                        return at
                if self._expects_crlf:
                    ending = data[at : at + 2]
                    if ending != _CRLF:
                        if not _CRLF.startswith(ending):
                            raise _malformed()
                        return at
                    at += 2
                    self._expects_crlf = False
                size = _SIZE.match(data, at)
                if size is None:
                    rest = data[at : at + _MAX_SIZE_LINE]
                    if _PARTIAL_SIZE.fullmatch(rest) is None:
                        raise _malformed()
                    return at
                at = size.end()
                self._start_chunk(int(size[1], 16))
        return self._take_trailers(data, at)

    def _start_chunk(self, size: int) -> None:
        if not size:
            self._in_trailers = True
            return
        total = len(self.body) + size
        if total > self._limits.body:
            raise message_head.body_too_large(total, self._limits)
        self._missing = size
        self._expects_crlf = True

    def _take_trailers(self, data: bytes, at: int) -> int:
        limits = self._limits
        while True:
            if data.startswith(_CRLF, at):
                self.is_complete = True
                return at + 2
            end = data.find(b"\n", at) + 1
            if not end:
                if len(data) - at > limits.headers:
                    raise _malformed()
                return at
            self._trailers += 1
            if (
                self._trailers > limits.header_count
                or end - at > limits.headers
                or _TRAILER.fullmatch(data, at, end) is None
            ):
                raise _malformed()
            at = end


def _malformed() -> message_head.HeadError:
    return message_head.HeadError(400, "the body is not valid HTTP/1.1")
