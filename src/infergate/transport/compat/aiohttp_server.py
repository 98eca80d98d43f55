"""An HTTP/1.1 listener on asyncio's sockets and aiohttp's parser."""

from __future__ import annotations

from infergate.transport.compat.aiohttp_connection import AiohttpConnection
from infergate.transport.server.listener import HttpAppListener


class AiohttpServer(HttpAppListener):
    """A ``Server`` for HTTP."""

    def _create_connection(self) -> AiohttpConnection:
        return AiohttpConnection(self, accept_both_lengths=self._accept_both_lengths)
