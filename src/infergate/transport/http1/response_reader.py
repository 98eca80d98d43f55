"""Parses backend responses with ``httptools`` (llhttp), as leniently as aiohttp's client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import httptools

from infergate.core.limits import MIB
from infergate.core.wire import NO_HEADERS
from infergate.transport.http1.request_head import HeadFields

_MAX_LINES: Final = 256
_MAX_OVERHEAD_BYTES: Final = MIB
"""Maximum number of consecutive bytes without progress: bytes of incomplete or 1xx heads, chunk
sizes and trailers. A complete final head or body bytes reset the count."""


class LenientReader:
    """A ``ResponseReader`` that tolerates common deviations from HTTP."""

    def __init__(self, method: str, max_field_bytes: int) -> None:
        """``max_field_bytes`` limits each header name and value."""
        self._max_field_bytes: Final = max_field_bytes
        self._has_body = method != "HEAD"
        self._fields: HeadFields | None = HeadFields()  # until the head is complete
        self._overhead_bytes = 0  # bytes since the end of the head or the last body bytes
        self._ends_with_connection = False  # the body ends when the connection closes
        self._parts: list[bytes] = []
        self.status = 0
        self.headers: Mapping[str, str] = NO_HEADERS
        self.is_complete = self.keep_alive = False
        parser = httptools.HttpResponseParser(self)
        self._parser: httptools.HttpResponseParser | None = parser
        parser.set_dangerous_leniencies(
            lenient_headers=True,
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
        )

    def feed(self, data: bytes) -> None:
        # After a HEAD request, the parser would read bytes after the head as the announced body.
        for piece in (data,) if self._has_body else data.splitlines(keepends=True):
            if self._parser is None:
                self.keep_alive = False
                return
            self._feed(self._parser, piece)

    def _feed(self, parser: httptools.HttpResponseParser, data: bytes) -> None:
        self._overhead_bytes += len(data)
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._parser = None
            self.keep_alive = False
            if not self.is_complete:
                raise ValueError(str(error.__context__ or error)) from error
        if self.is_complete:
            self._parser = None  # breaks a reference cycle
        elif self._overhead_bytes > _MAX_OVERHEAD_BYTES:
            self._parser = None
            raise ValueError("the head, a chunk size or the trailer is too long")

    def end(self) -> None:
        """Handle the end of the connection. Raises ValueError if the body is incomplete."""
        self._parser = None
        self.keep_alive = False
        if not self.is_complete and not self._ends_with_connection:
            raise ValueError("the body is incomplete")
        self.is_complete = True

    def take(self) -> bytes:
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    # ---- called by the parser

    def on_message_begin(self) -> None:
        if self.status:
            self.keep_alive = False  # a second response

    def on_header(self, name: bytes, value: bytes) -> None:
        fields = self._fields
        if fields is None:  # the line belongs to a trailer
            return
        if max(len(name), len(value)) > self._max_field_bytes or fields.lines == _MAX_LINES:
            raise ValueError("the head is too large")
        if b"\0" in value:
            raise ValueError("a header contains a NUL byte")
        fields.on_header(name.rstrip(b" "), value)  # the parser allows spaces after the name

    def on_headers_complete(self) -> None:
        fields, parser = self._fields, self._parser
        if fields is None or parser is None:
            return
        status = parser.get_status_code()
        if status < 200:
            self._fields = HeadFields()
            if status == 101:
                raise ValueError("the backend sent an unrequested 101 Switching Protocols")
            return
        self._overhead_bytes = 0
        self._fields = None
        self.headers = headers = fields.headers
        self.status = status
        self.keep_alive = parser.should_keep_alive()
        if not self._has_body:
            self.is_complete = True
            return
        coding = headers.get("transfer-encoding", "").rpartition(",")[2].strip().lower()
        self._ends_with_connection = coding != "chunked" and "content-length" not in headers

    def on_body(self, data: bytes) -> None:
        if self.is_complete:
            return  # the data belongs to a second response
        if not self.status:
            raise ValueError("a 1xx response has a body")
        self._overhead_bytes = 0
        self._parts.append(data)

    def on_message_complete(self) -> None:
        if self.status:
            self.is_complete = True
