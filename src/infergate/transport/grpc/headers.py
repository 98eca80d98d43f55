"""Reads and writes the HTTP/2 headers of gRPC calls, for servers and clients.

The sources are gRPC over HTTP/2 (PROTOCOL-HTTP2.md) and "HTTP to gRPC Status Code Mapping".
Unspecified cases are handled as in grpc-core. For example, an invalid timeout sets no deadline."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote, unquote

from infergate.core.compilation import mypyc_attr
from infergate.core.errors import GatewayError
from infergate.core.hops import FIRST_HOP, HOPS_HEADER
from infergate.core.limits import Limits
from infergate.core.memory import IN_FLIGHT_BYTES
from infergate.transport.grpc import metadata as grpc_metadata
from infergate.transport.grpc.framing import ACCEPTED_ENCODINGS
from infergate.transport.http2 import header_blocks
from infergate.transport.http2.header_blocks import HeaderBlock
from infergate.transport.http2.hpack_decoder import MAX_PREFIX_LENGTH

OK: Final = 0
CANCELLED: Final = 1
UNKNOWN: Final = 2
DEADLINE_EXCEEDED: Final = 4
RESOURCE_EXHAUSTED: Final = 8
INTERNAL: Final = 13
UNAVAILABLE: Final = 14
_CODES: Final = range(17)
_NO_REASON: Final = frozenset({"", "CANCELLED"})
"""Messages of a CANCELLED status that give no reason."""
_CODES_OF_HTTP: Final = {400: 13, 401: 16, 403: 7, 404: 12, 429: 14, 502: 14, 503: 14, 504: 14}
_TIMEOUT: Final = re.compile("([0-9]{1,8})([HMSmun])", re.ASCII)
_SECONDS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_MAX_TIMEOUT_VALUE: Final = 99_999_999
_TIMEOUT_NAME: Final = header_blocks.encode_name("grpc-timeout")
FIRST_HOP_FIELD: Final = header_blocks.encode_block((HOPS_HEADER, FIRST_HOP))
"""The encoded hop header of a call that has passed no other gateway."""
_MAX_MILLISECOND_TIMEOUT: Final = _MAX_TIMEOUT_VALUE // 1000  # seconds
_CONTENT_TYPE: Final = "application/grpc"
_CONTENT_TYPE_PREFIXES: Final = ("application/grpc+", "application/grpc;")
_UNESCAPED: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
"""Characters that are not percent-encoded in grpc-message."""
_MAX_DETAILS: Final = 4096
_ONE_BYTE: Final = [bytes((number,)) for number in range(MAX_PREFIX_LENGTH)]
"""The encoded lengths of short values."""
_CACHED_NAMES: Final = 256
_MAX_CACHED_NAME: Final = 64  # characters of a cached name
_HTTP_STATUS_TEXT: Final = "Received http2 header with status: "


def overload_code(overload: GatewayError) -> int:
    """Return the status code for a request that exceeds the gateway's capacity."""
    return RESOURCE_EXHAUSTED if overload.limit == IN_FLIGHT_BYTES else UNAVAILABLE


def is_abandoned(code: int, details: str) -> bool:
    """Return whether a server's status reports only that the call was cancelled. grpc-core sends
    such a status for calls that are open when the server stops."""
    return code == CANCELLED and details in _NO_REASON


@mypyc_attr(native_class=False)
class RequestHeaders:
    """The parsed headers of a request. If the headers do not permit a call, `refusal` holds the
    gRPC code and message, and `status` holds the HTTP status. `limit` holds the name of the
    exceeded limit, or an empty string."""

    __slots__ = ("encoding", "headers", "limit", "method", "refusal", "status", "timeout")

    def __init__(
        self, method: str, headers: Mapping[str, str], timeout: float | None, encoding: str
    ) -> None:
        self.method: Final = method
        self.headers: Final = headers
        self.timeout: Final = timeout
        self.encoding: Final = encoding
        self.status = 200
        self.limit = ""
        self.refusal: tuple[int, str] | None = None


