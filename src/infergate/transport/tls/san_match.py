"""The names in a client's certificate, and the patterns that admit them."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

_SAN_TYPES: Final = ("URI", "DNS", "email", "IP Address")
"""The subjectAltName types that identify a client, in the order in which names are reported."""


def san_names(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the names in a verified certificate, as ``SSLObject.getpeercert`` describes it."""
    entries = (certificate or {}).get("subjectAltName", ())
    return tuple(name for san_type in _SAN_TYPES for kind, name in entries if kind == san_type)


class SanMatcher:
    """Admits clients with a name that matches any of ``globs``. Without globs, it admits all
    clients."""

    def __init__(self, globs: Iterable[str]) -> None:
        self._patterns: Final = [re.compile(fnmatch.translate(glob)) for glob in globs]

    def matches(self, names: Iterable[str]) -> bool:
        """Return whether a client with these names is admitted."""
        patterns = self._patterns
        return not patterns or any(pattern.match(name) for name in names for pattern in patterns)
