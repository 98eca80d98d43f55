"""Heads of HTTP/1 messages (RFC 9110 and 9112): validation, errors and serialization. This module
has no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Final

from infergate.core.bounded_cache import BoundedCache
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import Limits
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpResponse

HOP_BY_HOP: Final[frozenset[str]] = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "content-length",
    }
)
"""Hop-by-hop fields (RFC 9110, 7.6.1) and Content-Length, which the transports write themselves."""

_TRANSPORT_FIELDS: Final = HOP_BY_HOP | {"host", "user-agent", "accept-encoding", "expect"}
"""Request fields that the transport to a backend writes itself or omits."""

_TARGET = re.compile("[\x21-\x7e]+")
_HOST = re.compile(r"(?:\[[0-9A-Za-z:.%]+\]|[0-9A-Za-z._~!$&'()*+,;=%-]*)(?::[0-9]*)?")
"""A host name or address with an optional port (RFC 3986, 3.2.2 and 3.2.3)."""
_NAME = re.compile("[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PLAIN = re.compile("[\t\x20-\x7e]*")
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f]")
"""Characters forbidden in field values (RFC 9110, 5.5). CR and LF would start a new field."""
_DIGITS = re.compile(rb"[0-9]{1,18}")
_BODILESS: Final = frozenset({204, 304})
_WITHOUT_LENGTH: Final = frozenset({"GET", "HEAD"})
_MAX_VALID_NAMES: Final = 256
_MAX_VALID_NAME_CHARS: Final = 64
_valid_names: Final = BoundedCache[str, None](_MAX_VALID_NAMES)
"""Cached valid field names. Nearly all heads have the same names."""
_status_lines: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus
}
JOIN_BELOW: Final = 64 * 1024
"""Consecutive parts with a total size below this limit are joined. Copying them into one buffer is
cheaper than a system call for each part."""


class HeadError(GatewayError):
    """The error for a request whose head or framing is invalid, or that arrived too slowly.
    ``status`` is the HTTP status of the response; no ``Kind`` is mapped to 408, 414, 431 or 505."""

    def __init__(
        self, status: int, public: str, kind: Kind = Kind.BAD_REQUEST, *, limit: str = ""
    ) -> None:
        super().__init__(kind, public, limit=limit)
        self.status = status


def head_error(head: bytes, limits: Limits) -> HeadError:
    """Return the error for a request head that the parser rejected. The head may be incomplete."""
    line, _, fields = head.partition(b"\r\n\r\n")[0].partition(b"\r\n")
    if len(line) > limits.headers:
        return uri_too_long(limits)
    if len(fields) > limits.headers:
        return headers_too_large(limits)
    if fields.count(b"\r\n") >= limits.header_count:
        return too_many_headers(limits)
    return not_http()


def not_http() -> HeadError:
    """Return the error for bytes that are not an HTTP request."""
    return HeadError(400, "the request is not valid HTTP/1.1")


def uri_too_long(limits: Limits) -> HeadError:
    """Return the error for a request line that exceeds its limit."""
    public = f"the request line is over the limit of {limits.headers} bytes"
    return HeadError(414, public, limit="headers")


def headers_too_large(limits: Limits) -> HeadError:
    """Return the error for header lines that exceed their limit in bytes."""
    public = f"the headers are over the limit of {limits.headers} bytes"
    return HeadError(431, public, limit="headers")


def too_many_headers(limits: Limits) -> HeadError:
    """Return the error for too many header lines."""
    public = f"the request has more than {limits.header_count} header lines"
    return HeadError(431, public, limit="header_count")


def timed_out(limit: str) -> HeadError:
    """Return the error for a request that arrived too slowly for ``limit``."""
    return HeadError(408, "the request did not arrive in time", Kind.TIMEOUT, limit=limit)


def body_too_large(size: int, limits: Limits) -> GatewayError:
    """Return the error for a body of at least ``size`` bytes."""
    public = f"the request body has {size} bytes or more; the limit is {limits.body}"
    return GatewayError(Kind.TOO_LARGE, public, limit="body")


def check_head(
    method: str, target: str, version: tuple[int, ...], headers: Mapping[str, str], limits: Limits
) -> None:
    """Validate a request head; ``headers`` are from ``merge_headers``. Raises GatewayError."""
    if len(target) > limits.headers:
        raise uri_too_long(limits)
    if version < (1, 0):
        raise HeadError(400, "HTTP/0.9 is not supported; use HTTP/1.1 or HTTP/1.0")
    if version > (1, 1):
        public = "unsupported HTTP version; use HTTP/1.1 or HTTP/1.0"
        raise HeadError(505, public, Kind.UNSUPPORTED)
    if not is_host(headers.get("host", "")):
        raise HeadError(400, "the Host header is not a valid host")
    if method == "CONNECT":
        raise GatewayError(Kind.METHOD_NOT_ALLOWED, "the method CONNECT is not supported")
    if not target.isascii():
        raise HeadError(400, "the request target is not ASCII")
    announced = int(headers.get("content-length", 0))
    if announced > limits.body:
        raise body_too_large(announced, limits)
    codings = headers.get("transfer-encoding")
    if codings is not None:
        if version == (1, 0):  # the end of the body is uncertain (RFC 9112, 6.1)
            raise HeadError(400, "HTTP/1.0 does not support Transfer-Encoding")
        check_codings(codings)


def check_fields(fields: Sequence[tuple[bytes, bytes]], limits: Limits) -> None:
    """Check the number and the total size of header lines. The size includes ``": "`` and CRLF.
    Raises HeadError."""
    if len(fields) > limits.header_count:
        raise too_many_headers(limits)
    if sum([len(name) + len(value) + 4 for name, value in fields]) > limits.headers:
        raise headers_too_large(limits)


def is_host(value: str) -> bool:
    """Return whether ``value`` is valid in a Host field (RFC 9112, 3.2). ``value`` may be empty."""
    return _HOST.fullmatch(value) is not None


def check_codings(value: str) -> None:
    """Reject any Transfer-Encoding other than ``chunked`` (RFC 9112, 6.1). Raises HeadError."""
    codings = [coding.strip().lower() for coding in value.split(",")]
    unknown = [coding for coding in codings if coding not in {"", "chunked"}]
    if unknown:
        public = f"unsupported transfer coding {unknown[0]!r}; use chunked"
        raise HeadError(501, public, Kind.UNSUPPORTED)
    if codings.count("chunked") > 1:
        raise HeadError(400, "Transfer-Encoding contains chunked twice")


def drop_content_length(data: bytes) -> bytes:
    """Remove Content-Length from a head that also has ``Transfer-Encoding: chunked``, and add
    ``Connection: close`` (RFC 9112, 6.1 and 6.3). Return any other ``data`` unchanged."""
    head, end, rest = data.partition(b"\r\n\r\n")
    line, *fields = head.split(b"\r\n")
    if not line.endswith(b" HTTP/1.1") or any(field[:1] in {b" ", b"\t"} for field in fields):
        return data
    pairs = [
        (name.lower(), value.strip(b" \t").lower())
        for name, _, value in (f.partition(b":") for f in fields)
    ]
    codings = [value for name, value in pairs if name == b"transfer-encoding"]
    lengths = [value for name, value in pairs if name == b"content-length"]
    if codings != [b"chunked"] or len(lengths) != 1 or _DIGITS.fullmatch(lengths[0]) is None:
        return data
    kept = [
        field for field, (name, _) in zip(fields, pairs, strict=True) if name != b"content-length"
    ]
    return b"\r\n".join([line, *kept, b"Connection: close"]) + end + rest


def merge_headers(items: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return header lines as a mapping with lower-case names. The values of a repeated name are
    joined. A value that is not UTF-8 is decoded as Latin-1, so that it can be written to a log or a
    socket."""
    headers: dict[str, str] = {}
    for name, value in items:
        key = name.lower()
        text = value if value.isascii() else _without_surrogates(value)
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


