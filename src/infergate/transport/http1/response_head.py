"""A fast parser of plain response heads. A plain head is short, complete and strict HTTP/1.1, with
a Content-Length, without Transfer-Encoding or Upgrade, and without repeated single-valued fields.
``response_reader`` parses all other responses."""

from __future__ import annotations

from typing import Final

import httptools

from infergate.core.limits import KIB
from infergate.transport.http1 import message_head
from infergate.transport.http1.request_head import HeadCache, HeadFields, keeps_alive

_MAX_HEAD_BYTES: Final = 8 * KIB
_MAX_LINES: Final = 100


class PlainResponseHead:
    """The head of a plain response. It has ``size`` bytes, and the body has ``length`` bytes."""

    __slots__ = ("headers", "keep_alive", "length", "size", "status")

    def __init__(self, status: int, headers: dict[str, str], size: int) -> None:
        self.status = status
        self.headers = headers
        self.length = int(headers["content-length"])
        self.keep_alive = keeps_alive(headers, is_http10=False)
        self.size = size


class PlainResponseParser:
    """Parses the plain response heads of one connection, with a cache."""

    def __init__(self) -> None:
        self._cache: HeadCache[PlainResponseHead] = HeadCache()

    def parse(self, data: bytes, method: str) -> PlainResponseHead | None:
        """Return the head at the start of ``data``, or None if the response is not plain."""
        size = data.find(b"\r\n\r\n", 0, _MAX_HEAD_BYTES) + 4
        if size < 4 or method == "HEAD":
            return None
        raw = data[:size]
        head = self._cache.get(raw)
        if head is None:
            template = self._cache.template
            headers = None if template is None else self._cache.similar_headers(raw)
            if template is not None and headers is not None:
                return PlainResponseHead(template.status, headers, size)
            head = _parse(raw)
            if head is not None:
                self._cache.add_head(raw, head, head.headers)
        return head


def _parse(raw: bytes) -> PlainResponseHead | None:
    lines = raw.count(b"\r\n") - 2
    if lines > _MAX_LINES or not raw.startswith(b"HTTP/1.1 "):
        return None
    fields = HeadFields()
    parser = httptools.HttpResponseParser(fields)
    try:
        parser.feed_data(raw)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return None
    status, headers = parser.get_status_code(), fields.headers
    if (
        fields.lines != lines
        or fields.has_repeated
        or "content-length" not in headers
        or "transfer-encoding" in headers
        or "upgrade" in headers
        or not message_head.has_body("", status)
    ):
        return None
    return PlainResponseHead(status, headers, len(raw))
