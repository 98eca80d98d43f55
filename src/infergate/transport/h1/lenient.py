"""Answers of a backend that are not plain, read by ``httptools`` (llhttp) as leniently as aiohttp's
client reads them.

*Rule.* What no limit of ours counts is bounded here: heads, and what is neither head nor body.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import httptools

from infergate.core.limits import MIB
from infergate.core.wire import NO_HEADERS
from infergate.transport import http_head
from infergate.transport.h1.head import Found

_MOST_LINES: Final = 256
_LONGEST_REST: Final = MIB
"""A head that has no end yet, or the sizes and trailers of chunks, in one go."""


class LenientReader:
    """An :class:`~infergate.transport.http_exchange.AnswerReader`."""

    __slots__ = (
        "_ends_with_it",
        "_found",
        "_has_body",
        "_idle",
        "_longest",
        "_parser",
        "_parts",
        "headers",
        "keep",
        "status",
        "whole",
    )

    def __init__(self, method: str, longest: int) -> None:
        """``longest``: bytes of a header line's value."""
        self._longest: Final = longest
        self._has_body = method != "HEAD"
        self._found: Found | None = Found()  # until the head is here
        self._idle = 0  # bytes since the last that were of use
        self._ends_with_it = False  # the body ends with the connection
        self._parts: list[bytes] = []
        self.status = 0
        self.headers: Mapping[str, str] = NO_HEADERS
        self.whole = self.keep = False
        parser = httptools.HttpResponseParser(self)
        self._parser: httptools.HttpResponseParser | None = parser
        parser.set_dangerous_leniencies(
            lenient_headers=True,
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
        )

    def feed(self, data: bytes) -> None:
        """``data`` came. Raises ValueError where that is no HTTP."""
        # The parser would take what came behind a head for the body that it announces.
        for piece in (data,) if self._has_body else data.splitlines(keepends=True):
            if self._parser is None:
                self.keep = False
                return
            self._feed(self._parser, piece)

    def _feed(self, parser: httptools.HttpResponseParser, data: bytes) -> None:
        self._idle += len(data)
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._parser = None
            self.keep = False
            if not self.whole:
                raise ValueError(str(error.__context__ or error)) from error
        if self.whole:
            self._parser = None  # they know each other
        elif self._idle > _LONGEST_REST:
            self._parser = None
            raise ValueError("a head or a trailer without end")

    def end(self) -> None:
        """Nothing more will come. Raises ValueError where something is missing."""
        self._parser = None
        self.keep = False
        if not self.whole and not self._ends_with_it:
            raise ValueError("the body is not whole")
        self.whole = True

    def take(self) -> bytes:
        """What came of the body since."""
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    # ---- what the parser tells

    def on_message_begin(self) -> None:
        """An answer begins."""
        if self.status:
            self.keep = False  # a second one

    def on_header(self, name: bytes, value: bytes) -> None:
        """A line of a head, or of a trailer, which is dropped."""
        found = self._found
        if found is None:
            return
        if max(len(name), len(value)) > self._longest or found.lines == _MOST_LINES:
            raise ValueError("the head is too large")
        if b"\0" in value:
            raise ValueError("a header holds a zero")
        found.on_header(name.rstrip(b" "), value)  # the parser knows it with blanks behind it, too

    def on_headers_complete(self) -> None:
        """A head is here."""
        found, parser = self._found, self._parser
        if found is None or parser is None:
            return
        status = parser.get_status_code()
        if status < 200:
            self._found = Found()
            if status == http_head.SWITCHING_PROTOCOLS:
                raise ValueError("the backend changes to what nobody asked for")
            return
        self._idle = 0
        self._found = None
        self.headers = headers = found.headers
        self.status = status
        self.keep = parser.should_keep_alive()
        if not self._has_body:
            self.whole = True
            return
        coding = headers.get("transfer-encoding", "").rpartition(",")[2].strip().lower()
        self._ends_with_it = coding != "chunked" and "content-length" not in headers

    def on_body(self, data: bytes) -> None:
        """A piece of a body."""
        if self.whole:
            return  # of a second one
        if not self.status:
            raise ValueError("an answer of 1xx has a body")
        self._idle = 0
        self._parts.append(data)

    def on_message_complete(self) -> None:
        """It is whole."""
        if self.status:
            self.whole = True
