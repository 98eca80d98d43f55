"""Selects the client headers that are forwarded to a backend, and the backend's response headers
that are returned."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from infergate.core import tracing_headers
from infergate.core.errors import GatewayError, Kind

# Headers that describe one connection or one body, never forwarded whatever the configuration says.
_NEVER: Final = frozenset(
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
_NEVER_PREFIX: Final = ("content-", "grpc-", ":")
_BY_NAME: Final = frozenset({"authorization", "cookie", "x-api-key"})
"""Headers with credentials are forwarded only if configured by exact name, not by a glob that
happens to match."""
_REMEMBERED: Final = 256
"""Cached combinations of header names, one per kind of client; together below 2 MB."""
_LONGEST: Final = 1024
"""Characters of all names of a cached combination."""
_MOST_NAMES: Final = 64
_CONNECTION: Final = "connection"
_KEEP: Final = "keep-alive"
_OVERHEAD: Final = 32
"""Bytes counted per header field besides its name and value (RFC 9113, 6.5.2)."""


def field_bytes(headers: Mapping[str, str]) -> int:
    """Return the total size of ``headers`` as counted by HTTP/2."""
    values = sum(map(tracing_headers.length, headers.values()))
    return sum(map(len, headers)) + values + _OVERHEAD * len(headers)


class _Passing(NamedTuple):
    """The forwarded ``names`` among a combination of header names. ``size`` counts their bytes
    without the values; ``has_connection``: there is a Connection header, which may exclude further
    names; ``has_trace``: there are trace headers."""

    names: tuple[str, ...]
    size: int
    is_named: bool
    is_traced: bool


class HeaderRule:
    """Selects headers by globs over lower-case names. Credentials need a glob that is their exact
    name; headers listed in Connection (RFC 9110, 7.6.1) are never selected."""

    def __init__(self, globs: Iterable[str], budget: int = 0) -> None:
        """``max_bytes`` bounds the selected headers: trace headers are cut to the W3C limits, and
        other headers beyond the bound are an error. 0 disables the bound."""
        names = [glob.lower() for glob in globs]
        patterns = list(map(fnmatch.translate, names))
        self._pattern: Final = re.compile("|".join(patterns)) if patterns else None
        self._secrets: Final = _BY_NAME.difference(names)
        self._budget: Final = budget
        self._known: dict[tuple[str, ...], _Passing] = {}

    def passes(self, name: str) -> bool:
        """Return whether a header of this name can be selected."""
        return bool(self._passing((name,)).names)

    def select(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the selected headers. Raises TOO_LARGE if they exceed ``max_bytes``."""
        if self._pattern is None:
            return {}
        names = tuple(headers)
        passing = self._known.get(names)
        if passing is None:
            passing = self._passing(names)
        size, selected = passing.size, {}
        for name in passing.names:
            value = selected[name] = headers[name]
            size += len(value) if value.isascii() else tracing_headers.length(value)
        if passing.is_named and (connection := headers[_CONNECTION]) != _KEEP:
            for name in connection.lower().split(","):
                selected.pop(name.strip(" \t"), None)
        if self._budget:
            if passing.is_traced:
                tracing_headers.bound(selected)
            if size > self._budget and (size := field_bytes(selected)) > self._budget:
                self._fit(selected, size)
        return selected

    def _fit(self, selected: dict[str, str], size: int) -> None:
        """Cut the baggage of ``selected`` to fit. Raises TOO_LARGE if the other headers alone
        exceed the bound."""
        baggage = selected.pop(tracing_headers.BAGGAGE, "")
        remaining = self._budget - field_bytes(selected)
        if remaining < 0:
            raise GatewayError(
                Kind.TOO_LARGE,
                f"the headers for the backend take {size} bytes, the limit is {self._budget}",
                limit="forwarded_headers",
            )
        max_baggage = remaining - len(tracing_headers.BAGGAGE) - _OVERHEAD
        if fitting := tracing_headers.first_members(baggage, max_baggage):
            selected[tracing_headers.BAGGAGE] = fitting

    def _passing(self, names: tuple[str, ...]) -> _Passing:
        assert self._pattern is not None
        selected = tuple(
            name
            for name in names
            if name not in _NEVER
            and name not in self._secrets
            and not name.startswith(_NEVER_PREFIX)
            and self._pattern.fullmatch(name) is not None
        )
        selection = _Passing(
            selected,
            sum(map(len, selected)) + _OVERHEAD * len(selected),
            _CONNECTION in names,
            not tracing_headers.NAMES.isdisjoint(selected),
        )
        # Clients choose the names, so the cache is bounded.
        if sum(map(len, names)) <= _LONGEST and len(names) <= _MOST_NAMES:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[names] = selection
        return selection
