"""aiohttp's parser, and all that the transports of HTTP take from aiohttp.

*Strategy.* The parser is set to decompress nothing and never to ask for a pause: what it has of a
body is taken out of it after each read, so its buffer stays empty. Requests it reads strictly,
answers as leniently as aiohttp's client does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
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

from infergate.core.limits import Limits
from infergate.core.wire import NO_HEADERS
from infergate.transport import http_head

__all__ = [
    "HTTP_1_0",
    "NOT_HTTP",
    "AiohttpReader",
    "HttpRequestParser",
    "RawRequestMessage",
    "StreamReader",
    "request_parser",
]

HTTP_1_0: Final = HttpVersion10
NOT_HTTP: Final = (HttpProcessingError, ValueError)
"""What a parser raises."""
_BUFFER: Final = 1 << 24
"""Above all that one read may bring."""
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


class AiohttpReader:
    """An :class:`~infergate.transport.http_exchange.AnswerReader`."""

    __slots__ = ("_message", "_parser", "_payload", "headers", "keep", "status", "whole")

    def __init__(self, method: str, longest: int) -> None:
        self._parser: Final = HttpResponseParser(
            _FLOW,
            asyncio.get_running_loop(),
            _BUFFER,
            max_line_size=longest,
            max_field_size=longest,
            max_headers=_ANSWER_HEADER_COUNT,
            response_with_body=method != "HEAD",
            read_until_eof=True,
            auto_decompress=False,
        )
        self._message: RawResponseMessage | None = None
        self._payload: StreamReader | None = None
        self.status = 0
        self.headers: Mapping[str, str] = NO_HEADERS
        self.whole = self.keep = False

    def feed(self, data: bytes) -> None:
        """``data`` came. Raises ValueError where that is no HTTP."""
        try:
            messages, _, _ = self._parser.feed_data(data)
        except HttpProcessingError as error:
            raise ValueError(str(error)) from error
        for message, payload in messages:
            if self._message is not None:
                self.keep = False  # a second answer
                break
            if message.code == http_head.SWITCHING_PROTOCOLS:
                raise ValueError("the backend changes to what nobody asked for")
            if message.code >= 200:
                self._message, self._payload = message, payload
                self.status = message.code
                # The parser knows a name with blanks behind it, too.
                items = message.headers.items()
                self.headers = http_head.lowered((name.rstrip(" "), value) for name, value in items)
                self.keep = not message.should_close
            elif not payload.is_eof() or payload.read_nowait():
                raise ValueError("an answer of 1xx has a body")
        self._see()

    def end(self) -> None:
        """Nothing more will come. Raises ValueError where something is missing."""
        try:
            self._parser.feed_eof()
        except HttpProcessingError as error:
            raise ValueError(str(error)) from error
        self.keep = False
        self._see()

    def take(self) -> bytes:
        """What came of the body since."""
        return b"" if self._payload is None else self._payload.read_nowait()

    def _see(self) -> None:
        self.whole = self._payload is not None and self._payload.is_eof()
