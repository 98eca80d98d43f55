"""Producing the response to a request and writing it to the socket.

Whatever the application does, there is a response.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Sequence
from email.utils import formatdate
from typing import Final

from infergate.core.call import Call
from infergate.core.errors import GatewayError, Kind
from infergate.core.tensor import Buffer
from infergate.core.vocabulary import BUG
from infergate.core.wire import HttpRequest, HttpResponse, size
from infergate.transport import http_head
from infergate.transport.base import HttpApp

log = logging.getLogger(__name__)

BROKEN: Final = b"HTTP/1.1 500 \r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
"""Sent instead of a response whose headers would break the message framing."""
_CLOSE: Final = "connection: close\r\n"
_KEEP: Final = "connection: keep-alive\r\n"
_CHUNKED: Final = "transfer-encoding: chunked\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"


class _Clock:
    """The Server and Date lines, made once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._lines = b""

    def lines(self) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second = second
            date = formatdate(second, usegmt=True)
            self._lines = f"server: infergate\r\ndate: {date}\r\n".encode("ascii")
        return self._lines


_clock = _Clock()


def instead(failure: BaseException, app: HttpApp, wire: HttpRequest, call: Call) -> HttpResponse:
    """Return the response to use when the application raised ``failure``.

    Re-raises it if it is the task's own cancellation.
    """
    if isinstance(failure, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            try:
                raise failure
            finally:
                del failure, task  # they refer to this frame and to frames that hold messages
    if isinstance(failure, GatewayError):
        return refuse(app, failure, wire, call)
    log.error("handling %s %s failed", wire.method, wire.path, exc_info=failure, extra=BUG)
    return refuse(app, GatewayError(Kind.INTERNAL, "internal error"), wire, call)


def refuse(app: HttpApp, error: GatewayError, wire: HttpRequest, call: Call) -> HttpResponse:
    """Return the application's response to ``error``, with its HTTP-only status if it has one."""
    try:
        response = app.refuse(error, dataclasses.replace(wire, body=()), call)
    except Exception:
        log.exception("rejecting %s %s failed", wire.method, wire.path, extra=BUG)
        response = HttpResponse(500)
    if isinstance(error, http_head.HeadError):
        return dataclasses.replace(response, status=error.status)
    return response


def write(
    transport: asyncio.WriteTransport, method: str, response: HttpResponse, *, keep: bool, old: bool
) -> None:
    """Write ``response`` to a request of ``method``; ``write_more`` continues a streamed body.

    ``keep`` announces that the connection stays open, which an HTTP/1.0 client (``is_http10``)
    does not assume. Raises ValueError, and writes nothing, if a header would break the message
    framing.
    """
    connection = _CLOSE
    if keep:
        connection = _KEEP if old else ""
    length: int | None = size(response.body)
    body = response.body if http_head.has_body(method, response.status) else ()
    if response.rest is not None:
        length = None
        if not old:
            connection += _CHUNKED
            body = _chunk(body)
    head = http_head.write_head(response, length, connection, _clock.lines())
    if length is not None and length < http_head.JOIN_BELOW:
        transport.write(b"".join((head, *body)))
        return
    for part in http_head.gathered(head, body):
        transport.write(part)


def write_more(
    transport: asyncio.WriteTransport, body: Sequence[Buffer] | None, *, chunked: bool
) -> None:
    """Write another part of a response of unknown length; None ends it."""
    if chunked:
        body = (_LAST_CHUNK,) if body is None else _chunk(body)
    for part in http_head.gathered(b"", body or ()):
        transport.write(part)


def _chunk(body: Sequence[Buffer]) -> Sequence[Buffer]:
    """Return ``body`` as one chunk (RFC 9112, 7.1); nothing for an empty body, which would end the
    message."""
    length = size(body)
    return (b"%x\r\n" % length, *body, b"\r\n") if length else ()
