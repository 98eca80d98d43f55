"""gRPC's calls in the headers of a stream, both ways.

Source: gRPC over HTTP/2 (PROTOCOL-HTTP2.md) and "HTTP to gRPC Status Code Mapping". What it leaves
open is as grpc-core does: a timeout that cannot be read sets no deadline.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote

from infergate.core.errors import GatewayError
from infergate.core.limits import Limits
from infergate.core.memory import IN_FLIGHT_BYTES
from infergate.transport import grpc_metadata
from infergate.transport.h2 import fields
from infergate.transport.h2.fields import Fields
from infergate.transport.h2.messages import ACCEPTED

OK: Final = 0
CANCELLED: Final = 1
UNKNOWN: Final = 2
DEADLINE_EXCEEDED: Final = 4
RESOURCE_EXHAUSTED: Final = 8
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14
_CODES: Final = range(17)
_UNEXPLAINED: Final = frozenset({"", "CANCELLED"})
_OF_HTTP: Final = {400: 13, 401: 16, 403: 7, 404: 12, 429: 14, 502: 14, 503: 14, 504: 14}
_TIMEOUT: Final = re.compile("([0-9]{1,8})([HMSmun])", re.ASCII)
_SECONDS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_MOST_DIGITS: Final = 99_999_999
_CONTENT: Final = "application/grpc"
_SPELT: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
"""What stands for itself in grpc-message."""
_LONGEST_DETAILS: Final = 4096
_TIMEOUTS: Final = 64
"""How many timeouts' fields are kept made: most calls have their route's."""
_NAMES: Final = 256
"""How many names of metadata are kept written."""
_LONGEST_NAME: Final = 64
"""Characters of one."""
_OF_HTTP_WORDS: Final = "Received http2 header with status: "


def code_of(overload: GatewayError) -> int:
    """The code of what the gateway has no room for."""
    return RESOURCE_EXHAUSTED if overload.limit == IN_FLIGHT_BYTES else UNAVAILABLE


def is_abandoned(code: int, details: str) -> bool:
    """Return whether a server's status says no more than that the call was cancelled. grpc-core
    sends such a status for the calls that are open when their server goes away."""
    return code == CANCELLED and details in _UNEXPLAINED


class Asked:
    """What a request's headers say. ``refusal``: why there can be no call, as a gRPC code and
    words; ``status`` is the HTTP status to tell it by, ``limit`` the name of the limit that it
    met, if it was one."""

    __slots__ = ("encoding", "headers", "limit", "method", "refusal", "status", "timeout")

    def __init__(self, told: Fields, limits: Limits) -> None:
        self.method: Final = told.pseudo[":path"]
        self.headers: Final[Mapping[str, str]] = grpc_metadata.from_wire(told.pairs)
        said = dict(told.pairs)
        self.timeout: Final = read_timeout(said.get("grpc-timeout", ""))
        self.encoding: Final = said.get("grpc-encoding", "")
        self.status = 200
        self.limit = ""
        self.refusal: tuple[int, str] | None = None
        if told.size > limits.headers:
            self.limit = "headers"
            self.refusal = RESOURCE_EXHAUSTED, f"the metadata is over {limits.headers} bytes"
        elif len(told.pairs) > limits.header_count:
            self.limit = "header_count"
            self.refusal = RESOURCE_EXHAUSTED, f"the metadata is over {limits.header_count} entries"
        elif not is_grpc(said.get("content-type", "")):
            self.status, self.refusal = 415, (UNKNOWN, "the content-type is not application/grpc")
        elif told.pseudo[":method"] != "POST":
            self.status, self.refusal = 405, (INTERNAL, "gRPC is spoken by POST")
        elif "te" not in said:
            self.status, self.refusal = 400, (INTERNAL, "te: trailers is missing")


def is_grpc(content_type: str) -> bool:
    """Whether a body is gRPC's."""
    return content_type.startswith(_CONTENT) and content_type[len(_CONTENT) :][:1] in {"", "+", ";"}


def read_timeout(value: str) -> float | None:
    """Seconds; None where it cannot be read."""
    found = _TIMEOUT.fullmatch(value)
    return int(found[1]) * _SECONDS[found[2]] if found else None


