"""Builds and writes responses, including error responses if the application fails."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import time
from collections.abc import Sequence
from email.utils import formatdate
from typing import Final

from infergate.core.errors import GatewayError, internal_error
from infergate.core.log_events import BUG
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse, total_size
from infergate.transport.base import HttpApp
from infergate.transport.http1 import message_head

log = logging.getLogger(__name__)

FALLBACK_RESPONSE: Final = b"HTTP/1.1 500 \r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
"""Sent instead of a response whose headers would break the message framing."""
_CLOSE: Final = "connection: close\r\n"
_KEEP: Final = "connection: keep-alive\r\n"
_CHUNKED: Final = "transfer-encoding: chunked\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"


_NO_FAILURE: Final = Exception()


@functools.lru_cache(maxsize=1)
def _date_lines(second: int) -> bytes:
    """Return the Server and Date lines."""
    return f"server: infergate\r\ndate: {formatdate(second, usegmt=True)}\r\n".encode("ascii")


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def response_to_failure(
    failure: BaseException, app: HttpApp, wire: HttpRequest, context: RequestContext
) -> HttpResponse:
    """Return the response to a ``failure`` of the application. Raises the exception again if a task
    was cancelled."""
    if isinstance(failure, asyncio.CancelledError) and _is_being_cancelled():
        try:
            raise failure
        finally:
            failure = _NO_FAILURE  # the error refers to frames that hold messages
    if isinstance(failure, GatewayError):
        return rejection(app, failure, wire, context)
    log.error("handling %s %s failed", wire.method, wire.path, exc_info=failure, extra=BUG)
    return rejection(app, internal_error(), wire, context)


def rejection(
    app: HttpApp, error: GatewayError, wire: HttpRequest, context: RequestContext
) -> HttpResponse:
    """Return the application's response to ``error``, with the status of a ``HeadError``."""
    try:
        response = app.refuse(error, dataclasses.replace(wire, body=()), context)
    except Exception:
        log.exception("rejecting %s %s failed", wire.method, wire.path, extra=BUG)
        response = HttpResponse(500)
    if isinstance(error, message_head.HeadError):
        return dataclasses.replace(response, status=error.status)
    return response


def write_response(
    transport: asyncio.WriteTransport,
    method: str,
    response: HttpResponse,
    *,
    keep_alive: bool,
    is_http10: bool,
) -> None:
    """Write ``response`` to a request of ``method``. ``write_part`` continues a streamed body.
    ``keep_alive`` announces that the connection stays open, because an HTTP/1.0 client does not
    assume this. Raises ValueError, and writes nothing, if a header would break the message
    framing."""
    connection = _CLOSE
    if keep_alive:
        connection = _KEEP if is_http10 else ""
    content = response.body
    length: int | None = len(content[0]) if len(content) == 1 else total_size(content)
    body = content if message_head.has_body(method, response.status) else ()
    if response.body_stream is not None:
        length = None
        if not is_http10:
            connection += _CHUNKED
            body = _chunk(body)
    head = message_head.response_head(response, length, connection, _date_lines(int(time.time())))
    if length is not None and length < message_head.JOIN_BELOW:
        transport.write(b"".join((head, *body)))
        return
    for part in message_head.join_small(head, body):
        transport.write(part)


def write_part(
    transport: asyncio.WriteTransport, body: Sequence[Buffer] | None, *, is_chunked: bool
) -> None:
    """Write another part of a response of unknown length. None ends the response."""
    if is_chunked:
        body = (_LAST_CHUNK,) if body is None else _chunk(body)
    for part in message_head.join_small(b"", body or ()):
        transport.write(part)


def _chunk(body: Sequence[Buffer]) -> Sequence[Buffer]:
    """Return ``body`` as one chunk (RFC 9112, 7.1). An empty body has no parts."""
    length = total_size(body)
    return (b"%x\r\n" % length, *body, b"\r\n") if length else ()