def interpret_request(block: HeaderBlock, limits: Limits) -> RequestHeaders:
    """Parse the headers of the request `block`, and cache the result in the block."""
    request: RequestHeaders | None = None
    template = block.template
    if template is not None and block.size <= limits.headers:
        base: RequestHeaders = template.interpretation or interpret_request(template, limits)
        if base.refusal is None:
            request = _with_values(base, block.changed)
    if request is None:
        request = _read_request(block, limits)
    block.interpretation = request
    return request


def _with_values(request: RequestHeaders, changed: Sequence[tuple[str, str]]) -> RequestHeaders:
    """Return a copy of `request`, which has no refusal, with the `changed` values."""
    headers, timeout, encoding = dict(request.headers), request.timeout, request.encoding
    for name, value in changed:
        if name in headers:
            is_binary = name.endswith(grpc_metadata.BINARY_SUFFIX)
            headers[name] = grpc_metadata.binary_text(value) if is_binary else value
        elif name == "grpc-timeout":
            timeout = read_timeout(value)
        elif name == "grpc-encoding":
            encoding = value
    return RequestHeaders(request.method, headers, timeout, encoding)


def _read_request(block: HeaderBlock, limits: Limits) -> RequestHeaders:
    values = dict(block.pairs)
    request = RequestHeaders(
        block.pseudo[":path"],
        grpc_metadata.from_wire(block.pairs),
        read_timeout(values.get("grpc-timeout", "")),
        values.get("grpc-encoding", ""),
    )
    if block.size > limits.headers:
        request.limit = "headers"
        request.refusal = (
            RESOURCE_EXHAUSTED,
            f"the metadata is over the limit of {limits.headers} bytes",
        )
    elif len(block.pairs) > limits.header_count:
        request.limit = "header_count"
        request.refusal = (
            RESOURCE_EXHAUSTED,
            f"the metadata has more than {limits.header_count} entries",
        )
    elif not is_grpc(values.get("content-type", "")):
        request.status, request.refusal = 415, (UNKNOWN, "the content-type is not application/grpc")
    elif block.pseudo[":method"] != "POST":
        request.status, request.refusal = 405, (INTERNAL, "gRPC requests use POST")
    elif "te" not in values:
        request.status, request.refusal = 400, (INTERNAL, "the header te: trailers is missing")
    return request


def is_grpc(content_type: str) -> bool:
    """Return whether `content_type` is a gRPC content type."""
    return content_type == _CONTENT_TYPE or content_type.startswith(_CONTENT_TYPE_PREFIXES)


def read_timeout(value: str) -> float | None:
    """Parse a grpc-timeout value. Return the timeout in seconds, or None if the value is
    invalid."""
    match = _TIMEOUT.fullmatch(value)
    return int(match[1]) * _SECONDS[match[2]] if match else None


def write_timeout(seconds: float) -> str:
    """Format seconds as a grpc-timeout value, rounded up to microseconds, milliseconds or seconds.
    The coarse rounding gives most calls of a route the same value, which receivers can cache."""
    unit = "u" if seconds < 1 else "m" if seconds < _MAX_MILLISECOND_TIMEOUT else "S"
    return f"{min(math.ceil(max(0.0, seconds) / _SECONDS[unit]), _MAX_TIMEOUT_VALUE)}{unit}"


# ---- responses

RESPONSE_HEADERS: Final = header_blocks.encode_block(
    (":status", "200"),
    ("content-type", _CONTENT_TYPE),
    ("grpc-accept-encoding", ACCEPTED_ENCODINGS),
)
"""The header block that starts every response except a Trailers-Only response."""
OK_TRAILERS: Final = header_blocks.encode_block(("grpc-status", "0"))


def encode_trailers(code: int, details: str, metadata: Mapping[str, str]) -> bytes:
    """Return the header block of a response's trailers."""
    if not code and not metadata:
        return OK_TRAILERS
    pairs = [("grpc-status", str(code if code in _CODES else UNKNOWN))]
    if details:
        pairs.append(("grpc-message", _percent_encoded(details[:_MAX_DETAILS])))
    return header_blocks.encode_block(*pairs) + encode_metadata(metadata)


