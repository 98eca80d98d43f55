"""An HTTP/1.1 client that parses responses with aiohttp."""

from __future__ import annotations

import asyncio
from typing import Any

from infergate.core.limits import Limits
from infergate.core.tls_settings import ClientTls
from infergate.transport.client.pool import Pool
from infergate.transport.compat.aiohttp_parser import AiohttpReader
from infergate.transport.http1.exchange import HttpExchangeConnection
from infergate.transport.http1.upstream import Http1Upstream


class AiohttpClientConnection(HttpExchangeConnection, asyncio.Protocol):
    """A connection whose responses aiohttp parses."""

    def __init__(self, pool: Pool[Any]) -> None:
        super().__init__(AiohttpReader, pool)


class AiohttpUpstream(Http1Upstream):
    """An ``HttpUpstream`` over HTTP/1.1 that uses aiohttp's parser."""

    def __init__(self, limits: Limits, tls: ClientTls | None = None) -> None:
        super().__init__(limits, tls, AiohttpClientConnection, AiohttpReader)
