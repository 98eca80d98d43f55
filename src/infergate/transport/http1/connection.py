"""Writes responses on an HTTP/1 server connection, for any parser of requests."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from infergate.core.compilation import mypyc_attr
from infergate.core.log_events import BUG
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.transport.http1 import response_writer
from infergate.transport.http1.server_connection import HttpServerConnection
from infergate.transport.server.listener import HttpAppListener

log = logging.getLogger(__name__)


@mypyc_attr(allow_interpreted_subclasses=True)
class Http1Connection(HttpServerConnection):
    """The response half of an HTTP/1 server connection."""

    __slots__ = ("_is_chunked",)

    def __init__(self, listener: HttpAppListener) -> None:
        super().__init__(listener)
        self._is_chunked = False  # the streamed response in progress uses chunked coding

    def _placeholder_request(self) -> HttpRequest:
        return HttpRequest("", "")

    def _write_response(self, response: HttpResponse) -> bool:
        request = self._request
        method, keep, is_http10 = "", False, False
        if request is not None:
            method, is_http10 = request.wire.method, request.is_http10
            keep = request.is_complete and request.keep_alive and not self._listener.is_stopping
        if response.body_stream is not None:
            keep = keep and not is_http10  # the end of the connection ends an HTTP/1.0 body
            self._is_chunked = not is_http10
        try:
            response_writer.write_response(
                self._transport, method, response, keep_alive=keep, is_http10=is_http10
            )
        except ValueError:
            log.exception("cannot send the response to a %s request", method, extra=BUG)
            if response.body_stream is not None:
                raise
            self._transport.write(response_writer.FALLBACK_RESPONSE)
            return False
        return keep

    def _write_part(self, body: Sequence[Buffer] | None) -> None:
        if not self._transport.is_closing():
            response_writer.write_part(self._transport, body, is_chunked=self._is_chunked)
