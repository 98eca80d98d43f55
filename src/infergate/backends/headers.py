"""Which of a client's headers travel upstream, and which of the backend's come back."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from infergate.core import tracing_headers
from infergate.core.errors import GatewayError, Kind

# Headers that describe one connection or one body: wrong on any other, whatever the rule says.
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
"""Headers that hold secrets: a glob that happens to match one is no wish to hand it on."""
_REMEMBERED: Final = 256
"""Combinations of names, each client's its own; together under 2 MB."""
_LONGEST: Final = 1024
"""Characters of one that is remembered."""
_MOST_NAMES: Final = 64
_CONNECTION: Final = "connection"
_KEEP: Final = "keep-alive"
_OVERHEAD: Final = 32
"""Bytes by which a field counts for more than its name and value (RFC 9113, 6.5.2)."""


def field_bytes(headers: Mapping[str, str]) -> int:
    """How many bytes ``headers`` count for."""
    values = sum(map(tracing_headers.length, headers.values()))
    return sum(map(len, headers)) + values + _OVERHEAD * len(headers)


class _Passing(NamedTuple):
    """Which headers of a request pass, by their ``names``; ``size`` in bytes is theirs without the
    values; ``is_named``: Connection may name some; ``is_traced``: some are a trace's."""

    names: tuple[str, ...]
    size: int
    is_named: bool
    is_traced: bool


class HeaderRule:
    """Lets through the headers whose lower-case name matches one of some globs; those that hold
    secrets where one is that very name; none that the header Connection names (RFC 9110, 7.6.1)."""

    def __init__(self, globs: Iterable[str], budget: int = 0) -> None:
        """``budget`` in bytes: with one, the headers of traces are cut to what W3C lets them be,
        and the rest refused beyond it. 0: nothing is bounded."""
        named = [glob.lower() for glob in globs]
        patterns = list(map(fnmatch.translate, named))
        self._pattern: Final = re.compile("|".join(patterns)) if patterns else None
        self._secrets: Final = _BY_NAME.difference(named)
        self._budget: Final = budget
        self._known: dict[tuple[str, ...], _Passing] = {}

    def passes(self, name: str) -> bool:
        """Whether headers of this name pass at all."""
        return bool(self._passing((name,)).names)

    def select(self, headers: Mapping[str, str]) -> dict[str, str]:
        """The headers that pass. Raises TOO_LARGE beyond the budget."""
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
        """Cut the baggage of ``selected``, of ``size`` bytes. Raises TOO_LARGE."""
        baggage = selected.pop(tracing_headers.BAGGAGE, "")
        left = self._budget - field_bytes(selected)
        if left < 0:
            raise GatewayError(
                Kind.TOO_LARGE,
                f"the headers for the backend take {size} bytes, the limit is {self._budget}",
                limit="forwarded_headers",
            )
        room = left - len(tracing_headers.BAGGAGE) - _OVERHEAD
        if fitting := tracing_headers.first_members(baggage, room):
            selected[tracing_headers.BAGGAGE] = fitting

    def _passing(self, names: tuple[str, ...]) -> _Passing:
        assert self._pattern is not None
        passing = tuple(
            name
            for name in names
            if name not in _NEVER
            and name not in self._secrets
            and not name.startswith(_NEVER_PREFIX)
            and self._pattern.fullmatch(name) is not None
        )
        found = _Passing(
            passing,
            sum(map(len, passing)) + _OVERHEAD * len(passing),
            _CONNECTION in names,
            not tracing_headers.NAMES.isdisjoint(passing),
        )
        # names come from clients: remember a bounded number
        if sum(map(len, names)) <= _LONGEST and len(names) <= _MOST_NAMES:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[names] = found
        return found
