"""A pooled HTTP/1.1 client that reads plain answers by itself.

*Strategy.* See ``http_client`` and ``h1.answer``. What is not plain goes to aiohttp's parser as it
came, and is what that makes of it.
"""

from __future__ import annotations

from typing import Any, Final

from infergate.core.limits import Limits
from infergate.core.wire import HttpResponse
from infergate.transport.base import Endpoint
from infergate.transport.h1.answer import PlainHead, PlainHeads
from infergate.transport.http_client import AiohttpUpstream
from infergate.transport.http_exchange import Exchange
from infergate.transport.pool import Pool


class H1Exchange(Exchange):
    """One connection to a backend."""

    def __init__(self, limits: Limits, endpoint: Endpoint, pool: Pool[Any]) -> None:
        super().__init__(limits, endpoint, pool)
        self._heads: Final = PlainHeads()
        self._plain: PlainHead | None = None  # the answer that is coming

    def data_received(self, data: bytes) -> None:
        """Bytes of the answer; or of nothing we asked for, which ends the connection."""
        if self._waiter is None:
            self._transport.abort()
            return
        plain = self._plain
        if plain is None:
            if self._parser is None:
                plain = self._heads.read(data, self._method)
            if plain is None or plain.length > self._limits.body:
                super().data_received(data)
                return
            self._answered = True
            self._plain = plain
            data = data[plain.size :]
        left = plain.length - self._received
        self._received += len(data)
        if data:
            self._parts.append(data[:left])
        if len(data) >= left:
            self._plain = None
            response = HttpResponse(plain.status, plain.headers, self._parts)
            self._complete(response, keep=plain.keep and len(data) == left)


class H1Upstream(AiohttpUpstream):
    """An :data:`~infergate.transport.base.HttpUpstream`. Streams are left to aiohttp's parser."""

    exchanges = H1Exchange
