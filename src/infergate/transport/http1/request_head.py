"""Parses request heads with ``httptools`` (llhttp, strict), and applies further checks.

The parser receives a complete head and nothing else, so it never decides where a body ends. Clients
often send the same head again, so each connection caches the heads that passed every check.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypeVar

import httptools

from infergate.core.bounded_cache import WeightedCache
from infergate.core.errors import GatewayError
from infergate.core.limits import KIB, Limits
from infergate.transport.http1 import message_head

MAX_CACHE_BYTES: Final = 64 * KIB
"""Approximate maximum size of a connection's cached heads, in bytes."""
_BYTES_PER_FIELD: Final = 256
"""Cost of a header line in addition to its bytes: two strings and a dict entry."""

MAX_TEMPLATE_BYTES: Final = 16 * KIB
"""Maximum size of a template, calculated like the size of a cached head."""
_FIXED_FIELDS: Final = message_head.HOP_BY_HOP | {"host", "expect"}
"""Fields that affect the transport. A head in which one of these fields differs from the template
is always parsed."""

_REQUEST_LINE_EXTRA: Final = 32
"""Maximum number of bytes of the method, the version and two spaces in a request line."""
_SINGLE_VALUED: Final = frozenset(
    {
        "content-length",
        "content-location",
        "content-range",
        "content-type",
        "etag",
        "host",
        "max-forwards",
        "server",
        "transfer-encoding",
        "user-agent",
    }
)
"""Fields with a single value (aiohttp's list). Implementations interpret repeated fields
differently."""
_VERSIONS: Final = {"1.1": (1, 1), "1.0": (1, 0)}
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]+)(/[^?#]*)?(?:\?([^#]*))?(?:#.*)?")


class HttpRequestHead:
    """A parsed request head. ``headers`` have lower-case names; ``length`` is 0 without
    Content-Length. ``keep_alive`` means that the client wants to keep the connection.
    ``expects_continue`` means that the client waits for 100 Continue (RFC 9110, 10.1.1). ``error``
    is set if the head is well-formed but the request must be rejected."""

    __slots__ = (
        "error",
        "expects_continue",
        "headers",
        "is_chunked",
        "is_http10",
        "keep_alive",
        "length",
        "method",
        "path",
        "query",
    )

    def __init__(  # noqa: PLR0913 - the parts of a head
        self,
        method: str,
        path: str,
        query: str,
        headers: dict[str, str],
        *,
        is_http10: bool,
        error: GatewayError | None = None,
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.length = int(headers.get("content-length", 0))
        self.is_chunked = "transfer-encoding" in headers  # llhttp checks that chunked is last
        self.is_http10 = is_http10
        self.keep_alive = keeps_alive(headers, is_http10=is_http10)
        self.expects_continue = (
            not is_http10 and headers.get("expect", "").lower() == "100-continue"
        )
        self.error = error


def _parse(raw: bytes, limits: Limits) -> HttpRequestHead:
    """Parse ``raw``, which ends with the empty line. Raises HeadError."""
    check_size(raw[:-4], limits)
    lines = raw.count(b"\r\n") - 2
    if lines > limits.header_count:
        raise message_head.too_many_headers(limits)
    fields = HeadFields()
    parser = httptools.HttpRequestParser(fields)
    try:
        parser.feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # the complete head was read; upgrades are not supported
    except httptools.HttpParserError:
        raise message_head.not_http() from None
    method, version = parser.get_method(), parser.get_http_version()
    line = b"%b %b HTTP/%b\r\n" % (method, fields.target, version.encode("ascii"))
    headers = fields.headers
    if (
        not raw.startswith(line)  # llhttp also accepts RTSP and extra spaces
        or method == b"PRI"  # the HTTP/2 preface
        or fields.lines != lines
        or fields.has_repeated
        or ("host" not in headers and version == "1.1")
    ):
        raise message_head.not_http()
    target = fields.target.decode("latin-1")
    path, _, query = target.partition("?")
    failure: GatewayError | None = None
    try:
        if fields.size > limits.headers:
            raise message_head.headers_too_large(limits)
        numbers = _VERSIONS.get(version) or tuple(map(int, version.split(".")))
        message_head.check_head(method.decode("ascii"), target, numbers, headers, limits)
        if not target.startswith("/"):
            path, query = _parse_target(method, target, headers)
    except GatewayError as error:
        failure = error
    return HttpRequestHead(
        method.decode("ascii"), path, query, headers, is_http10=version == "1.0", error=failure
    )


def _parse_target(method: bytes, target: str, headers: dict[str, str]) -> tuple[str, str]:
    """Return the path and the query of a target in absolute or asterisk form (RFC 9112, 3.2), and
    set the Host field to the host of an absolute form."""
    if target == "*" and method == b"OPTIONS":
        return target, ""
    parts = _ABSOLUTE.fullmatch(target)
    if parts is None or not message_head.is_host(parts[1]):
        raise message_head.not_http()
    headers["host"] = parts[1]  # the Host header is ignored (3.2.2)
    return parts[2] or "/", parts[3] or ""


def keeps_alive(headers: Mapping[str, str], *, is_http10: bool) -> bool:
    """Return whether the sender of ``headers`` wants to keep the connection (RFC 9112, 9.3), and
    requests no upgrade."""
    connection = headers.get("connection")
    if connection is None:
        return not is_http10
    options = {option.strip().lower() for option in connection.split(",")}
    if "close" in options or ("upgrade" in options and "upgrade" in headers):
        return False
    return not is_http10 or "keep-alive" in options


class HeadFields:
    """Collects the fields that the parser's callbacks report. ``headers`` has the form that
    ``message_head.merge_headers`` returns. ``has_repeated`` means that a single-valued field is
    repeated."""

    __slots__ = ("has_repeated", "headers", "lines", "size", "target")

    def __init__(self) -> None:
        self.target = b""
        self.headers: dict[str, str] = {}
        self.lines = 0
        self.size = 0
        self.has_repeated = False

    def on_url(self, target: bytes) -> None:
        self.target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        value = value.rstrip(b" \t")
        key = name.decode("ascii").lower()
        try:
            text = value.decode("utf-8")
        except UnicodeDecodeError:
            text = value.decode("latin-1")
        headers = self.headers
        if key in headers:
            self.has_repeated |= key in _SINGLE_VALUED
            text = f"{headers[key]}, {text}"
        headers[key] = text
        self.lines += 1
        self.size += len(name) + len(value) + 4


ParsedT = TypeVar("ParsedT")


class HeadCache(WeightedCache[bytes, ParsedT]):
    """A cache of the parsed heads of one connection, keyed by their bytes.

    The head added last is also a template for heads that differ from it only in plain values:
    printable ASCII in fields that do not affect the transport, such as a request id, a
    ``traceparent`` or the NV-Status of a legacy server. Such heads are not cached, because each has
    different values."""

    def __init__(self) -> None:
        super().__init__(MAX_CACHE_BYTES // _BYTES_PER_FIELD, MAX_CACHE_BYTES)
        self.template: ParsedT | None = None
        """The parsed form of the head added last, or None if heads are not compared with it."""
        self._headers: Mapping[str, str] = {}
        self._lines: list[bytes] = []
        self._names: list[tuple[bytes, str]] = []
        """Two forms of each line's field name: with the colon, and in lower case. Both forms are
        empty for a line in which heads must not differ."""

    def add_head(self, raw: bytes, parsed: ParsedT, headers: Mapping[str, str]) -> None:
        """Cache ``parsed``, the parsed form of ``raw`` with ``headers``."""
        weight = 2 * len(raw) + _BYTES_PER_FIELD * (1 + len(headers))
        self.add(raw, parsed, weight)
        self.template = None
        lines = raw.split(b"\r\n")
        if weight > MAX_TEMPLATE_BYTES or len(lines) != len(headers) + 3:
            return  # a repeated field has one value for several lines
        self.template, self._headers, self._lines = parsed, headers, lines
        self._names = [(b"", "")] * len(lines)
        for index, line in enumerate(lines[1:-2], 1):
            name = line.partition(b":")[0]
            key = name.decode("ascii").lower()
            if key not in _FIXED_FIELDS:
                self._names[index] = b"%b:" % name, key

    def similar_headers(self, raw: bytes) -> dict[str, str] | None:
        """Return the headers of ``raw``, or None if ``raw`` differs from the template in more
        than plain values."""
        template_lines = self._lines
        lines = raw.split(b"\r\n")
        if self.template is None or len(lines) != len(template_lines):
            return None
        headers = {**self._headers}
        for index, line in enumerate(lines):
            if line == template_lines[index]:
                continue
            prefix, key = self._names[index]
            if not key or not line.startswith(prefix) or not line.isascii():
                return None
            value = line[len(prefix) :].decode("ascii").strip(" ")
            if not value or not value.isprintable():
                return None
            headers[key] = value
        return headers


class RequestHeadParser:
    """Parses the request heads of one connection."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._cache: HeadCache[HttpRequestHead] = HeadCache()

    def read(self, raw: bytes) -> HttpRequestHead:
        """Parse ``raw``, which ends with the empty line. Raises HeadError."""
        cached = self._cache.get(raw)
        if cached is not None:
            return cached
        template = self._cache.template
        if template is not None and len(raw) <= self._limits.headers:
            headers = self._cache.similar_headers(raw)
            if headers is not None:
                return HttpRequestHead(
                    template.method,
                    template.path,
                    template.query,
                    headers,
                    is_http10=template.is_http10,
                )
        head = _parse(raw, self._limits)
        if head.error is None:
            self._cache.add_head(raw, head, head.headers)
        return head


def check_size(received: bytes, limits: Limits) -> None:
    """Raise HeadError if a complete or partial head is too large."""
    if len(received) <= limits.headers:
        return
    line, _, fields = received.partition(b"\r\n")
    if len(line) > limits.headers + _REQUEST_LINE_EXTRA:
        raise message_head.uri_too_long(limits)
    if len(fields) > limits.headers:
        raise message_head.headers_too_large(limits)


class PartialHeadChecker:
    """Checks whether an incomplete head can still become valid."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(object())
        self._parsed_bytes = 0

    def allows(self, received: bytes) -> bool:
        """Return whether ``received`` may be the start of a head. ``received`` must begin with the
        bytes of the previous call."""
        try:
            self._parser.feed_data(received[self._parsed_bytes :])
        except httptools.HttpParserError:
            return False
        self._parsed_bytes = len(received)
        return True
