"""Writing responses on an HTTP/1 server connection, independent of the request parser."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol, TypeVar

from infergate.core.tensor import Buffer
from infergate.core.vocabulary import BUG
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.transport import http_answer
from infergate.transport.listener import Listener
from infergate.transport.served import Request, Served

log = logging.getLogger(__name__)


class HttpIncoming(Request, Protocol):
    """An HTTP/1 request that is arriving.

    ``keep``: the client wants to keep the connection. ``old``: it is HTTP/1.0.
    """

    keep: bool
    old: bool


AnyHttpRequest = TypeVar("AnyHttpRequest", bound=HttpIncoming)


class HttpServed(Served[AnyHttpRequest]):
    """The response half of an HTTP/1 server connection."""

    __slots__ = ("_chunked",)

    def __init__(self, host: Listener) -> None:
        super().__init__(host)
        self._chunked = False  # the streamed response in progress uses chunked coding

    def _unread(self) -> HttpRequest:
        return HttpRequest("", "")

    def _send(self, response: HttpResponse) -> bool:
        request = self._request
        method, keep, old = "", False, False
        if request is not None:
            method, old = request.wire.method, request.old
            keep = request.whole and request.keep and not self._is_last()
        if response.rest is not None:
            keep = keep and not old  # in HTTP/1.0 the connection's end is the body's end
            self._chunked = not old
        try:
            http_answer.write(self._transport, method, response, keep=keep, old=old)
        except ValueError:
            log.exception("cannot send a response to %s", method, extra=BUG)
            if response.rest is not None:
                raise
            self._transport.write(http_answer.BROKEN)
            return False
        return keep

    def _send_more(self, body: Sequence[Buffer] | None) -> None:
        if not self._transport.is_closing():
            http_answer.write_more(self._transport, body, chunked=self._chunked)
