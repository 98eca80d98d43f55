"""aiohttp's parsers, without decompression. The parsers never pause, because each read removes the
body from the buffer. Requests are parsed strictly, and responses as leniently as in aiohttp's
client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, cast

from aiohttp.http import (
    HttpProcessingError,
    HttpRequestParser,
    HttpResponseParser,
    RawResponseMessage,
)
from aiohttp.streams import StreamReader

from infergate.core.limits import Limits
from infergate.core.wire import NO_HEADERS
from infergate.transport.http1 import message_head

NOT_HTTP: Final = (HttpProcessingError, ValueError)  # the exceptions that a parser raises
_BUFFER_LIMIT: Final = 1 << 24  # larger than any single read
_MAX_RESPONSE_HEADERS: Final = 256


class _NoFlowControl:
    """Satisfies the parser, which requires a protocol with flow control. The buffer stays empty, so
    there is nothing to pause."""

    _reading_paused = False

    def pause_reading(self) -> None: ...

    def resume_reading(self, resume_parser: bool = True) -> None: ...  # noqa: FBT001, FBT002


_NO_FLOW_CONTROL: Final = cast("Any", _NoFlowControl())


def request_parser(loop: asyncio.AbstractEventLoop, limits: Limits) -> HttpRequestParser:
    """Return a parser that stops after each request until ``message_consumed`` is called."""
    return HttpRequestParser(
        _NO_FLOW_CONTROL,
        loop,
        _BUFFER_LIMIT,
        max_line_size=limits.headers,
        max_field_size=limits.headers,
        max_headers=limits.header_count,
        auto_decompress=False,
        max_msg_queue_size=1,
    )


class AiohttpReader:
    """A ``ResponseReader`` that uses aiohttp's parser."""

    def __init__(self, method: str, max_line_bytes: int) -> None:
        self._parser: Final = HttpResponseParser(
            _NO_FLOW_CONTROL,
            asyncio.get_running_loop(),
            _BUFFER_LIMIT,
            max_line_size=max_line_bytes,
            max_field_size=max_line_bytes,
            max_headers=_MAX_RESPONSE_HEADERS,
            response_with_body=method != "HEAD",
            read_until_eof=True,
            auto_decompress=False,
        )
        self._message: RawResponseMessage | None = None
        self._payload: StreamReader | None = None
        self.status = 0
        self.headers: Mapping[str, str] = NO_HEADERS
        self.is_complete = self.keep_alive = False

    def feed(self, data: bytes) -> None:
        try:
            messages, _, _ = self._parser.feed_data(data)
        except HttpProcessingError as error:
            raise ValueError(str(error)) from error
        for message, payload in messages:
            if self._message is not None:
                self.keep_alive = False  # the backend sent a second response
                break
            if message.code == 101:
                raise ValueError("the backend sent an unrequested 101 Switching Protocols")
            if message.code >= 200:
                self._message, self._payload = message, payload
                self.status = message.code
                # The parser allows spaces after a header name.
                items = message.headers.items()
                self.headers = message_head.merge_headers(
                    (name.rstrip(" "), value) for name, value in items
                )
                self.keep_alive = not message.should_close
            elif not payload.is_eof() or payload.read_nowait():
                raise ValueError("a 1xx response has a body")
        self._update()

    def end(self) -> None:
        try:
            self._parser.feed_eof()
        except HttpProcessingError as error:
            raise ValueError(str(error)) from error
        self.keep_alive = False
        self._update()

    def take(self) -> bytes:
        return b"" if self._payload is None else self._payload.read_nowait()

    def _update(self) -> None:
        self.is_complete = self._payload is not None and self._payload.is_eof()
