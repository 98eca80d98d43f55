"""A request on its way in: what its head says, its body as it arrives, and what both cost.

*Rule 1.* A body is refused as soon as it is known to be too large: by its head where that announces
a length, else by the bytes that came.
*Rule 2.* What was admitted is released exactly once.
"""

from __future__ import annotations

from typing import Final

from infergate.core.call import Call
from infergate.core.limits import Limits
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest
from infergate.transport import http_head
from infergate.transport.guard import Admission, Share
from infergate.transport.http_parser import HTTP_1_0, RawRequestMessage, StreamReader

_SMALL: Final = 16 * 1024


class Incoming:
    """One request; ``wire`` and ``call`` tell of its body when all of that was taken.

    ``whole`` is whether the parser has seen the end of it, ``since`` when it began to come (loop
    time), ``received`` how many bytes of it have, and ``missing`` how many announced ones have not,
    ``old`` HTTP/1.0, ``keep`` whether the client wants to go on after it.
    """

    __slots__ = (
        "_chunked",
        "_limits",
        "_parts",
        "_payload",
        "_share",
        "call",
        "keep",
        "missing",
        "old",
        "received",
        "since",
        "whole",
        "wire",
    )

    def __init__(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        call: Call,
        limits: Limits,
        admission: Admission,
    ) -> None:
        headers = call.headers = http_head.lowered(message.headers.items())
        target = message.path
        if target.startswith("/"):
            path, _, query = target.partition("?")
        else:
            path, query = message.url.raw_path, message.url.raw_query_string
            if authority := message.url.raw_authority:
                headers["host"] = authority  # the Host field is ignored (RFC 9112, 3.2.2)
        self.wire = HttpRequest(message.method, path, query, headers)
        self.call = call
        self.keep = not (message.should_close or message.upgrade or message.method == "CONNECT")
        self.whole = payload.is_eof()
        self.since = 0.0
        self.old = message.version == HTTP_1_0
        self._limits = limits
        self._payload = payload
        self._chunked = message.chunked
        self._parts: list[Buffer] = []
        self.received = self.missing = 0
        self._share = Share(admission)
        call.memory = self._share

    def admit(self, message: RawRequestMessage) -> None:
        """Let it in, or raise GatewayError."""
        headers = self.wire.headers
        http_head.check_fields(message.raw_headers, self._limits)
        http_head.check(message.method, message.path, message.version, headers, self._limits)
        self.missing = int(headers.get("content-length", 0))
        self._share.take(self.missing)

    @property
    def waits_for_consent(self) -> bool:
        """Whether the client sends the body only when told to (RFC 9110, 10.1.1)."""
        return not self.old and self.wire.headers.get("expect", "").lower() == "100-continue"

    def take(self) -> None:
        """Take what the parser has of the body. Raises TOO_LARGE, OVERLOADED."""
        payload = self._payload
        self.whole = payload.is_eof()
        chunk = payload.read_nowait()
        if chunk:
            self.received += len(chunk)
            if self._chunked:
                if self.received > self._limits.body:
                    raise http_head.too_large(self.received, self._limits)
                self._share.receive(len(chunk))
            else:
                self.missing -= len(chunk)
            # Large chunks stay as they came; small ones are gathered, lest a body that drips cost
            # an object for each byte.
            if len(chunk) >= _SMALL or not self._parts:
                self._parts.append(chunk)
            else:
                self._gather(chunk)
        if self.whole:
            self.wire.body = self._parts
            self.call.bytes_in = self.received

    def release(self) -> None:
        """Give back what was admitted, if anything was, and let go of the body."""
        self._share.release()
        self.wire.body, self._parts = (), []

    def _gather(self, chunk: bytes) -> None:
        last = self._parts[-1]
        if isinstance(last, bytearray):
            last += chunk
        else:
            self._parts.append(bytearray(chunk))
