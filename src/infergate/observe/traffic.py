"""Metrics of backends and routes: retries, hedges, queues, fallbacks and mirroring.

*Rule.* Label values are names in the configuration or constants of the code.
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
    """The counters of backends and routes of a process. Not thread-safe.

    ``concurrency`` returns the usage of backends with ``limits.max_requests``. ``names`` returns
    the routes and backends of the current configuration, or None if unknown; the counters of others
    are dropped at a scrape.
    """

    def __init__(self) -> None:
        self.places: Callable[[], Iterable[PlaceFigures]] = tuple
        self.names: Callable[[], Names | None] = lambda: None
        self.helpers: Final = Tally()
        """Counters of the helper processes' queue; only the queue fields are used."""
        self._tallies: Final[dict[str, Tally]] = {}
        self._routes: Final[dict[str, RouteTally]] = {}

    def of(self, backend: str) -> Tally:
        """Return the counters of ``backend``, which are created on first use."""
        return self._tallies.setdefault(backend, Tally())

    def of_route(self, route: str) -> RouteTally:
        """Return the counters of ``route``, which are created on first use."""
        return self._routes.setdefault(route, RouteTally())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all backends, routes and helper processes."""
        names = self.names()
        if names is not None:
            _keep(self._tallies, names.backends)
            _keep(self._routes, names.routes)
        rows = [((backend,), counters) for backend, counters in self._tallies.items()]
        yield Family(
            "counter",
            "infergate_retries",
            "Retries by reason: not_sent, broken, timeout or declined.",
            ("backend", "reason"),
            (
                ((*backend, reason), count)
                for backend, counters in rows
                for reason, count in list(counters.retries.items())
            ),
        )
        yield Family(
            "counter",
            "infergate_retry_budget_exhausted",
            "Retries and hedges not made because the retry budget was exhausted.",
            ("backend",),
            ((backend, counters.exhausted) for backend, counters in rows),
        )
        yield Family(
            "counter",
            "infergate_hedges",
            "Hedged requests by outcome: won (its response was used) or lost.",
            ("backend", "outcome"),
            (
                ((*backend, outcome), count)
                for backend, counters in rows
                for outcome, count in (("won", counters.hedges_won), ("lost", counters.hedges_lost))
            ),
        )
        yield Family(
            "gauge",
            "infergate_queue_requests",
            "Inferences waiting in a backend's queue.",
            ("backend",),
            ((backend, counters.waiting) for backend, counters in rows),
        )
        yield Family(
            "histogram",
            "infergate_queue_seconds",
            "Waiting time of queued inferences, in seconds.",
            ("backend",),
            (
                (backend, times(counters.waited))
                for backend, counters in rows
                if any(counters.waited.counts)
            ),
            unit="seconds",
            bounds=REQUEST,
        )
        yield Family(
            "counter",
            "infergate_queue_refusals",
            "Inferences refused by a backend's queue: full, or expired (waited past the deadline).",
            ("backend", "reason"),
            (
                ((*backend, reason), count)
                for backend, counters in rows
                for reason, count in (("full", counters.refused), ("expired", counters.expired))
            ),
        )
        yield from (self._of_places(), *self._of_routes(), *self._of_helpers())

    def _of_places(self) -> Metric:
        return Family(
            "gauge",
            "infergate_backend_places",
            "Concurrency limit (limits.max_requests) of a backend: slots taken and free.",
            ("backend", "state"),
            (
                ((stats.backend, state), count)
                for stats in self.places()
                for state, count in (
                    ("taken", stats.taken),
                    ("free", max(stats.most - stats.taken, 0)),
                )
            ),
        )

    def _of_helpers(self) -> Iterator[Metric]:
        counters = self.helpers
        yield Family(
            "gauge",
            "infergate_helper_queue_jobs",
            "Messages waiting for a helper process.",
            (),
            [((), counters.waiting)],
        )
        yield Family(
            "histogram",
            "infergate_helper_queue_seconds",
            "Waiting time of messages that were queued for a helper process, in seconds.",
            (),
            [((), times(counters.waited))],
            unit="seconds",
            bounds=REQUEST,
        )
        yield Family(
            "counter",
            "infergate_helper_queue_refusals",
            "Messages refused by the helper processes' queue: full (too many of one client), or "
            "expired (waited too long).",
            ("reason",),
            [(("full",), counters.refused), (("expired",), counters.expired)],
        )

    def _of_routes(self) -> Iterator[Metric]:
        rows = [((route,), counters) for route, counters in self._routes.items()]
        yield Family(
            "counter",
            "infergate_fallbacks",
            "Inferences sent to a route's fallback backend.",
            ("route",),
            ((route, counters.fallbacks) for route, counters in rows),
        )
        yield Family(
            "counter",
            "infergate_mirrored_requests",
            "Mirrored inferences by outcome; dropped: too many copies were in progress.",
            ("route", "outcome"),
            (
                ((*route, outcome), count)
                for route, counters in rows
                for outcome, count in list(counters.mirrored.items())
            ),
        )


def _keep(counted: dict[str, T], names: AbstractSet[str]) -> None:
    for name in counted.keys() - names:
        del counted[name]
