"""The names that labels of metrics may have, so that there are never more series than the
configuration has lines: of what it does not have any more, after a reload, nothing is told."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

NOBODY = ""
"""The label of what takes no route, or asks no backend."""


class Names(NamedTuple):
    """Of the configuration that serves, and of those that calls are still under way on. Both hold
    ``NOBODY``."""

    routes: AbstractSet[str]
    backends: AbstractSet[str]

    def has(self, labels: Mapping[str, str]) -> bool:
        """Whether ``labels`` name no route and no backend but those."""
        return (
            labels.get("route", NOBODY) in self.routes
            and labels.get("backend", NOBODY) in self.backends
        )
