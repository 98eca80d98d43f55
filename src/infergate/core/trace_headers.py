"""Limits on the trace headers of W3C Trace Context and Baggage.

Clients may send trace headers of up to ``limits.headers`` bytes. A server closes the connection if
headers exceed the server's limit. The requests of other clients on that connection then fail, so
this module shortens the headers."""

from __future__ import annotations

import re
from typing import Final

from infergate.core.tracing import TRACEPARENT

TRACESTATE: Final = "tracestate"
BAGGAGE: Final = "baggage"
TRACE_HEADERS: Final = frozenset({TRACEPARENT, TRACESTATE, BAGGAGE})
_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]{1,72})?"
)
_VERSION_0_LENGTH: Final = 55
"""The length of a ``traceparent`` of version 00. Later versions may append to it."""
_MAX_STATE_BYTES: Final = 512
_MAX_STATE_MEMBERS: Final = 32
_MAX_KEPT_MEMBER: Final = 128
"""The longest ``tracestate`` member that is kept when the header is shortened (W3C, 3.3.1.5)."""
_MAX_BAGGAGE_BYTES: Final = 8192
_MAX_BAGGAGE_MEMBERS: Final = 64


def sanitize(headers: dict[str, str]) -> None:
    """Truncate or remove the trace headers in ``headers`` that exceed the limits. An invalid
    ``traceparent`` is removed together with ``tracestate``, which has no meaning alone."""
    traceparent = headers.get(TRACEPARENT)
    if traceparent is not None and not is_traceparent(traceparent):
        del headers[TRACEPARENT]
        headers.pop(TRACESTATE, None)
    for name, truncate in _TRUNCATIONS:
        if name in headers:
            headers[name] = truncate(headers[name])
            if not headers[name]:
                del headers[name]


def is_traceparent(value: str) -> bool:
    """Return whether ``value`` is a valid ``traceparent`` of version 00 or later."""
    if _TRACEPARENT.fullmatch(value) is None:
        return False
    return len(value) == _VERSION_0_LENGTH or not value.startswith("00")


def encoded_length(text: str) -> int:
    """Return the size of ``text`` in bytes, as sent to backends."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _truncate_state(value: str) -> str:
    if encoded_length(value) <= _MAX_STATE_BYTES and value.count(",") < _MAX_STATE_MEMBERS:
        return value
    members = [member for part in value.split(",") if (member := part.strip(" \t"))]
    kept = [part for part in members if len(part) <= _MAX_KEPT_MEMBER]
    return truncate_members(",".join(kept[:_MAX_STATE_MEMBERS]), _MAX_STATE_BYTES)


def _truncate_baggage(value: str) -> str:
    if value.count(",") >= _MAX_BAGGAGE_MEMBERS:
        value = ",".join(value.split(",", _MAX_BAGGAGE_MEMBERS)[:_MAX_BAGGAGE_MEMBERS])
    return truncate_members(value, _MAX_BAGGAGE_BYTES)


def truncate_members(value: str, max_bytes: int) -> str:
    """Return the longest prefix of ``value`` that has at most ``max_bytes`` and ends after a
    complete member."""
    if encoded_length(value) <= max_bytes:
        return value
    if max_bytes <= 0:
        return ""
    raw = value.encode("utf-8", "replace")
    end = raw.rfind(b",", 0, max_bytes + 1)
    return raw[:end].decode() if end > 0 else ""


_TRUNCATIONS: Final = ((TRACESTATE, _truncate_state), (BAGGAGE, _truncate_baggage))
