"""A refused relayed request on an HTTP/1 connection during a shutdown."""

from __future__ import annotations

import asyncio
from typing import Any

from relay_kit import MemoryTransport

from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import Limits
from infergate.core.request_context import RequestContext
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.transport.base import Address, Cancellable, RelayCallbacks
from infergate.transport.http1.server import H1Server
from infergate.transport.server.admission import Admission


class Refusing:
    """An application that refuses each request before ``relay`` returns."""

    def __init__(self) -> None:
        self.rejections: list[str] = []

    def relay(
        self, _wire: HttpRequest, _context: RequestContext, callbacks: RelayCallbacks[HttpResponse]
    ) -> Cancellable:
        callbacks.on_response(self._refuse("invalid"))
        return self

    def refuse(self, error: GatewayError, *_: object) -> HttpResponse:
        return self._refuse(error.public)

    def _refuse(self, text: str) -> HttpResponse:
        self.rejections.append(text)
        return HttpResponse(400, body=[text.encode()])

    def cancel(self) -> None:
        """Do nothing, because no request is in progress."""


def test_a_refused_request_is_not_refused_again_by_a_shutdown() -> None:
    async def scenario() -> None:
        app: Any = Refusing()
        admission = Admission(Limits())
        listener = H1Server(Address(), app, Limits(), admission)
        listener.loop = asyncio.get_running_loop()
        connection = listener._create_connection()
        transport = MemoryTransport(listener.loop, connection)
        connection.connection_made(transport)
        request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
        connection.get_buffer(-1)[: len(request)] = request
        connection.buffer_updated(len(request))
        listener.is_stopping = True
        connection.cancel_with(GatewayError(Kind.OVERLOADED, "shutting down"))
        await asyncio.sleep(0)
        assert app.rejections == ["invalid"]
        assert transport.take().endswith(b"invalid")
        assert transport.is_closing()
        assert not admission.requests

    asyncio.run(scenario())
