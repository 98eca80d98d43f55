"""What backends' tallies come to, when a scrape asks for them.

*Rule.* A label is a backend's or a route's name in the configuration, or one of a few words of the
code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Final, TypeVar

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from infergate.core.figures import PlaceFigures
from infergate.core.tally import RouteTally, Tally
from infergate.core.times import REQUEST
from infergate.observe.family import Family, times
from infergate.observe.names import Names

T = TypeVar("T")


class Traffic(Collector):
    """All of one process. To be told and asked on one thread. ``places`` are those of backends that
    have so many; ``names`` those that the configuration has now, None: nobody knows. What was
    counted of others is forgotten."""

    def __init__(self) -> None:
        self.places: Callable[[], Iterable[PlaceFigures]] = tuple
        self.names: Callable[[], Names | None] = lambda: None
        self.helpers: Final = Tally()
        """Of jobs for helper processes: the fields of a queue."""
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
        there = [((backend,), tally) for backend, tally in self._tallies.items()]
        yield Family(
            "counter",
            "infergate_retries",
            "Tries beyond the first, by why: not_sent, broken, timeout or declined.",
            ("backend", "reason"),
            (
                ((*backend, reason), count)
                for backend, tally in there
                for reason, count in list(tally.retries.items())
            ),
        )
        yield Family(
            "counter",
            "infergate_retry_budget_exhausted",
            "Tries and hedges that were not made because too many were in progress.",
            ("backend",),
            ((backend, tally.exhausted) for backend, tally in there),
        )
        yield Family(
            "counter",
            "infergate_hedges",
            "Second tries beside a slow first one; won: their answer was taken.",
            ("backend", "outcome"),
            (
                ((*backend, outcome), count)
                for backend, tally in there
                for outcome, count in (("won", tally.hedges_won), ("lost", tally.hedges_lost))
            ),
        )
        yield Family(
            "gauge",
            "infergate_queue_requests",
            "Inferences that wait for a place at a backend now.",
            ("backend",),
            ((backend, tally.waiting) for backend, tally in there),
        )
        yield Family(
            "histogram",
            "infergate_queue_seconds",
            "How long inferences that had to wait for a place at a backend did, in seconds.",
            ("backend",),
            (
                (backend, times(tally.waited))
                for backend, tally in there
                if any(tally.waited.counts)
            ),
            unit="seconds",
            bounds=REQUEST,
        )
        yield Family(
            "counter",
            "infergate_queue_refusals",
            "Inferences that got no place: full: too many waited; expired: they waited too long.",
            ("backend", "reason"),
            (
                ((*backend, reason), count)
                for backend, tally in there
                for reason, count in (("full", tally.refused), ("expired", tally.expired))
            ),
        )
        yield from (self._of_places(), *self._of_routes(), *self._of_helpers())

    def _of_places(self) -> Metric:
        return Family(
            "gauge",
            "infergate_backend_places",
            "Inferences that a backend with limits.max_requests is sent at once: taken or free.",
            ("backend", "state"),
            (
                ((each.backend, state), count)
                for each in self.places()
                for state, count in (
                    ("taken", each.taken),
                    ("free", max(each.most - each.taken, 0)),
                )
            ),
        )

    def _of_helpers(self) -> Iterator[Metric]:
        tally = self.helpers
        yield Family(
            "gauge",
            "infergate_helper_queue_jobs",
            "Messages that wait for a helper process now.",
            (),
            [((), tally.waiting)],
        )
        yield Family(
            "histogram",
            "infergate_helper_queue_seconds",
            "How long messages waited for a helper process, of those that had to, in seconds.",
            (),
            [((), times(tally.waited))],
            unit="seconds",
            bounds=REQUEST,
        )
        yield Family(
            "counter",
            "infergate_helper_queue_refusals",
            "Messages that got no helper process: full: too many of their client waited; expired: "
            "they waited too long.",
            ("reason",),
            [(("full",), tally.refused), (("expired",), tally.expired)],
        )

    def _of_routes(self) -> Iterator[Metric]:
        there = [((route,), tally) for route, tally in self._routes.items()]
        yield Family(
            "counter",
            "infergate_fallbacks",
            "Inferences that went to a route's fallback.",
            ("route",),
            ((route, tally.fallbacks) for route, tally in there),
        )
        yield Family(
            "counter",
            "infergate_mirrored_requests",
            "Copies of inferences; dropped: too many were under way.",
            ("route", "outcome"),
            (
                ((*route, outcome), count)
                for route, tally in there
                for outcome, count in list(tally.mirrored.items())
            ),
        )


def _keep(counted: dict[str, T], names: AbstractSet[str]) -> None:
    for name in counted.keys() - names:
        del counted[name]
