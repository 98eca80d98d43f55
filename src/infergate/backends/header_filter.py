"""Selects the client headers that are forwarded to a backend, and the response headers that are
returned to the client."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from infergate.core import trace_headers
from infergate.core.bounded_cache import BoundedCache
from infergate.core.errors import GatewayError, Kind
from infergate.core.hops import HOPS_HEADER, next_hop

# Headers that describe a connection, a body or the client program. They are never forwarded, even
# if the configuration names them.
_NEVER_FORWARDED: Final = frozenset(
    {
        "accept-encoding",
        "connection",
        "expect",
        "host",
        "inference-header-content-length",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
    }
)
_NEVER_FORWARDED_PREFIXES: Final = ("content-", "grpc-", ":")
_CREDENTIAL_HEADERS: Final = frozenset({"authorization", "cookie", "x-api-key"})
"""Headers with credentials. They are forwarded only if the configuration names them exactly; globs
do not select them."""
_MAX_SELECTIONS: Final = 256
"""Maximum number of cached header combinations. Each kind of client has its own combination, and
all combinations take less than 2 MB."""
_MAX_CACHED_CHARACTERS: Final = 1024
"""Maximum total length of the names in a cached combination."""
_MAX_CACHED_NAMES: Final = 64
_CONNECTION: Final = "connection"
_KEEP_ALIVE: Final = "keep-alive"
_FIELD_OVERHEAD: Final = 32
"""Bytes counted per header field in addition to its name and value (RFC 9113, 6.5.2)."""


def field_bytes(headers: Mapping[str, str]) -> int:
    """Return the total size of ``headers`` as counted by HTTP/2."""
    values = sum(map(trace_headers.encoded_length, headers.values()))
    return sum(map(len, headers)) + values + _FIELD_OVERHEAD * len(headers)


class _NameSelection(NamedTuple):
    """The forwarded ``names`` in a combination of header names. ``size`` is their size as counted
    by HTTP/2, without the values. ``has_connection`` means that a Connection header is present,
    which may exclude further names. ``has_trace`` means that trace headers are selected, and
    ``has_hops`` that the hop header is selected."""

    names: tuple[str, ...]
    size: int
    has_connection: bool
    has_trace: bool
    has_hops: bool


class HeaderFilter:
    """Selects headers whose lower-case names match one of ``globs``. A header with credentials is
    selected only by its exact name. Headers listed in Connection (RFC 9110, 7.6.1) are never
    selected."""

    def __init__(
        self, globs: Iterable[str], max_bytes: int = 0, *, counts_hops: bool = False
    ) -> None:
        """``max_bytes`` limits the total size of the selected headers; 0 disables the limit. If
        there is a limit, trace headers are first truncated to the W3C limits, and baggage is then
        shortened until the headers fit. If the headers without baggage exceed the limit, ``select``
        raises TOO_LARGE. With ``counts_hops``, the filter also selects the hop header, with the
        value for the next gateway."""
        names = [glob.lower() for glob in globs]
        self._counts_hops: Final = counts_hops
        if counts_hops:
            names.append(HOPS_HEADER)
        patterns = list(map(fnmatch.translate, names))
        self._pattern: Final = re.compile("|".join(patterns)) if patterns else None
        self.selects_any: Final = bool(names)
        self._secrets: Final = _CREDENTIAL_HEADERS.difference(names)
        self._max_bytes: Final = max_bytes
        self._selections: Final = BoundedCache[tuple[str, ...], _NameSelection](_MAX_SELECTIONS)

    def allows(self, name: str) -> bool:
        """Return whether a header named ``name`` can be selected."""
        return bool(self._select_names((name,)).names)

    def select(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the selected headers. Raises TOO_LARGE if the headers without baggage exceed
        ``max_bytes``, and TOO_MANY_HOPS if the request has passed too many gateways."""
        if self._pattern is None:
            return {}
        names = tuple(headers)
        passing = self._selections.get(names)
        if passing is None:
            passing = self._select_names(names)
        size, selected = passing.size, {}
        for name in passing.names:
            value = selected[name] = headers[name]
            size += len(value) if value.isascii() else trace_headers.encoded_length(value)
        if passing.has_connection and (connection := headers[_CONNECTION]) != _KEEP_ALIVE:
            for name in connection.lower().split(","):
                selected.pop(name.strip(" \t"), None)
        if passing.has_hops and HOPS_HEADER in selected:
            selected[HOPS_HEADER] = next_hop(selected)
        if self._max_bytes:
            if passing.has_trace:
                trace_headers.sanitize(selected)
            if size > self._max_bytes and (size := field_bytes(selected)) > self._max_bytes:
                self._trim_baggage(selected, size)
        return selected

    def _trim_baggage(self, selected: dict[str, str], size: int) -> None:
        """Shorten the baggage in ``selected`` so that the headers fit. Raises TOO_LARGE if the
        other headers alone exceed the limit."""
        baggage = selected.pop(trace_headers.BAGGAGE, "")
        remaining = self._max_bytes - field_bytes(selected)
        if remaining < 0:
            raise GatewayError(
                Kind.TOO_LARGE,
                f"the headers for the backend take {size} bytes; the limit is {self._max_bytes}",
                limit="forwarded_headers",
            )
        max_baggage = remaining - len(trace_headers.BAGGAGE) - _FIELD_OVERHEAD
        if fitting := trace_headers.truncate_members(baggage, max_baggage):
            selected[trace_headers.BAGGAGE] = fitting

    def _select_names(self, names: tuple[str, ...]) -> _NameSelection:
        assert self._pattern is not None
        selected = tuple(
            name
            for name in names
            if name not in _NEVER_FORWARDED
            and name not in self._secrets
            and not name.startswith(_NEVER_FORWARDED_PREFIXES)
            and self._pattern.fullmatch(name) is not None
        )
        selection = _NameSelection(
            selected,
            sum(map(len, selected)) + _FIELD_OVERHEAD * len(selected),
            _CONNECTION in names,
            not trace_headers.TRACE_HEADERS.isdisjoint(selected),
            self._counts_hops and HOPS_HEADER in selected,
        )
        # Clients choose the names, so only short combinations are cached.
        if sum(map(len, names)) <= _MAX_CACHED_CHARACTERS and len(names) <= _MAX_CACHED_NAMES:
            self._selections[names] = selection
        return selection
