"""An HTTP/1.1 listener on asyncio's sockets and aiohttp's parser."""

from __future__ import annotations

from infergate.core.limits import Limits
from infergate.transport.base import Address, HttpApp
from infergate.transport.compat.aiohttp_connection import AiohttpConnection
from infergate.transport.server.admission import Admission
from infergate.transport.server.connection_gate import ConnectionGate
from infergate.transport.server.listener import HttpAppListener


class AiohttpServer(HttpAppListener):
    """A ``Server`` for HTTP.

    ``accept_both_lengths``: a request may have Content-Length besides Transfer-Encoding
    (docs/decisions/0009-content-length-with-chunked.md).
    """

    def __init__(  # noqa: PLR0913 - as `MakeHttpServer` requires
        self,
        address: Address,
        app: HttpApp,
        limits: Limits,
        admission: Admission,
        gate: ConnectionGate | None = None,
        *,
        accept_both_lengths: bool = False,
    ) -> None:
        super().__init__(
            address,
            app,
            limits,
            admission,
            lambda: AiohttpConnection(self, accept_both_lengths=accept_both_lengths),
            gate,
        )
