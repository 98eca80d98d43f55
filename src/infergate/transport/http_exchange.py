"""One connection to an HTTP/1.1 backend.

*Strategy.* See ``pool``. A reader is made for each exchange, so nothing of one answer can leak into
the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from infergate import __version__
from infergate.core.errors import garbage
from infergate.core.limits import Limits
from infergate.core.memory import SMALL
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse, size
from infergate.transport import http_head
from infergate.transport.base import Endpoint
from infergate.transport.pool import Pool, Pooled


class AnswerReader(Protocol):
    """Reads the answer to one request, and passes over those of 1xx before it. ``status`` is 0, and
    nothing else means anything, until its head is here. ``whole``: so is its body; ``keep``: the
    connection may then carry another exchange, for nothing came behind it."""

    status: int
    headers: Mapping[str, str]
    whole: bool
    keep: bool

    def feed(self, data: bytes) -> None:
        """``data`` came. Raises ValueError where that is no HTTP."""
        ...

    def end(self) -> None:
        """Nothing more will come, which is the end of a body that has no other. Raises ValueError
        where something is missing."""
        ...

    def take(self) -> bytes:
        """What came of the body since this was asked before."""
        ...


Read = Callable[[str, int], AnswerReader]
"""Makes a reader of the answer to a request of that method, whose header lines may be so long."""


class Exchange(Pooled):
    """See the module. How bytes are received is the matter of those derived from it."""

    def __init__(self, read: Read, limits: Limits, endpoint: Endpoint, pool: Pool[Any]) -> None:
        super().__init__(limits, endpoint, pool)
        self._lines: Final = (
            f"host: {endpoint.authority}\r\nuser-agent: infergate/{__version__}\r\n"
        )
        self._read: Final = read
        self._method = ""
        self._reader: AnswerReader | None = None
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
        self._reader = None
        self._parts = []
        self._received = 0
        return await self._exchange(http_head.gathered(head, wire.body), deadline, wire.memory)

    # ---- what asyncio tells

    def data_received(self, data: bytes) -> None:
        """Bytes of the answer; or of nothing we asked for, which ends the connection."""
        if self._waiter is None:
            self._transport.abort()
            return
        self._answered = True
        if self._reader is None:
            self._reader = self._read(self._method, self._limits.response_header)
        reader = self._reader
        has_begun = reader.status
        try:
            reader.feed(data)
        except ValueError as error:
            self._fail(garbage("the backend's answer is not valid HTTP", self._said(error)))
            return
        if not reader.status:
            return
        if not (has_begun or reader.whole or self._fits(reader.headers.get("content-length"))):
            return
        if self._gather(reader) and reader.whole:
            self._finish(reader)

    def _cut(self, exc: BaseException | None) -> None:
        reader = self._reader
        if exc is not None or reader is None or not reader.status:
            super()._cut(exc)
            return
        try:
            reader.end()
        except ValueError as error:
            super()._cut(error)
            return
        if self._gather(reader):
            self._finish(reader)

    # ---- the answer

    def _fits(self, announced: str | None) -> bool:
        if announced is not None and announced.isdecimal() and int(announced) > self._limits.body:
            self._too_large()
            return False
        return True

    def _gather(self, reader: AnswerReader) -> bool:
        """Take what there is of the body. False where that ended the exchange."""
        chunk = reader.take()
        if chunk:
            self._received += len(chunk)
            self._parts.append(chunk)
            if self._received > self._limits.body:
                self._too_large()
                return False
            if self._received > SMALL:
                return self._count(self._received - self._counted)
        return True

    def _finish(self, reader: AnswerReader) -> None:
        self._reader = None  # an idle connection holds no answer
        parts, self._parts = self._parts, []
        self._complete(HttpResponse(reader.status, reader.headers, parts), keep=reader.keep)
