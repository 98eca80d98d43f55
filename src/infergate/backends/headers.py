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
_REMEMBERED: Final = 1024


class HeaderRule:
    """Lets through the headers whose lower-case name matches one of some globs."""

    def __init__(self, globs: Iterable[str]) -> None:
        patterns = [fnmatch.translate(glob.lower()) for glob in globs]
        self._pattern: Final = re.compile("|".join(patterns)) if patterns else None
        self._known: dict[str, bool] = {}

    def select(self, headers: Mapping[str, str]) -> dict[str, str]:
        """The headers that pass."""
        if self._pattern is None:
            return {}
        known = self._known
        passing = {}
        for name, value in headers.items():
            passes = known.get(name)
            if self._passes(name) if passes is None else passes:
                passing[name] = value
        return passing

    def _passes(self, name: str) -> bool:
        assert self._pattern is not None
        passes = (
            name not in _NEVER
            and not name.startswith(_NEVER_PREFIX)
            and self._pattern.fullmatch(name) is not None
        )
        if len(self._known) < _REMEMBERED:  # names come from clients: remember a bounded number
            self._known[name] = passes
        return passes
