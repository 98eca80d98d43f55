"""What backends' tallies come to, when a scrape asks for them.

*Rule.* A label is a backend's or a route's name in the configuration, or one of a few words of the
code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Final, TypeVar

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from infergate.core.figures import PlaceFigures
from infergate.core.tally import RouteTally, Tally
from infergate.observe.histograms import REQUEST_BOUNDS, tell
from infergate.observe.names import Names

T = TypeVar("T")


class Traffic(Collector):
    """All of one process. To be told and asked on one thread. ``places`` are those of backends that
    have so many; ``names`` those that the configuration has now, None: nobody knows. What was
    counted of others is forgotten."""

    def __init__(self) -> None:
        self.places: Callable[[], Iterable[PlaceFigures]] = tuple
        self.names: Callable[[], Names | None] = lambda: None
        self._tallies: Final[dict[str, Tally]] = {}
        self._routes: Final[dict[str, RouteTally]] = {}

    def of(self, backend: str) -> Tally:
        """Where ``backend`` is counted: the same for all who ask."""
        return self._tallies.setdefault(backend, Tally())

    def of_route(self, route: str) -> RouteTally:
        """The same of ``route``."""
        return self._routes.setdefault(route, RouteTally())

    def collect(self) -> Iterator[Metric]:
        """The metrics of what was counted."""
        names = self.names()
        if names is not None:
            _keep(self._tallies, names.backends)
            _keep(self._routes, names.routes)
        retries = CounterMetricFamily(
            "infergate_retries",
            "Tries beyond the first, by why: not_sent, broken, timeout or declined.",
            labels=("backend", "reason"),
        )
        exhausted = CounterMetricFamily(
            "infergate_retry_budget_exhausted",
            "Tries and hedges that were not made because too many were in progress.",
            labels=("backend",),
        )
        hedges = CounterMetricFamily(
            "infergate_hedges",
            "Second tries beside a slow first one; won: their answer was taken.",
            labels=("backend", "outcome"),
        )
        waiting = GaugeMetricFamily(
            "infergate_queue_requests",
            "Inferences that wait for a place at a backend now.",
            labels=("backend",),
        )
        turned_away = CounterMetricFamily(
            "infergate_queue_refusals",
            "Inferences that got no place: full: too many waited; expired: they waited too long.",
            labels=("backend", "reason"),
        )
        waited = HistogramMetricFamily(
            "infergate_queue_seconds",
            "How long inferences that had to wait for a place at a backend did, in seconds.",
            labels=("backend",),
            unit="seconds",
        )
        for backend, tally in self._tallies.items():
            for reason, count in tally.retries.items():
                retries.add_metric((backend, reason), count)
            exhausted.add_metric((backend,), tally.exhausted)
            hedges.add_metric((backend, "won"), tally.hedges_won)
            hedges.add_metric((backend, "lost"), tally.hedges_lost)
            waiting.add_metric((backend,), tally.waiting)
            turned_away.add_metric((backend, "full"), tally.refused)
            turned_away.add_metric((backend, "expired"), tally.expired)
            tell(waited, (backend,), tally.waited, REQUEST_BOUNDS)
        yield from (retries, exhausted, hedges, waiting, waited, turned_away)
        yield from (self._of_places(), *self._of_routes())

    def _of_places(self) -> Metric:
        places = GaugeMetricFamily(
            "infergate_backend_places",
            "Inferences that a backend with limits.max_requests is sent at once: taken or free.",
            labels=("backend", "state"),
        )
        for each in self.places():
            places.add_metric((each.backend, "taken"), each.taken)
            places.add_metric((each.backend, "free"), max(each.most - each.taken, 0))
        return places

    def _of_routes(self) -> Iterator[Metric]:
        fallbacks = CounterMetricFamily(
            "infergate_fallbacks",
            "Inferences that went to a route's fallback.",
            labels=("route",),
        )
        mirrored = CounterMetricFamily(
            "infergate_mirrored_requests",
            "Copies of inferences; dropped: too many were under way.",
            labels=("route", "outcome"),
        )
        for route, tally in self._routes.items():
            fallbacks.add_metric((route,), tally.fallbacks)
            for outcome, count in tally.mirrored.items():
                mirrored.add_metric((route, outcome), count)
        yield from (fallbacks, mirrored)


def _keep(counted: dict[str, T], names: AbstractSet[str]) -> None:
    for name in counted.keys() - names:
        del counted[name]
