"""aiohttp's parser, and all that the transports of HTTP take from aiohttp.

*Strategy.* The parser is set to decompress nothing and never to ask for a pause: what it has of a
body is taken out of it after each read, so its buffer stays empty. Requests it reads strictly,
answers as leniently as aiohttp's client does.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from aiohttp.http import (
    HttpProcessingError,
    HttpRequestParser,
    HttpResponseParser,
    HttpVersion10,
    RawRequestMessage,
    RawResponseMessage,
)
from aiohttp.streams import StreamReader

from infergate.core.limits import KIB, Limits

__all__ = [
    "HTTP_1_0",
    "NOT_HTTP",
    "HttpRequestParser",
    "HttpResponseParser",
    "RawRequestMessage",
    "RawResponseMessage",
    "StreamReader",
    "request_parser",
    "response_parser",
]

HTTP_1_0: Final = HttpVersion10
NOT_HTTP: Final = (HttpProcessingError, ValueError)
"""What a parser raises."""
_BUFFER: Final = 1 << 24
"""Above all that one read may bring."""
_ANSWER_HEADERS: Final = 64 * KIB
"""The longest status or header line of an answer (Envoy: 60 KiB)."""
_ANSWER_HEADER_COUNT: Final = 256


class _Flow:
    """All that a parser asks of the protocol it parses for."""

    _reading_paused = False

    def pause_reading(self) -> None:
        """Needless; see the module."""

    def resume_reading(self, resume_parser: bool = True) -> None:  # noqa: FBT001, FBT002
        """Needless; see the module."""


_FLOW: Final = cast("Any", _Flow())


def request_parser(loop: asyncio.AbstractEventLoop, limits: Limits) -> HttpRequestParser:
    """A parser that stops after each request until ``message_consumed`` is called."""
    return HttpRequestParser(
        _FLOW,
        loop,
        _BUFFER,
        max_line_size=limits.headers,
        max_field_size=limits.headers,
        max_headers=limits.header_count,
        auto_decompress=False,
        max_msg_queue_size=1,
    )


def response_parser(loop: asyncio.AbstractEventLoop, method: str) -> HttpResponseParser:
    """A parser of the answer to one request of ``method``."""
    return HttpResponseParser(
        _FLOW,
        loop,
        _BUFFER,
        max_line_size=_ANSWER_HEADERS,
        max_field_size=_ANSWER_HEADERS,
        max_headers=_ANSWER_HEADER_COUNT,
        response_with_body=method != "HEAD",
        read_until_eof=True,
        auto_decompress=False,
    )
