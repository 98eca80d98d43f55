"""A client for responses that consist of lines and last as long as the connection, such as
responses to watch requests of the Kubernetes API."""

from __future__ import annotations

from collections import deque
from typing import Final

from infergate.core.errors import GatewayError, Kind
from infergate.transport.http1.client import H1Upstream
from infergate.transport.http1.event_stream import EventParser, EventStreamConnection
from infergate.transport.http1.exchange import ResponseReader


class LineParser:
    """Splits a body that arrives in pieces into lines of at most ``max_line_bytes``. Skips empty
    lines. The first event is empty, so that the caller learns immediately that the response has
    begun."""

    def __init__(self, max_line_bytes: int) -> None:
        self._max_line_bytes: Final = max_line_bytes
        self._lines: Final[deque[bytes]] = deque([b""])
        self._partial_line = bytearray()

    def feed(self, data: bytes) -> None:
        """Add the next piece of the body. Each byte is examined once."""
        *lines, partial_line = data.split(b"\n")
        if lines:
            lines[0] = bytes(self._partial_line + lines[0])
            self._partial_line.clear()
            self._lines.extend(filter(None, map(bytes.strip, lines)))
        self._partial_line += partial_line

    def next_event(self) -> bytes | None:
        """Return the next line without surrounding whitespace, or None if no line is complete.
        Raises TOO_LARGE."""
        line = self._lines.popleft() if self._lines else None
        if len(self._partial_line if line is None else line) > self._max_line_bytes:
            public = f"a line of the response exceeds the limit of {self._max_line_bytes} bytes"
            raise GatewayError(Kind.TOO_LARGE, public)
        return line

    @property
    def buffered_bytes(self) -> int:
        """The number of buffered bytes of the incomplete line."""
        return len(self._partial_line)

    @property
    def is_between_events(self) -> bool:
        """Whether the body may end at this point, because no line is incomplete."""
        return not self._partial_line


class LineStreamConnection(EventStreamConnection):
    """A connection for one exchange that yields the lines of a response with the status 200. A line
    has at most ``limits.json`` bytes. Responses with another status are not split."""

    def _make_parser(self, reader: ResponseReader) -> EventParser | None:
        return LineParser(self._limits.json) if reader.status == 200 else None


class LineUpstream(H1Upstream):
    """An ``HttpUpstream`` whose streams yield the lines of a response."""

    stream_connection = LineStreamConnection
