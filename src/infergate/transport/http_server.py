"""An HTTP/1.1 listener: asyncio's sockets, aiohttp's parser."""

from __future__ import annotations

import asyncio
from typing import Final

from infergate.core.limits import Limits
from infergate.transport.base import Address, HttpApp
from infergate.transport.guard import Admission
from infergate.transport.http_connection import Connection

_BACKLOG: Final = 1024
_LAST_WORDS: Final = 1.0
"""Seconds that cancelled requests have for their cleanup."""


class AiohttpServer:
    """A :class:`~infergate.transport.base.Server` for HTTP. See ``http_connection``."""

    def __init__(
        self, address: Address, app: HttpApp, limits: Limits, admission: Admission
    ) -> None:
        self._wanted = address
        self._bound = address
        self.app = app
        self.limits = limits
        self.admission = admission
        self.stopping = False
        self.loop: asyncio.AbstractEventLoop
        self._listener: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._empty: asyncio.Event

    @property
    def address(self) -> Address:
        """The address it really bound."""
        return self._bound

    async def start(self) -> None:
        """Bind and accept. Raises OSError where the address is taken."""
        self.loop = asyncio.get_running_loop()
        self._empty = asyncio.Event()
        self._empty.set()
        self._listener = await self.loop.create_server(
            lambda: Connection(self), self._wanted.host, self._wanted.port, backlog=_BACKLOG
        )
        port = self._listener.sockets[0].getsockname()[1]
        self._bound = Address(self._wanted.host, port)

    async def stop(self, grace: float) -> None:
        """Stop accepting, close idle connections, let requests finish for ``grace`` seconds,
        then cancel them."""
        if self._listener is None:
            return
        self._listener.close()
        self._listener = None
        self.stopping = True
        for connection in tuple(self._connections):
            connection.finish()
        if not await self._emptied(grace):
            for connection in tuple(self._connections):
                connection.abort()
            await self._emptied(_LAST_WORDS)

    async def _emptied(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._empty.wait(), seconds)
        except TimeoutError:
            return False
        return True

    # ---- what connections tell

    def opened(self, connection: Connection) -> None:
        """A client connected."""
        self._connections.add(connection)
        self._empty.clear()

    def closed(self, connection: Connection) -> None:
        """A connection is over, and its task too."""
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()
