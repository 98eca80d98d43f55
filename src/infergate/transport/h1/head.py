"""What the head of a request says, read by ``httptools`` (llhttp, strict) and checked by us.

*Strategy.* Clients send the same head over and over. What one says follows from its bytes alone, so
it is remembered with them. Each connection remembers for itself: nobody meets what another sent.

*Rule 1.* The parser is given a whole head and nothing else. Where a body ends is never its matter.
*Rule 2.* Only a head that passed every check is remembered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Generic, TypeVar

import httptools

from infergate.core.errors import GatewayError
from infergate.core.limits import KIB, Limits
from infergate.transport import http_head

REMEMBERED: Final = 64 * KIB
"""What the remembered heads of a connection may take, nearly."""
_PER_FIELD: Final = 256
"""What a header line costs beside its bytes: two strings, and its place in a mapping."""

_AROUND_TARGET: Final = 32
"""The longest method, a version and two blanks have less."""
_ONCE: Final = frozenset(
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
"""Fields with one value (aiohttp's list). Where one comes twice, readers may choose differently."""
_VERSIONS: Final = {"1.1": (1, 1), "1.0": (1, 0)}
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]+)(/[^?#]*)?(?:\?([^#]*))?(?:#.*)?")


class Head:
    """``headers`` are lower-case, ``length`` is what Content-Length says, 0 without. ``keep``: the
    client wants to go on after it; ``old``: HTTP/1.0; ``waits``: the body comes when the client is
    told to send it (RFC 9110, 10.1.1).

    ``wrong`` is what it is refused for, though it could be read.
    """

    __slots__ = (
        "chunked",
        "headers",
        "keep",
        "length",
        "method",
        "old",
        "path",
        "query",
        "waits",
        "wrong",
    )

    def __init__(self, raw: bytes, limits: Limits) -> None:
        """Of ``raw``, which ends with the empty line. Raises HeadError where it is none."""
        check_size(raw[:-4], limits)
        lines = raw.count(b"\r\n") - 2
        if lines > limits.header_count:
            raise http_head.too_many_headers(limits)
        found = Found()
        parser = httptools.HttpRequestParser(found)
        try:
            parser.feed_data(raw)
        except httptools.HttpParserUpgrade:
            pass  # all of the head was read; to what it would upgrade is not served here
        except httptools.HttpParserError:
            raise http_head.not_http() from None
        method, version = parser.get_method(), parser.get_http_version()
        line = b"%b %b HTTP/%b\r\n" % (method, found.target, version.encode("ascii"))
        headers = found.headers
        if (
            not raw.startswith(line)  # llhttp reads RTSP and more blanks, too
            or method == b"PRI"  # HTTP/2, begun without asking
            or found.lines != lines
            or found.doubtful
            or ("host" not in headers and version == "1.1")
        ):
            raise http_head.not_http()
        self.method = method.decode("ascii")
        self.headers = headers
        self.length = int(headers.get("content-length", 0))
        self.chunked = "transfer-encoding" in headers  # llhttp: the last of them is chunked
        self.old = version == "1.0"
        self.keep = keeps(headers, old=self.old)
        self.waits = not self.old and headers.get("expect", "").lower() == "100-continue"
        target = found.target.decode("latin-1")
        self.path, _, self.query = target.partition("?")
        self.wrong: GatewayError | None = None
        try:
            if found.size > limits.headers:
                raise http_head.headers_too_large(limits)
            http_head.check(self.method, target, _version(version), headers, limits)
            if not target.startswith("/"):
                self._place(target)
        except GatewayError as error:
            self.wrong = error

    def _place(self, target: str) -> None:
        """RFC 9112, 3.2: the other forms of a target."""
        if target == "*" and self.method == "OPTIONS":
            return
        form = _ABSOLUTE.fullmatch(target)
        if form is None or not http_head.is_host(form[1]):
            raise http_head.not_http()
        self.path, self.query = form[2] or "/", form[3] or ""
        self.headers["host"] = form[1]  # the Host field is ignored (3.2.2)


def _version(told: str) -> tuple[int, ...]:
    return _VERSIONS.get(told) or tuple(map(int, told.split(".")))


def keeps(headers: Mapping[str, str], *, old: bool) -> bool:
    """Whether the client goes on as before (RFC 9112, 9.3). Nothing is upgraded here, so one that
    asks for that is answered, and no more."""
    connection = headers.get("connection")
    if connection is None:
        return not old
    options = {option.strip().lower() for option in connection.split(",")}
    if "close" in options or ("upgrade" in options and "upgrade" in headers):
        return False
    return not old or "keep-alive" in options


class Found:
    """What the parser tells. ``headers`` are as :func:`http_head.lowered` makes them, ``size`` as
    :func:`http_head.check_fields` counts; ``doubtful``: one came twice of which one is allowed."""

    __slots__ = ("doubtful", "headers", "lines", "size", "target")

    def __init__(self) -> None:
        self.target = b""
        self.headers: dict[str, str] = {}
        self.lines = 0
        self.size = 0
        self.doubtful = False

    def on_url(self, target: bytes) -> None:
        """The parser found the target, or a part of it."""
        self.target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        """The parser found a line."""
        value = value.rstrip(b" \t")
        key = name.decode("ascii").lower()
        try:
            text = value.decode("utf-8")
        except UnicodeDecodeError:
            text = value.decode("latin-1")
        headers = self.headers
        if key in headers:
            self.doubtful |= key in _ONCE
            text = f"{headers[key]}, {text}"
        headers[key] = text
        self.lines += 1
        self.size += len(name) + len(value) + 4


Meaning = TypeVar("Meaning")


class Known(Generic[Meaning]):
    """What heads mean, by their bytes; bounded."""

    __slots__ = ("_known", "_weight")

    def __init__(self) -> None:
        self._known: dict[bytes, Meaning] = {}
        self._weight = 0

    def get(self, raw: bytes) -> Meaning | None:
        """What ``raw`` means, if that is known."""
        return self._known.get(raw)

    def learn(self, raw: bytes, meaning: Meaning, headers: Mapping[str, str]) -> None:
        """``raw``, which has ``headers``, means ``meaning``."""
        weight = 2 * len(raw) + _PER_FIELD * (1 + len(headers))
        if self._weight + weight > REMEMBERED:
            self._known.clear()
            self._weight = 0
        if weight <= REMEMBERED:
            self._known[raw] = meaning
            self._weight += weight


class Heads:
    """Reads the heads of one connection."""

    __slots__ = ("_known", "_limits")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._known: Known[Head] = Known()

    def read(self, raw: bytes) -> Head:
        """What ``raw`` says, which ends with the empty line. Raises HeadError."""
        known = self._known.get(raw)
        if known is not None:
            return known
        head = Head(raw, self._limits)
        if head.wrong is None:
            self._known.learn(raw, head, head.headers)
        return head


def check_size(begun: bytes, limits: Limits) -> None:
    """Raises HeadError where a head that begins so, and may be complete, is too large."""
    if len(begun) <= limits.headers:
        return
    line, _, fields = begun.partition(b"\r\n")
    if len(line) > limits.headers + _AROUND_TARGET:
        raise http_head.uri_too_long(limits)
    if len(fields) > limits.headers:
        raise http_head.headers_too_large(limits)


class Judge:
    """Tells of a head that comes in pieces whether it can still become one."""

    __slots__ = ("_parser", "_seen")

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(object())
        self._seen = 0

    def allows(self, begun: bytes) -> bool:
        """Whether ``begun``, which is longer each time, may be the beginning of a head."""
        try:
            self._parser.feed_data(begun[self._seen :])
        except httptools.HttpParserError:
            return False
        self._seen = len(begun)
        return True
