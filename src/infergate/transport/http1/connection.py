"""Writes responses on an HTTP/1 server connection, for any parser of requests."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Sequence
from email.utils import formatdate
from typing import Final

from infergate.core.compilation import mypyc_attr
from infergate.core.log_events import BUG
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpResponse, total_size
from infergate.transport.http1 import message_head
from infergate.transport.http1.server_connection import HttpServerConnection
from infergate.transport.server.listener import HttpAppListener

log = logging.getLogger(__name__)

_FALLBACK_RESPONSE: Final = b"HTTP/1.1 500 \r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
"""The response that replaces a response whose headers would break the message framing."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Http1Connection(HttpServerConnection):
    """The response half of an HTTP/1 server connection."""

    def __init__(self, listener: HttpAppListener) -> None:
        super().__init__(listener)
        self._is_chunked = False  # whether the streamed response in progress uses chunked coding

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
            self._write(method, response, keep_alive=keep, is_http10=is_http10)
        except ValueError:
            log.exception("cannot send the response to a %s request", method, extra=BUG)
            if response.body_stream is not None:
                raise
            self._transport.write(_FALLBACK_RESPONSE)
            return False
        return keep

    def _write(
        self, method: str, response: HttpResponse, *, keep_alive: bool, is_http10: bool
    ) -> None:
        """Write ``response`` to a ``method`` request. ``keep_alive`` is true if the
        connection stays open; the head tells HTTP/1.0 clients, which otherwise expect it to close.
        Raises ValueError, and writes nothing, if a header would break the message framing."""
        connection = "connection: close\r\n"
        if keep_alive:
            connection = "connection: keep-alive\r\n" if is_http10 else ""
        content = response.body
        length: int | None = len(content[0]) if len(content) == 1 else total_size(content)
        body = content if message_head.has_body(method, response.status) else ()
        if response.body_stream is not None:
            length = None
            if not is_http10:
                connection += "transfer-encoding: chunked\r\n"
                body = _chunk(body)
        date = _date_lines(int(time.time()))
        head = message_head.response_head(response, length, connection, date)
        if length is not None and length < message_head.JOIN_BELOW:
            self._transport.write(b"".join((head, *body)))
            return
        for part in message_head.join_small(head, body):
            self._transport.write(part)

    def _write_part(self, body: Sequence[Buffer] | None) -> None:
        if self._transport.is_closing():
            return
        if self._is_chunked:
            body = (b"0\r\n\r\n",) if body is None else _chunk(body)
        for part in message_head.join_small(b"", body or ()):
            self._transport.write(part)


@functools.lru_cache(maxsize=1)
def _date_lines(second: int) -> bytes:
    """Return the Server and Date lines."""
    return f"server: infergate\r\ndate: {formatdate(second, usegmt=True)}\r\n".encode("ascii")


def _chunk(body: Sequence[Buffer]) -> Sequence[Buffer]:
    """Return ``body`` as one chunk (RFC 9112, 7.1), or no parts if ``body`` is empty."""
    length = total_size(body)
    return (b"%x\r\n" % length, *body, b"\r\n") if length else ()
