"""An HTTP/1.1 listener on asyncio's sockets and aiohttp's parser."""

from __future__ import annotations

from infergate.core.limits import Limits
from infergate.transport.base import Address, HttpApp
from infergate.transport.door import Door
from infergate.transport.guard import Admission
from infergate.transport.http_connection import Connection
from infergate.transport.listener import Listener


class AiohttpServer(Listener):
    """A ``Server`` for HTTP.

    ``accept_both_lengths``: a request may have Content-Length besides Transfer-Encoding
    (docs/decisions/0009-content-length-with-chunked.md).
    """

    def __init__(  # noqa: PLR0913 - as `ServeHttp` requires
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
