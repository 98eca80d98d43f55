"""One connection to an HTTP/1.1 backend.

*Strategy.* See ``pool``. Like ``http_connection``, over aiohttp's parser. A parser is made for each
exchange, so nothing of one answer can leak into the next.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from infergate import __version__
from infergate.core.errors import garbage
from infergate.core.limits import Limits
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse, size
from infergate.transport import http_head
from infergate.transport.base import Endpoint
from infergate.transport.http_parser import (
    NOT_HTTP,
    HttpResponseParser,
    RawResponseMessage,
    StreamReader,
    response_parser,
)
from infergate.transport.pool import Pool, Pooled


class Exchange(Pooled):
    """See the module. How bytes are received is the matter of those derived from it."""

    def __init__(self, limits: Limits, endpoint: Endpoint, pool: Pool[Any]) -> None:
        super().__init__(limits, endpoint, pool)
        self._lines: Final = (
            f"host: {endpoint.authority}\r\nuser-agent: infergate/{__version__}\r\n"
        )
        self._method = ""
        self._parser: HttpResponseParser | None = None
        self._message: RawResponseMessage | None = None
        self._payload: StreamReader | None = None
        self._parts: list[Buffer] = []
        self._received = 0

    async def ask(self, wire: HttpRequest, target: str, deadline: float) -> HttpResponse:
        """Send ``wire`` to ``target`` and wait for the answer until ``deadline`` (loop time).

        Raises GatewayError, and ValueError for a request that HTTP cannot carry.
        """
        head = http_head.write_request_head(
            wire.method, target, wire.headers, size(wire.body), self._lines
        )
        self._method = wire.method
        self._parser = None
        self._message = self._payload = None
        self._parts = []
        self._received = 0
        return await self._exchange(http_head.gathered(head, wire.body), deadline)

    # ---- what asyncio tells

    def data_received(self, data: bytes) -> None:
        """Bytes of the answer; or of nothing we asked for, which ends the connection."""
        if self._waiter is None:
            self._transport.abort()
            return
        self._answered = True
        if self._parser is None:
            self._parser = response_parser(self._loop, self._method)
        try:
            messages, _, _ = self._parser.feed_data(data)
        except NOT_HTTP as error:
            self._fail(garbage("the backend's answer is not valid HTTP", self._said(error)))
            return
        for message, payload in messages:
            if self._message is not None:
                break  # a second answer: seen and dropped below
            if message.code >= 200:
                self._message, self._payload = message, payload
                if not self._fits(message.headers.get("content-length")):
                    return
        if self._message is None or not self._gather():
            return
        assert self._payload is not None
        if self._payload.is_eof():
            self._finish(more=bool(messages) and messages[-1][0] is not self._message)

    def _cut(self, exc: BaseException | None) -> None:
        if exc is not None or self._message is None or self._payload is None:
            super()._cut(exc)
            return
        assert self._parser is not None
        try:
            self._parser.feed_eof()  # the end of a body without a length
        except NOT_HTTP:
            super()._cut(exc)
            return
        if self._gather():
            self._finish(more=True)

    # ---- the answer

    def _fits(self, announced: str | None) -> bool:
        if announced is not None and announced.isdecimal() and int(announced) > self._limits.body:
            self._too_large()
            return False
        return True

    def _gather(self) -> bool:
        """Take what the parser has of the body. False where that ended the exchange."""
        assert self._payload is not None
        chunk = self._payload.read_nowait()
        if chunk:
            self._received += len(chunk)
            self._parts.append(chunk)
            if self._received > self._limits.body:
                self._too_large()
                return False
        return True

    def _finish(self, *, more: bool) -> None:
        """``more``: something came after the answer, or may have."""
        message = self._message
        assert message is not None
        headers = http_head.lowered(message.headers.items())
        parts, self._parts = self._parts, []  # an idle connection holds no answer
        response = HttpResponse(message.code, headers, parts)
        self._complete(response, keep=not (more or message.should_close))


class AiohttpExchange(Exchange, asyncio.Protocol):
    """Receives what the loop has read."""
