"""The HTTP/1.1 client whose answers aiohttp's parser reads."""

from __future__ import annotations

import asyncio
from typing import Any

from infergate.core.certificates import ClientTls
from infergate.core.limits import Limits
from infergate.transport.base import Endpoint
from infergate.transport.http_client import Http1Upstream
from infergate.transport.http_exchange import Exchange
from infergate.transport.http_parser import AiohttpReader
from infergate.transport.pool import Pool


class AiohttpExchange(Exchange, asyncio.Protocol):
    """Receives what the loop has read."""

    def __init__(self, limits: Limits, endpoint: Endpoint, pool: Pool[Any]) -> None:
        super().__init__(AiohttpReader, limits, endpoint, pool)


class AiohttpUpstream(Http1Upstream):
    """An :data:`~infergate.transport.base.HttpUpstream`."""

    def __init__(self, limits: Limits, tls: ClientTls | None = None) -> None:
        """``tls``: see ``Pools``."""
        super().__init__(limits, tls, AiohttpExchange, AiohttpReader)
