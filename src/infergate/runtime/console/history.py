"""One hour of counters of the whole gateway, in bounded memory. This module has no I/O.

The history reads totals that the metrics count anyway, and keeps their increases in columns of ten
seconds. It adds no work to requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from infergate.core.duration_histogram import REQUEST_BUCKETS
from infergate.observe.request_counters import RequestFlow, client_errors
from infergate.runtime.gateway_events import GatewayEvents

Json = dict[str, Any]
INTERVAL_SECONDS: Final = 10
COLUMNS: Final = 360
"""The number of columns: one hour."""
ALL: Final = "all"
ROUTE, BACKEND, ENDPOINT = "route", "backend", "endpoint"
MAX_SUBJECTS: Final = 384
"""Maximum number of routes and backends with a history, and maximum number of endpoints. When the
number is reached, a new subject replaces one without traffic for an hour."""
_TRAFFIC: Final = (
    "requests", "client_errors", "failures", "retries", "hedges", "refusals", "ejections",
)  # fmt: skip
_EJECTIONS: Final = _TRAFFIC.index("ejections")
_REQUEST_COUNTS: Final = 3
"""The number of the first of ``_TRAFFIC``, which are counts of requests."""
_BUCKETS: Final = len(REQUEST_BUCKETS) + 1
_ENDPOINT: Final = ("requests", "failures", "ejections", "failed_checks")
_MIN_SUBJECTS: Final = 16
Key = tuple[str, str]
Counts = npt.NDArray[np.int64]


class _Table:
    """The columns of up to ``MAX_SUBJECTS`` subjects, each with ``width`` numbers."""

    def __init__(self, width: int) -> None:
        self._positions: Final[dict[Key, int]] = {}
        self._totals: dict[Key, Counts] = {}
        """The last totals, also of subjects that have no position."""
        self._counts = np.zeros((COLUMNS, _MIN_SUBJECTS, width), np.uint32)
        self._free: Final = [*range(_MIN_SUBJECTS)]

    @property
    def nbytes(self) -> int:
        totals = len(self._totals) * (self._counts.shape[2] * 8 + 112)  # 112: numpy's overhead
        return self._counts.nbytes + totals

    def clear(self, columns: Iterator[int] | range) -> None:
        for column in columns:
            self._counts[column % COLUMNS] = 0

    def add(self, column: int, totals: Mapping[Key, Counts], *, is_first: bool) -> None:
        """Add the increase of ``totals`` since the last call to ``column``. The first totals after
        a start (``is_first``) add nothing, because their increase is unknown. A total that falls,
        because a process has ended, counts as unchanged."""
        old = self._totals
        self._totals = {key: old[key] for key in self._positions} | dict(totals)
        if is_first:
            return
        is_full = False
        for key, total in totals.items():
            before = old.get(key)
            increase = total if before is None else np.maximum(total - before, 0)
            if not increase.any():
                continue
            position = self._positions.get(key)
            if position is None:
                is_full = is_full or not self._make_space()
                if is_full:
                    continue
                position = self._positions[key] = self._free.pop()
            self._counts[column % COLUMNS, position] += increase.astype(np.uint32)

    def _make_space(self) -> bool:
        """Return whether there is a free position, after growing the table or removing subjects
        that had no traffic for an hour."""
        if self._free:
            return True
        old = self._counts
        size = min(2 * old.shape[1], MAX_SUBJECTS)
        if size > old.shape[1]:
            self._counts = np.zeros((COLUMNS, size, old.shape[2]), np.uint32)
            self._counts[:, : old.shape[1]] = old
            self._free.extend(range(old.shape[1], size))
            return True
        has_traffic: list[bool] = (old.max(axis=(0, 2)) > 0).tolist()
        for key in [key for key, at in self._positions.items() if not has_traffic[at]]:
            self._free.append(self._positions.pop(key))
        return bool(self._free)

    def read(self, key: Key, columns: range) -> Counts | None:
        """Return the counts of ``columns``, or None if there are none."""
        position = self._positions.get(key)
        if position is None:
            return None
        return self._counts[[column % COLUMNS for column in columns], position].astype(np.int64)


class TrafficHistory:
    """The counters of the last hour, and the ``events``."""

    def __init__(self, events: GatewayEvents) -> None:
        self.events: Final = events
        self._traffic: Final = _Table(len(_TRAFFIC) + _BUCKETS)
        self._endpoints: Final = _Table(len(_ENDPOINT))
        self.is_empty = True
        """Whether no counters have been added yet."""
        self._last_column = 0
        self._healths: dict[Key, str] = {}
        self._ejections: dict[Key, float] = {}

    @property
    def nbytes(self) -> int:
        """The memory of the counters, in bytes."""
        return self._traffic.nbytes + self._endpoints.nbytes

    def add(self, statistics: Json, now: float, flows: Sequence[RequestFlow] = ()) -> None:
        """Add ``statistics`` (``state.statistics``) and further ``flows`` at wall-clock time
        ``now``."""
        column = int(now // INTERVAL_SECONDS)
        is_first, self.is_empty = self.is_empty, False
        if not is_first and column > self._last_column:
            new = range(max(self._last_column + 1, column - COLUMNS + 1), column + 1)
            self._traffic.clear(new)
            self._endpoints.clear(new)
        elif not is_first:
            column = self._last_column  # the clock was set back
        self._last_column = column
        self._traffic.add(column, _traffic_totals(statistics, flows), is_first=is_first)
        endpoints = {(row["backend"], row["endpoint"]): row for row in statistics["endpoints"]}
        totals = {key: _endpoint_totals(row) for key, row in endpoints.items()}
        self._endpoints.add(column, totals, is_first=is_first)
        self._add_events(endpoints, is_first=is_first)

    def _add_events(self, endpoints: Mapping[Key, Json], *, is_first: bool) -> None:
        """Add an event for each endpoint that was ejected, went down or came up again."""
        healths = {key: _availability(row) for key, row in endpoints.items()}
        ejections = {key: row.get("ejections", 0.0) for key, row in endpoints.items()}
        for key, health in healths.items():
            backend, endpoint = key
            before = self._healths.get(key, "up")
            ejected = ejections[key] - self._ejections.get(key, 0.0)
            if is_first or (ejected <= 0 and health == before):
                continue
            if ejected > 0:
                times = f" {ejected:.0f} times" if ejected > 1 else ""
                text = f"{endpoint} of {backend} was ejected{times}, because requests failed"
                self.events.add("ejected", text, backend, endpoint)
            if health == "down" != before:
                text = f"{endpoint} of {backend} is down: its health checks fail"
                self.events.add("down", text, backend, endpoint)
            elif health == "up":  # perhaps in the same sample, if the ejection was short
                self.events.add(
                    "up", f"{endpoint} of {backend} is available again", backend, endpoint
                )
        self._healths, self._ejections = healths, ejections

    def series(self, kind: str, name: str, backend: str, minutes: int) -> Json:
        """Return the counts of the last ``minutes`` (up to 60) of a subject: ``ALL`` traffic, or
        the ROUTE or BACKEND called ``name``, or the ENDPOINT ``name`` of ``backend``."""
        count = min(max(minutes, 1) * 60 // INTERVAL_SECONDS, COLUMNS)
        columns = range(self._last_column - count + 1, self._last_column + 1)
        result: Json = {"start": columns.start * INTERVAL_SECONDS, "interval": INTERVAL_SECONDS}
        names = _ENDPOINT if kind == ENDPOINT else _TRAFFIC
        if kind == ENDPOINT:
            counts = self._endpoints.read((backend, name), columns)
        else:
            counts = self._traffic.read((kind, "" if kind == ALL else name), columns)
        if counts is None:
            counts = np.zeros((len(columns), len(names) + _BUCKETS), np.int64)
        result["counts"] = {each: counts[:, i].tolist() for i, each in enumerate(names)}
        if kind != ENDPOINT:
            latencies = counts[:, len(_TRAFFIC) : len(_TRAFFIC) + _BUCKETS]
            result["bounds"] = [*REQUEST_BUCKETS, None]
            result["latencies"] = latencies.tolist()
        return result


def _traffic_totals(statistics: Json, flows: Sequence[RequestFlow]) -> dict[Key, Counts]:
    """Return the totals of ALL traffic, of each route and of each backend. Totals are the numbers
    of ``_TRAFFIC``, then the requests in each latency bucket."""
    requests = [
        _request_counts(flow.labels[0], flow.labels[2], flow.outcomes, flow.counts)
        for flow in flows
    ]
    for exited in statistics["flows"]:
        cumulative = [0, *(count for _, count in exited["seconds"]["buckets"])]
        counts = [after - before for before, after in pairwise(cumulative)]
        requests.append(
            _request_counts(exited["route"], exited["backend"], exited["outcomes"], counts)
        )
    backends = {(BACKEND, backend["backend"]): backend for backend in statistics["backends"]}
    ejections: dict[Key, float] = {}
    for row in statistics["endpoints"]:
        owner = BACKEND, row["backend"]
        ejections[owner] = ejections.get(owner, 0) + row.get("ejections", 0)
    keys = dict.fromkeys(
        [(ALL, ""), *(key for each, _ in requests for key in each), *backends, *ejections]
    )
    positions = {key: position for position, key in enumerate(keys)}
    totals = np.zeros((len(positions), len(_TRAFFIC) + _BUCKETS), np.int64)
    if requests:
        numbers = np.array([numbers for _, numbers in requests], np.int64)
        pairs = [(positions[key], row) for row, (each, _) in enumerate(requests) for key in each]
        subjects, rows = np.array(pairs).T
        np.add.at(totals, subjects, numbers[rows])
    for key, backend in backends.items():
        for column, name in enumerate(("retries", "hedges", "refusals"), _REQUEST_COUNTS):
            number = int(sum(backend.get(name, {}).values()))
            totals[[positions[ALL, ""], positions[key]], column] += number
    for key, times in ejections.items():
        totals[[positions[ALL, ""], positions[key]], _EJECTIONS] += int(times)
    return {key: totals[position] for key, position in positions.items()}


def _request_counts(
    route: str, backend: str, outcomes: Mapping[str, float], counts: Sequence[float]
) -> tuple[list[Key], tuple[float, ...]]:
    """Return the subjects of a flow and its numbers."""
    requests, clients = sum(outcomes.values()), client_errors(outcomes)
    failures = requests - outcomes.get("ok", 0) - clients
    named = [key for key in ((ROUTE, route), (BACKEND, backend)) if key[1]]
    return [(ALL, ""), *named], (requests, clients, failures, 0, 0, 0, 0, *counts)


def _endpoint_totals(row: Json) -> Counts:
    requests, checks = row.get("requests", {}), row.get("checks", {})
    failed = requests.get("failed", 0)
    numbers = (
        requests.get("ok", 0) + failed,
        failed,
        row.get("ejections", 0),
        checks.get("failed", 0),
    )
    return np.array(numbers, np.int64)


def _availability(row: Json) -> str:
    """Return ``ejected`` if an address is ejected, ``down`` if the checks of all addresses fail,
    and otherwise ``up``."""
    if row.get("available"):
        return "ejected" if row.get("ejected") else "up"
    down, ejected = row.get("down", 0), row.get("ejected", 0)
    if not down + ejected:
        return "up"
    return "down" if down >= ejected else "ejected"
