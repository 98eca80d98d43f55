"""Which of a client's headers travel upstream, and which of the backend's come back."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from typing import Final

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


class HeaderRule:
    """Lets through the headers whose lower-case name matches one of some globs; those that hold
    secrets where one is that very name."""

    def __init__(self, globs: Iterable[str]) -> None:
        named = [glob.lower() for glob in globs]
        patterns = list(map(fnmatch.translate, named))
        self._pattern: Final = re.compile("|".join(patterns)) if patterns else None
        self._secrets: Final = _BY_NAME.difference(named)
        self._known: dict[tuple[str, ...], tuple[str, ...]] = {}

    def select(self, headers: Mapping[str, str]) -> dict[str, str]:
        """The headers that pass."""
        if self._pattern is None:
            return {}
        names = tuple(headers)
        passing = self._known.get(names)
        if passing is None:
            passing = self._passing(names)
        return {name: headers[name] for name in passing}

    def _passing(self, names: tuple[str, ...]) -> tuple[str, ...]:
        assert self._pattern is not None
        passing = tuple(
            name
            for name in names
            if name not in _NEVER
            and name not in self._secrets
            and not name.startswith(_NEVER_PREFIX)
            and self._pattern.fullmatch(name) is not None
        )
        # names come from clients: remember a bounded number
        if sum(map(len, names)) <= _LONGEST and len(names) <= _MOST_NAMES:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[names] = passing
        return passing