def write_timeout(seconds: float) -> str:
    """At most eight digits, rounded up, by a thousandth at most: calls say the same although a
    little of their time has passed, so that who reads it has read it before."""
    unit = "u" if seconds < 1 else "m" if seconds < _MOST_DIGITS // 1000 else "S"
    return f"{min(math.ceil(max(0.0, seconds) / _SECONDS[unit]), _MOST_DIGITS)}{unit}"


# ---- answering

HEADERS: Final = fields.block(
    (":status", "200"), ("content-type", _CONTENT), ("grpc-accept-encoding", ACCEPTED)
)
"""What begins every answer that has a message."""
GOOD_END: Final = fields.block(("grpc-status", "0"))


def ending(code: int, details: str, metadata: Mapping[str, str]) -> bytes:
    """The trailers of an answer."""
    if not code and not metadata:
        return GOOD_END
    pairs = [("grpc-status", str(code if code in _CODES else UNKNOWN))]
    if details:
        pairs.append(("grpc-message", _spelt(details[:_LONGEST_DETAILS])))
    return fields.block(*pairs) + told(metadata)


def _spelt(details: str) -> str:
    """Percent-encoded; also spaces at its ends, where HTTP/2 allows none."""
    text = quote(details, safe=_SPELT, errors="replace")
    bare = text.strip(" ")
    before = len(text) - len(text.lstrip(" "))
    return "%20" * before + bare + "%20" * (len(text) - before - len(bare))


def refusing(status: int, code: int, details: str, metadata: Mapping[str, str]) -> bytes:
    """An answer that is nothing but its end."""
    head = fields.block((":status", str(status)), ("content-type", _CONTENT))
    return head + ending(code, details, metadata)


# ---- being answered


class Answered:
    """What the headers or the trailers of an answer say; trailers where ``status`` is 0.

    ``code`` is None where they tell none that could be read.
    """

    __slots__ = ("code", "details", "encoding", "is_grpc", "metadata", "status")

    def __init__(self, told: Fields) -> None:
        said = dict(told.pairs)
        self.status: Final = told.status or 0
        self.is_grpc: Final = self.status == 200 and is_grpc(said.get("content-type", ""))
        self.encoding: Final = said.get("grpc-encoding", "")
        self.code: Final = self._code(said.get("grpc-status"))
        if said.get("grpc-status") is None and self.status and self.status != 200:
            self.details = f"{_OF_HTTP_WORDS}{self.status}"
        else:
            self.details = unquote(said.get("grpc-message", ""))
        self.metadata: Final = grpc_metadata.from_wire(told.pairs)

    def _code(self, said: str | None) -> int | None:
        if said is None:
            if self.status in {0, 200}:
                return None
            return _OF_HTTP.get(self.status, UNKNOWN)
        if not said.isascii() or not said.isdecimal() or len(said) > 9:
            return None
        return int(said) if int(said) in _CODES else UNKNOWN


def asking(method: str, authority: str, scheme: str, agent: str) -> bytes:
    """The beginning of a request's headers, which all calls of a method share."""
    return fields.block(
        (":method", "POST"),
        (":scheme", scheme),
        (":path", method),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", _CONTENT),
        ("grpc-accept-encoding", ACCEPTED),
        ("user-agent", agent),
    )


def rest_of_asking(timeout: float | None, metadata: Mapping[str, str]) -> bytes:
    """What each call says for itself."""
    block = b"" if timeout is None else _timeout(write_timeout(timeout))
    return block + told(metadata) if metadata else block


def told(metadata: Mapping[str, str]) -> bytes:
    """``metadata`` as fields. Names come again with other values (a request's id), and most values
    are what they look like: the rest is ``grpc_metadata``'s."""
    block = b""
    for name, value in metadata.items():
        begun = _begun(name) if len(name) <= _LONGEST_NAME else b""
        if begun and value.isascii() and value.isprintable():
            block += begun + fields.text(value.strip(" "))
        else:
            block += fields.block(*grpc_metadata.to_wire({name: value}))
    return block


@functools.lru_cache(_NAMES)
def _begun(name: str) -> bytes:
    """The field of metadata that is text, up to its value; empty for any other name."""
    return fields.begun(name) if grpc_metadata.is_text(name) else b""


@functools.lru_cache(_TIMEOUTS)
def _timeout(written: str) -> bytes:
    return fields.field("grpc-timeout", written)
