"""The names of a client's certificate, and which of them are let in."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

_KINDS: Final = ("URI", "DNS", "email", "IP Address")
"""The kinds of subjectAltName that name somebody, as ``ssl`` calls them, in the order in which
they are told."""


def names_of(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The names in what ``SSLObject.getpeercert`` tells of a certificate that was verified."""
    told = (certificate or {}).get("subjectAltName", ())
    return tuple(name for kind in _KINDS for its, name in told if its == kind)


class Allowed:
    """Lets in who has a name that one of ``globs`` matches; anybody where there are none."""

    def __init__(self, globs: Iterable[str]) -> None:
        self._patterns: Final = [re.compile(fnmatch.translate(glob)) for glob in globs]

    def lets_in(self, names: Iterable[str]) -> bool:
        """Whether one of ``names`` is one of those."""
        patterns = self._patterns
        return not patterns or any(each.match(name) for name in names for each in patterns)