def _percent_encoded(details: str) -> str:
    """Percent-encode a status message, including leading and trailing spaces, which HTTP/2
    forbids."""
    text = quote(details, safe=_UNESCAPED, errors="replace")
    stripped = text.strip(" ")
    leading = len(text) - len(text.lstrip(" "))
    return "%20" * leading + stripped + "%20" * (len(text) - leading - len(stripped))


def encode_trailers_only(
    status: int, code: int, details: str, metadata: Mapping[str, str]
) -> bytes:
    """Return the header block of a Trailers-Only response."""
    head = header_blocks.encode_block((":status", str(status)), ("content-type", _CONTENT_TYPE))
    return head + encode_trailers(code, details, metadata)


# ---- requests to backends, and their responses


class ResponseHeaders:
    """The parsed headers or trailers of a response. `status` is the HTTP status, or 0 for trailers.
    `code` is the grpc-status. If grpc-status is missing and `status` is neither 0 nor 200, `code`
    is the gRPC code for the HTTP status. Otherwise, a missing or malformed grpc-status gives None.
    An undefined code becomes UNKNOWN. `is_abandoned` is the result of the function of that name."""

    __slots__ = ("code", "details", "encoding", "is_abandoned", "is_grpc", "metadata", "status")

    def __init__(self, block: HeaderBlock) -> None:
        values = dict(block.pairs)
        self.status: Final = block.status or 0
        self.is_grpc: Final = self.status == 200 and is_grpc(values.get("content-type", ""))
        self.encoding: Final = values.get("grpc-encoding", "")
        self.code: Final = self._code(values.get("grpc-status"))
        if values.get("grpc-status") is None and self.status and self.status != 200:
            self.details = f"{_HTTP_STATUS_TEXT}{self.status}"
        else:
            self.details = unquote(values.get("grpc-message", ""))
        self.is_abandoned: Final = self.code is not None and is_abandoned(self.code, self.details)
        self.metadata: Final = grpc_metadata.from_wire(block.pairs)

    def _code(self, status: str | None) -> int | None:
        if status is None:
            if self.status in {0, 200}:
                return None
            return _CODES_OF_HTTP.get(self.status, UNKNOWN)
        if not status.isascii() or not status.isdecimal() or len(status) > 9:
            return None
        return int(status) if int(status) in _CODES else UNKNOWN


def request_prefix(method: str, authority: str, scheme: str, agent: str) -> bytes:
    """Return the start of a request's header block, without the hop header. All calls of a method
    share this start."""
    return header_blocks.encode_block(
        (":method", "POST"),
        (":scheme", scheme),
        (":path", method),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", _CONTENT_TYPE),
        ("grpc-accept-encoding", ACCEPTED_ENCODINGS),
        ("user-agent", agent),
    )


def request_suffix(timeout: float | None, metadata: Mapping[str, str]) -> bytes:
    """Return the end of a request's header block, with the timeout and the metadata."""
    if timeout is None:
        block = b""
    elif 1 <= timeout < _MAX_MILLISECOND_TIMEOUT:
        text = b"%dm" % math.ceil(timeout / 1e-3)
        block = _TIMEOUT_NAME + _ONE_BYTE[len(text)] + text
    else:
        block = header_blocks.encode_field("grpc-timeout", write_timeout(timeout))
    return block + encode_metadata(metadata) if metadata else block


def encode_metadata(entries: Mapping[str, str]) -> bytes:
    """Encode `entries` as fields with cached names. `metadata.to_wire` converts binary entries,
    entries with long names, and values that are not printable ASCII."""
    block = b""
    for name, value in entries.items():
        start = _encoded_name(name) if len(name) <= _MAX_CACHED_NAME else b""
        if start and value.isascii() and value.isprintable():
            text = value.strip(" ").encode("ascii")
            size = len(text)
            if size < MAX_PREFIX_LENGTH:
                block += start + _ONE_BYTE[size] + text
            else:
                block += start + header_blocks.encode_value(value.strip(" "))
        else:
            block += header_blocks.encode_block(*grpc_metadata.to_wire({name: value}))
    return block


@functools.lru_cache(_CACHED_NAMES)
def _encoded_name(name: str) -> bytes:
    """Return the encoded name of a text metadata entry, or empty bytes for any other name."""
    return header_blocks.encode_name(name) if grpc_metadata.is_text(name) else b""
