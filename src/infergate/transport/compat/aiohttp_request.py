"""A request parsed by aiohttp. The body is rejected as soon as the announced length or the
received bytes exceed the limit."""

from __future__ import annotations

from typing import Final

from aiohttp.http import HttpVersion10, RawRequestMessage
from aiohttp.streams import StreamReader

from infergate.core.limits import Limits
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest
from infergate.transport.http1 import message_head
from infergate.transport.server.admission import Admission
from infergate.transport.server.incoming_request import IncomingHttpRequest

_JOIN_BELOW: Final = 16 * 1024


class AiohttpRequest(IncomingHttpRequest):
    """A request. ``wire`` holds the body when it is complete. ``received`` counts the bytes of the
    body that have arrived, and ``missing`` counts the announced bytes that have not arrived."""

    def __init__(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        context: RequestContext,
        limits: Limits,
        admission: Admission,
    ) -> None:
        headers = context.headers = message_head.merge_headers(message.headers.items())
        target = message.path
        if target.startswith("/"):
            path, _, query = target.partition("?")
        else:
            path, query = message.url.raw_path, message.url.raw_query_string
        super().__init__(HttpRequest(message.method, path, query, headers), context, admission)
        self.keep_alive = not (
            message.should_close or message.upgrade or message.method == "CONNECT"
        )
        self.is_complete = payload.is_eof()
        self.is_http10 = message.version == HttpVersion10
        self._limits = limits
        self._payload = payload
        self._is_chunked = message.chunked
        self._parts: list[Buffer] = []
        self.received = self.missing = 0

    def admit(self, message: RawRequestMessage) -> None:
        """Validate the head and admit the request. Raises GatewayError."""
        headers = self.wire.headers
        message_head.check_fields(message.raw_headers, self._limits)
        message_head.check_head(
            message.method, message.path, message.version, headers, self._limits
        )
        if not message.path.startswith("/") and (authority := message.url.raw_authority):
            if not message_head.is_host(authority):
                raise message_head.not_http()
            # The target takes precedence over the Host header (RFC 9112, 3.2.2).
            self.wire.headers = self.context.headers = {**headers, "host": authority}
        self.missing = int(headers.get("content-length", 0))
        self.account.admit(self.missing)

    @property
    def expects_continue(self) -> bool:
        """Whether the client waits for 100 Continue before it sends the body (RFC 9110, 10.1.1)."""
        return not self.is_http10 and self.wire.headers.get("expect", "").lower() == "100-continue"

    def read_body(self) -> None:
        """Take the received part of the body out of the parser. Raises TOO_LARGE and OVERLOADED."""
        payload = self._payload
        self.is_complete = payload.is_eof()
        chunk = payload.read_nowait()
        if chunk:
            self.received += len(chunk)
            if self._is_chunked:
                if self.received > self._limits.body:
                    raise message_head.body_too_large(self.received, self._limits)
                self.account.count_body(self.received)
            else:
                self.missing -= len(chunk)
            # Small chunks are joined, because an object for each byte of a slow body would cost
            # too much memory.
            if len(chunk) >= _JOIN_BELOW or not self._parts:
                self._parts.append(chunk)
            elif isinstance(last := self._parts[-1], bytearray):
                last += chunk
            else:
                self._parts.append(bytearray(chunk))
        if self.is_complete:
            self.wire.body = self._parts
            self.context.record.bytes_in = self.received

    def release(self) -> None:
        """Drop the body, and release the request if it was admitted."""
        super().release()
        self._parts = []
