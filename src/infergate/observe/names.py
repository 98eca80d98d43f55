"""The route and backend names that metric labels may have.

Series of routes and backends that a reload removed are dropped, so that the configuration bounds
the number of series.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

NOBODY = ""
"""The label value of requests without a route or backend."""


class Names(NamedTuple):
    """Names in the current configuration, and in older ones that still have calls in progress.

    Both sets contain the empty name.
    """

    routes: AbstractSet[str]
    backends: AbstractSet[str]

    def has(self, labels: Mapping[str, str]) -> bool:
        """Return whether the route and backend in ``labels``, if any, are among these names."""
        return (
            labels.get("route", NOBODY) in self.routes
            and labels.get("backend", NOBODY) in self.backends
        )
