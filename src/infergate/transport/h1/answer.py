"""Fast parsing of plain response heads; all others are left to ``response_reader``.

Nothing is rejected here. A response is plain if its head has arrived completely, is strict
HTTP/1.1, and states the length of the body exactly once.
"""

from __future__ import annotations

from typing import Final

import httptools

from infergate.core.limits import KIB
from infergate.transport import http_head
from infergate.transport.h1.head import Found, Known, keeps

_LONGEST: Final = 8 * KIB
_MOST_LINES: Final = 100


class PlainHead:
    """The head of a plain response with a body of ``length`` bytes; ``size`` is the length of the
    head."""

    __slots__ = ("headers", "keep", "length", "size", "status")

    def __init__(self, status: int, headers: dict[str, str], size: int) -> None:
        self.status = status
        self.headers = headers
        self.length = int(headers["content-length"])
        self.keep = keeps(headers, old=False)
        self.size = size


class PlainHeads:
    """Parses the plain response heads of one connection, with a cache."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: Known[PlainHead] = Known()

    def read(self, data: bytes, method: str) -> PlainHead | None:
        """Return the head at the start of ``data``, the response to ``method``; None if it is not
        plain."""
        size = data.find(b"\r\n\r\n", 0, _LONGEST) + 4
        if size < 4 or method == "HEAD":
            return None
        raw = data[:size]
        head = self._known.get(raw)
        if head is None:
            head = _read(raw)
            if head is not None:
                self._known.learn(raw, head, head.headers)
        return head


def _read(raw: bytes) -> PlainHead | None:
    lines = raw.count(b"\r\n") - 2
    if lines > _MOST_LINES or not raw.startswith(b"HTTP/1.1 "):
        return None
    fields = Found()
    parser = httptools.HttpResponseParser(fields)
    try:
        parser.feed_data(raw)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return None
    status, headers = parser.get_status_code(), fields.headers
    if (
        fields.lines != lines
        or fields.doubtful
        or "content-length" not in headers
        or "transfer-encoding" in headers
        or "upgrade" in headers
        or not http_head.has_body("", status)
    ):
        return None
    return PlainHead(status, headers, len(raw))
