"""The totals of a process by route, backend and endpoint, and the increase from earlier totals.
This module has no I/O."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from infergate.observe.family import HistogramValue, Labels, MetricFamily
from infergate.observe.recent_requests import ProcessSnapshot
from infergate.observe.request_counters import BUCKETS, RequestFlow, client_errors

Key = tuple[str, str]
Counts = npt.NDArray[np.int64]
ALL: Final = "all"
ROUTE, BACKEND, ENDPOINT = "route", "backend", "endpoint"
TRAFFIC: Final = (
    "ok", "client_errors", "failures", "retries", "hedges", "refusals", "ejections",
)  # fmt: skip
"""The counters of all traffic, of a route and of a backend. In a row, the latency buckets follow
these counters."""
ENDPOINT_COUNTERS: Final = ("ok", "failures", "ejections", "failed_checks")
ENDPOINT_GAUGES: Final = ("available", "down", "ejected")
"""Numbers of addresses. In a row, these gauges follow the counters."""
TRAFFIC_OUTCOMES, ENDPOINT_OUTCOMES = 3, 2
"""The numbers of leading counters whose sum is the number of requests."""
_KEY_BYTES: Final = 160
"""The approximate size in bytes of a key with its names. Each worker sends its own copies of the
names."""
_BACKEND_COLUMNS: Final = {
    "infergate_retries": 0,
    "infergate_hedges": 1,
    "infergate_queue_refusals": 2,
    "infergate_endpoint_ejections": 3,
}
"""Positions of metric families in ``TRAFFIC``, counted after the outcomes."""
_ENDPOINT_COLUMNS: Final[Mapping[str, Mapping[str, int]]] = {
    "infergate_endpoint_requests": {"ok": 0, "failed": 1},
    "infergate_endpoint_ejections": {"": 2},
    "infergate_endpoint_checks": {"failed": 3},
    "infergate_endpoint_addresses": {"available": 4, "down": 5, "ejected": 6},
}
"""Positions in the row of an endpoint, by metric family and by the value of the last label."""


@dataclass(slots=True)
class SubjectTotals:
    """A row of numbers for each of ``keys``."""

    keys: tuple[Key, ...] = ()
    rows: Counts = field(default_factory=lambda: np.zeros((0, 0), np.int64))

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + _KEY_BYTES * len(self.keys)

    def increase_since(self, before: Self) -> Counts:
        """Return the increase of each number. The increase is 0 if the number has fallen because
        its counter was reset. The numbers of a key that is missing in ``before`` have increased
        from 0."""
        increase = self.rows.copy()
        if not before.keys:
            return increase
        if self.keys == before.keys:
            self.keys = before.keys  # frees this object's copies of the names
            increase -= before.rows
        else:
            positions = {key: position for position, key in enumerate(before.keys)}
            earlier = np.array([positions.get(key, -1) for key in self.keys], np.intp)
            has_earlier = earlier >= 0
            increase[has_earlier] -= before.rows[earlier[has_earlier]]
        return increase.clip(0)


def traffic_totals(process: ProcessSnapshot) -> SubjectTotals:
    """Return the totals of all traffic, each route and each backend: the counters of ``TRAFFIC``,
    then the number of requests in each latency bucket."""
    requests = [_request_counts(flow) for flow in (*process.flows, *process.other_flows)]
    backends: dict[Key, list[int]] = {}
    for name, (backend, *_), value in _rows(process, _BACKEND_COLUMNS):
        numbers = backends.setdefault((BACKEND, backend), [0] * len(_BACKEND_COLUMNS))
        numbers[_BACKEND_COLUMNS[name]] += value
    keys = dict.fromkeys([(ALL, ""), *(key for each, _ in requests for key in each), *backends])
    positions = {key: position for position, key in enumerate(keys)}
    totals = np.zeros((len(positions), len(TRAFFIC) + BUCKETS), np.int64)
    if requests:
        counts = np.array([counts for _, counts in requests], np.int64)
        pairs = [(positions[key], row) for row, (each, _) in enumerate(requests) for key in each]
        subjects, rows = np.array(pairs).T
        np.add.at(totals, subjects, counts[rows])
    if backends:
        others = np.array([*backends.values()], np.int64)
        columns = slice(TRAFFIC_OUTCOMES, len(TRAFFIC))
        totals[[positions[key] for key in backends], columns] += others
        totals[positions[ALL, ""], columns] += others.sum(axis=0)
    return SubjectTotals(tuple(keys), totals)


def _request_counts(flow: RequestFlow) -> tuple[list[Key], tuple[float, ...]]:
    """Return the keys of a flow, and its row of numbers."""
    outcomes = flow.outcomes
    ok, clients = outcomes.get("ok", 0), client_errors(outcomes)
    failures = sum(outcomes.values()) - ok - clients
    route, _, backend, *_ = flow.labels
    named = [key for key in ((ROUTE, route), (BACKEND, backend)) if key[1]]
    return [(ALL, ""), *named], (ok, clients, failures, 0, 0, 0, 0, *flow.counts)


def endpoint_totals(process: ProcessSnapshot) -> SubjectTotals:
    """Return the ``ENDPOINT_COUNTERS`` and ``ENDPOINT_GAUGES`` of each endpoint, keyed by backend
    and endpoint."""
    width = len(ENDPOINT_COUNTERS) + len(ENDPOINT_GAUGES)
    totals: dict[Key, list[int]] = {}
    for name, (backend, endpoint, *label), value in _rows(process, _ENDPOINT_COLUMNS):
        column = _ENDPOINT_COLUMNS[name].get("".join(label))
        if column is not None:
            totals.setdefault((backend, endpoint), [0] * width)[column] += value
    return SubjectTotals(tuple(totals), np.array([*totals.values()], np.int64).reshape(-1, width))


def _rows(process: ProcessSnapshot, names: Container[str]) -> Iterator[tuple[str, Labels, int]]:
    """Yield the family name, the labels and the value of each row of the families ``names``.
    ``state.statistics`` would take twice as long, because it creates samples and JSON."""
    for family in process.families:
        if family.name in names and isinstance(family, MetricFamily):
            for labels, value in family.rows:
                assert not isinstance(value, HistogramValue)
                yield family.name, labels, int(value)
