"""An HTTP/1.1 listener: asyncio's sockets, aiohttp's parser."""

from __future__ import annotations

from infergate.core.limits import Limits
from infergate.transport.base import Address, HttpApp
from infergate.transport.door import Door
from infergate.transport.guard import Admission
from infergate.transport.http_connection import Connection
from infergate.transport.listener import Listener


class AiohttpServer(Listener):
    """A :class:`~infergate.transport.base.Server` for HTTP. See ``http_connection``.

    ``accept_both_lengths``: a request may have Content-Length beside Transfer-Encoding
    (docs/decisions/0009-both-lengths.md).
    """

    def __init__(  # noqa: PLR0913 - see ServeHttp
        self,
        address: Address,
        app: HttpApp,
        limits: Limits,
        admission: Admission,
        door: Door | None = None,
        *,
        accept_both_lengths: bool = False,
    ) -> None:
        super().__init__(
            address,
            app,
            limits,
            admission,
            lambda: Connection(self, accept_both_lengths=accept_both_lengths),
            door,
        )
