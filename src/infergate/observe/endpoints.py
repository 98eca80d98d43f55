"""Metrics of backends' endpoints, told when a scrape asks.

*Rule.* The label ``endpoint`` is the URL in the configuration. A name's addresses come and go and
are counted together under it, so that there are never more series than the configuration has lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import tee
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from infergate.core.figures import EndpointFigures
from infergate.observe.family import Family

_LABELS: Final = ("backend", "endpoint")


class EndpointMetrics(Collector):
    """Of what ``source`` tells, which may be set anew."""

    def __init__(self) -> None:
        self.source: Callable[[], Iterable[EndpointFigures]] = tuple

    def collect(self) -> Iterator[Metric]:
        """The metrics of all endpoints."""
        figures = iter(tee(self.source(), 6))  # each is made once, when the first family is read
        yield Family(
            "gauge",
            "infergate_endpoint_addresses",
            "Addresses of an endpoint by state: available (asked), down (its checks fail), ejected "
            "(let alone for a while after failures).",
            (*_LABELS, "state"),
            (
                ((each.backend, each.endpoint, state), count)
                for each in next(figures)
                for state, count in (
                    ("available", each.available),
                    ("down", each.down),
                    ("ejected", each.ejected),
                )
            ),
        )
        yield Family(
            "gauge",
            "infergate_endpoint_active_requests",
            "Requests under way now.",
            _LABELS,
            (((each.backend, each.endpoint), each.active) for each in next(figures)),
        )
        yield _counted(
            "infergate_endpoint_requests",
            "Attempts by outcome: ok, or failed (unreached, broken off, too slow, or it said that "
            "it cannot serve now).",
            ((each, each.ok, each.failed) for each in next(figures)),
        )
        yield Family(
            "counter",
            "infergate_endpoint_ejections",
            "Times an address was ejected.",
            _LABELS,
            (((each.backend, each.endpoint), each.ejections) for each in next(figures)),
        )
        yield _counted(
            "infergate_endpoint_checks",
            "Health checks by outcome: ok or failed.",
            ((each, each.checks_ok, each.checks_failed) for each in next(figures)),
        )
        yield Family(
            "counter",
            "infergate_endpoint_lookup_failures",
            "Times an endpoint's name had no address and kept those it had.",
            _LABELS,
            (((each.backend, each.endpoint), each.lookups_failed) for each in next(figures)),
        )


def _counted(
    name: str, documentation: str, counts: Iterable[tuple[EndpointFigures, int, int]]
) -> Family:
    """By outcome, ``ok`` and ``failed``."""
    rows = (
        ((each.backend, each.endpoint, outcome), count)
        for each, ok, failed in counts
        for outcome, count in (("ok", ok), ("failed", failed))
    )
    return Family("counter", name, documentation, (*_LABELS, "outcome"), rows)
