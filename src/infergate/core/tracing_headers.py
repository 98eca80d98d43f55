"""The headers of traces, cut to what W3C Trace Context and Baggage let them be.

A client may send them as long as all its headers; servers close connections over headers that are
longer than they read, and other clients' requests are on those connections.
"""

from __future__ import annotations

import re
from typing import Final

from infergate.core.tracing import TRACEPARENT

TRACESTATE: Final = "tracestate"
BAGGAGE: Final = "baggage"
NAMES: Final = frozenset({TRACEPARENT, TRACESTATE, BAGGAGE})
_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]{1,72})?"
)
_VERSION_0: Final = 55
"""Characters of a ``traceparent`` of version 00; later versions may have more after those."""
_STATE_BYTES: Final = 512
_STATE_MEMBERS: Final = 32
_LONG_MEMBER: Final = 128
"""Characters of a member of ``tracestate`` that goes first where it is too long (3.3.1.5)."""
_BAGGAGE_BYTES: Final = 8192
_BAGGAGE_MEMBERS: Final = 64


def bound(headers: dict[str, str]) -> None:
    """Leave those of the trace in ``headers`` as they may go on. A ``tracestate`` means nothing
    without its ``traceparent``."""
    parent = headers.get(TRACEPARENT)
    if parent is not None and not is_traceparent(parent):
        del headers[TRACEPARENT]
        headers.pop(TRACESTATE, None)
    for name, cut in _CUTS:
        if name in headers:
            headers[name] = cut(headers[name])
            if not headers[name]:
                del headers[name]


def is_traceparent(value: str) -> bool:
    """Whether ``value`` is one, of version 00 or a later one."""
    if _TRACEPARENT.fullmatch(value) is None:
        return False
    return len(value) == _VERSION_0 or not value.startswith("00")


def length(text: str) -> int:
    """The bytes of ``text`` as backends are sent it."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _state(value: str) -> str:
    if length(value) <= _STATE_BYTES and value.count(",") < _STATE_MEMBERS:
        return value
    members = [member for each in value.split(",") if (member := each.strip(" \t"))]
    short = [each for each in members if len(each) <= _LONG_MEMBER]
    return first_members(",".join(short[:_STATE_MEMBERS]), _STATE_BYTES)


def _baggage(value: str) -> str:
    if value.count(",") >= _BAGGAGE_MEMBERS:
        value = ",".join(value.split(",", _BAGGAGE_MEMBERS)[:_BAGGAGE_MEMBERS])
    return first_members(value, _BAGGAGE_BYTES)


def first_members(value: str, limit: int) -> str:
    """As many whole members from the beginning of ``value`` as ``limit`` bytes hold."""
    if length(value) <= limit:
        return value
    if limit <= 0:
        return ""
    raw = value.encode("utf-8", "replace")
    end = raw.rfind(b",", 0, limit + 1)
    return raw[:end].decode() if end > 0 else ""


_CUTS: Final = ((TRACESTATE, _state), (BAGGAGE, _baggage))