def _without_surrogates(value: str) -> str:
    raw = value.encode("utf-8", "surrogateescape")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def response_head(response: HttpResponse, length: int | None, extra: str, date: bytes) -> bytes:
    """Return the head of ``response``. ``length`` is the length of the body in bytes, or None if it
    is unknown. ``extra`` and ``date`` are complete lines. Raises ValueError for a reason or
    field that would break the message framing."""
    status, reason = response.status, response.reason
    line = _status_lines.get(status)
    if reason or line is None:
        if _PLAIN.fullmatch(reason) is None:
            raise ValueError("the reason contains a character that HTTP does not allow")
        line = f"HTTP/1.1 {status} {reason}\r\n"
    lines = _field_lines(line, response.headers, HOP_BY_HOP) + extra
    if length is None or status in _BODILESS:
        return b"%b%b\r\n" % (lines.encode("latin-1"), date)
    return b"%b%bcontent-length: %d\r\n\r\n" % (lines.encode("latin-1"), date, length)


def request_head(
    method: str, target: str, headers: Mapping[str, str], length: int, own_lines: str
) -> bytes:
    """Return the head of a request. ``own_lines`` include Host and User-Agent. Raises ValueError
    for a target or field that would break the message framing."""
    if _TARGET.fullmatch(target) is None:
        raise ValueError("the request target contains a character that HTTP does not allow")
    line = f"{method} {target} HTTP/1.1\r\n{own_lines}"
    lines = _field_lines(line, headers, _TRANSPORT_FIELDS)
    if length or method not in _WITHOUT_LENGTH:
        lines += f"content-length: {length}\r\n"
    return f"{lines}\r\n".encode("latin-1")


def _field_lines(lines: str, headers: Mapping[str, str], omitted: frozenset[str]) -> str:
    """Return ``lines`` followed by the fields of ``headers``, except the fields in ``omitted``."""
    for name, value in headers.items():
        if name in omitted:
            continue
        # Most values need no regular expression. Checking them is as fast as looking up the
        # complete head in a cache.
        if name not in _valid_names or not (value.isascii() and value.isprintable()):
            value = _field_value(name, value)  # noqa: PLW2901
        lines += f"{name}: {value}\r\n"
    return lines


def _field_value(name: str, value: str) -> str:
    if _CONTROL.search(value) or _NAME.fullmatch(name) is None:
        raise ValueError(f"header {name!r} contains a character that HTTP does not allow")
    if len(name) <= _MAX_VALID_NAME_CHARS:
        _valid_names[name] = None
    return value.encode("utf-8").decode("latin-1")


def has_body(method: str, status: int) -> bool:
    """Return whether a response may have a body (RFC 9110, 6.4.1)."""
    return method != "HEAD" and status not in _BODILESS and status >= 200


def join_small(head: bytes, parts: Iterable[Buffer]) -> list[Buffer]:
    """Join ``head`` and ``parts`` into a few buffers. Parts are copied only up to ``JOIN_BELOW``
    bytes per buffer."""
    buffers: list[Buffer] = []
    small: list[Buffer] = [head]
    pending = len(head)
    for part in parts:
        if not part:
            continue
        if pending + len(part) < JOIN_BELOW:
            small.append(part)
            pending += len(part)
            continue
        if small:
            buffers.append(b"".join(small))
            small, pending = [], 0
        buffers.append(part)
    if small:
        buffers.append(small[0] if len(small) == 1 else b"".join(small))
    return buffers
