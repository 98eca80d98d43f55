"""The route and backend names that metric labels may have. Series of removed routes and backends
are dropped, which bounds the number of series."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

NO_NAME = ""
"""The label value of requests without a route or backend."""


class MetricNames(NamedTuple):
    """Names in the current configuration and in older configurations that still have calls in
    progress. Both sets contain the empty name."""

    routes: AbstractSet[str]
    backends: AbstractSet[str]

    def allows(self, labels: Mapping[str, str]) -> bool:
        """Return whether the route and backend in ``labels``, if present, are among these names."""
        return (
            labels.get("route", NO_NAME) in self.routes
            and labels.get("backend", NO_NAME) in self.backends
        )
