"""One hour of counters of all processes, in bounded memory. This module has no I/O.

The history reads the totals of the metrics, and keeps their increases in columns of ten seconds. It
adds no work to requests. The increase is computed for each process, so that the history of the
other workers continues while a worker does not respond.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from infergate.core.duration_histogram import REQUEST_BUCKETS
from infergate.observe.recent_requests import ProcessSnapshot
from infergate.observe.request_counters import BUCKETS
from infergate.runtime.console.history_totals import (
    ALL,
    ENDPOINT,
    ENDPOINT_COUNTERS,
    ENDPOINT_GAUGES,
    ENDPOINT_OUTCOMES,
    TRAFFIC,
    TRAFFIC_OUTCOMES,
    Counts,
    Key,
    SubjectTotals,
    endpoint_totals,
    traffic_totals,
)
from infergate.runtime.gateway_events import GatewayEvents

Json = dict[str, Any]
INTERVAL_SECONDS: Final = 10
COLUMNS: Final = 360
"""The number of columns: one hour."""
MAX_SUBJECTS: Final = 384
"""Maximum number of routes and backends together, and of endpoints, that have a history. At
the maximum, a new subject replaces a subject without traffic for an hour; if there is none, the new
subject has no history."""
HUNG_SECONDS: Final = 10.0
"""Seconds without a response after which an event reports that a worker hangs."""
_MIN_SUBJECTS: Final = 16
_EJECTIONS: Final = ENDPOINT_COUNTERS.index("ejections")


class _Table:
    """The columns of up to ``MAX_SUBJECTS`` subjects, each with ``width`` numbers."""

    def __init__(self, width: int) -> None:
        self._positions: Final[dict[Key, int]] = {}
        self._counts = np.zeros((COLUMNS, _MIN_SUBJECTS, width), np.uint32)
        self._free: Final = [*range(_MIN_SUBJECTS)]

    @property
    def nbytes(self) -> int:
        return self._counts.nbytes

    def clear(self, columns: range) -> None:
        for column in columns:
            self._counts[column % COLUMNS] = 0

    def add(self, columns: range, keys: Sequence[Key], increase: Counts) -> None:
        """Add the ``increase`` of each of ``keys`` in equal parts to ``columns``, and the remainder
        to the last column."""
        is_full = False
        numbers = increase.astype(np.uint32)
        part = numbers // len(columns)
        remainder = numbers - part * (len(columns) - 1)
        earlier = np.array(columns[-COLUMNS:-1], np.intp) % COLUMNS
        for row in np.flatnonzero(increase.any(axis=1)).tolist():
            position = self._positions.get(keys[row])
            if position is None:
                is_full = is_full or not self._make_space()
                if is_full:
                    continue
                position = self._positions[keys[row]] = self._free.pop()
            if earlier.size:
                self._counts[earlier, position] += part[row]
            self._counts[columns[-1] % COLUMNS, position] += remainder[row]

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

    def read(self, key: Key, columns: range) -> Counts:
        """Return the counts of ``key`` in ``columns``. They are 0 if ``key`` is unknown."""
        position = self._positions.get(key)
        if position is None:
            return np.zeros((len(columns), self._counts.shape[2]), np.int64)
        return self._counts[[column % COLUMNS for column in columns], position].astype(np.int64)


@dataclass(slots=True)
class _Process:
    """The last counters of a process, read at ``time`` of the monotonic clock."""

    id: int | None
    """The process ID. It is 0 if the process has not responded yet, and None if such a process may
    have served before the history began."""
    time: float
    column: int
    traffic: SubjectTotals = field(default_factory=SubjectTotals)
    endpoints: SubjectTotals = field(default_factory=SubjectTotals)
    is_hung: bool = False


class TrafficHistory:
    """The counters of the last hour, and the ``events``. Columns follow the monotonic clock; only
    the times that are shown follow the wall clock."""

    def __init__(self, events: GatewayEvents) -> None:
        self.events: Final = events
        self.missing: list[Json] = []
        """The workers that did not respond to the last reading, and the wall-clock time of their
        counters."""
        self._traffic: Final = _Table(len(TRAFFIC) + BUCKETS)
        self._endpoints: Final = _Table(len(ENDPOINT_COUNTERS))
        self._processes: dict[int | None, _Process] = {}
        self._origin: float | None = None
        """The difference between the wall clock and the monotonic clock at the first sample."""
        self._clock_change = 0
        """The shift of the wall clock against the monotonic clock since the first sample, in
        seconds, rounded to a multiple of the interval."""
        self._last_column = 0
        self._availabilities: dict[Key, str] = {}

    @property
    def nbytes(self) -> int:
        """The memory of the counters, in bytes."""
        processes = self._processes.values()
        totals = sum(each.traffic.nbytes + each.endpoints.nbytes for each in processes)
        return self._traffic.nbytes + self._endpoints.nbytes + totals

    def add(self, snapshots: Sequence[ProcessSnapshot], now: float, monotonic_time: float) -> None:
        """Add the counters of all processes that serve, read at wall-clock time ``now``. The first
        counters are only the baseline for later increases. A process that starts later counts from
        0. Counts of the time in which a worker did not respond are distributed evenly over this
        time. The counters of exited workers are ignored, because they were added while the workers
        ran."""
        is_first = self._origin is None
        column = self._advance(now, monotonic_time)
        processes: dict[int | None, _Process] = {}
        ejected: dict[Key, int] = {}
        missing: list[Json] = []
        for each in snapshots:
            if each.worker is None and not each.process:
                continue
            before = self._processes.get(each.worker)
            if not each.process:
                before = before or _Process(None if is_first else 0, monotonic_time, column)
                processes[each.worker] = before
                seconds = monotonic_time - before.time
                missing.append({"worker": each.worker, "since": now - seconds})
                if seconds >= HUNG_SECONDS and not before.is_hung:
                    before.is_hung = True
                    text = f"worker {each.worker} has not responded for {seconds:.0f} s"
                    self.events.add("worker_hung", text)
                continue
            read = traffic_totals(each), endpoint_totals(each)
            process = processes[each.worker] = _Process(each.process, monotonic_time, column, *read)
            if before is None or before.id not in {None, each.process}:
                before = _Process(0, monotonic_time, column)  # a new process
            if before.is_hung:
                seconds = monotonic_time - before.time
                text = f"worker {each.worker} responds again after {seconds:.0f} s"
                self.events.add("worker_responds", f"{text}; its counts of this time are averages")
            if not is_first:
                self._add_increase(process, before, ejected)
        self._processes, self.missing = processes, missing
        self._add_events(ejected, is_first=is_first)

    def _advance(self, now: float, monotonic_time: float) -> int:
        """Return the column of ``monotonic_time``, and clear the columns since the last reading."""
        if self._origin is None:
            self._origin = now - monotonic_time
        time = monotonic_time + self._origin
        column = int(time // INTERVAL_SECONDS)
        error = now - time - self._clock_change
        if abs(error) >= INTERVAL_SECONDS:
            self._clock_change += round(error / INTERVAL_SECONDS) * INTERVAL_SECONDS
            self.events.set_clock(now, monotonic_time)
        if self._last_column:
            new = range(max(self._last_column + 1, column - COLUMNS + 1), column + 1)
            self._traffic.clear(new)
            self._endpoints.clear(new)
        self._last_column = column
        return column

    def _add_increase(self, process: _Process, before: _Process, ejected: dict[Key, int]) -> None:
        """Add the counts of ``process`` since ``before`` to the columns since then, and the
        ejections to ``ejected``."""
        traffic = process.traffic.increase_since(before.traffic)
        endpoints = process.endpoints.increase_since(before.endpoints)
        if before.id is None:
            return
        columns = range(min(before.column + 1, process.column), process.column + 1)
        self._traffic.add(columns, process.traffic.keys, traffic)
        counts = endpoints[:, : len(ENDPOINT_COUNTERS)]
        self._endpoints.add(columns, process.endpoints.keys, counts)
        for row in np.flatnonzero(counts[:, _EJECTIONS]).tolist():
            key = process.endpoints.keys[row]
            ejected[key] = ejected.get(key, 0) + int(counts[row, _EJECTIONS])

    def _add_events(self, ejected: Mapping[Key, int], *, is_first: bool) -> None:
        """Add an event for each endpoint that was ejected, went down or came up again. The last
        known state applies to the endpoints of a worker that does not respond."""
        gauges: dict[Key, Counts] = {}
        for process in self._processes.values():
            addresses = process.endpoints.rows[:, -len(ENDPOINT_GAUGES) :]
            for key, numbers in zip(process.endpoints.keys, addresses, strict=True):
                gauges[key] = gauges[key] + numbers if key in gauges else numbers
        availabilities = {key: _availability(*numbers) for key, numbers in gauges.items()}
        for key, availability in availabilities.items():
            backend, endpoint = key
            before, times = self._availabilities.get(key, "up"), ejected.get(key, 0)
            if is_first or (not times and availability == before):
                continue
            if times:
                how_often = f" {times} times" if times > 1 else ""
                text = f"{endpoint} of {backend} was ejected{how_often}, because requests failed"
                self.events.add("ejected", text, backend, endpoint)
            if availability == "down" != before:
                text = f"{endpoint} of {backend} is down: its health checks fail"
                self.events.add("down", text, backend, endpoint)
            elif availability == "up":  # perhaps in the same sample, if the ejection was short
                self.events.add(
                    "up", f"{endpoint} of {backend} is available again", backend, endpoint
                )
        self._availabilities = availabilities

    def series(self, kind: str, name: str, backend: str, minutes: int) -> Json:
        """Return the counts of the last ``minutes`` (up to 60) of a subject: ``ALL`` traffic, or
        the ROUTE or BACKEND called ``name``, or the ENDPOINT ``name`` of ``backend``."""
        count = min(max(minutes, 1) * 60 // INTERVAL_SECONDS, COLUMNS)
        columns = range(self._last_column - count + 1, self._last_column + 1)
        start = columns.start * INTERVAL_SECONDS + self._clock_change
        result: Json = {"start": start, "interval": INTERVAL_SECONDS}
        names: tuple[str, ...] = TRAFFIC
        outcomes = TRAFFIC_OUTCOMES
        if kind == ENDPOINT:
            names, outcomes = ENDPOINT_COUNTERS, ENDPOINT_OUTCOMES
            counts = self._endpoints.read((backend, name), columns)
        else:
            counts = self._traffic.read((kind, "" if kind == ALL else name), columns)
            result["bounds"] = [*REQUEST_BUCKETS, None]
            result["latencies"] = counts[:, len(TRAFFIC) :].tolist()
        requests = counts[:, :outcomes].sum(axis=1).tolist()
        others = {each: counts[:, i].tolist() for i, each in enumerate(names) if each != "ok"}
        return result | {"counts": {"requests": requests, **others}}


def _availability(available: int, down: int, ejected: int) -> str:
    """Return the availability of an endpoint from the numbers of its addresses. While an address is
    available, the endpoint is ``ejected`` if another address is ejected, and otherwise ``up``. If
    no address is available, the endpoint is ``down`` unless more addresses are ejected than down.
    An endpoint without addresses is ``up``."""
    if available or not down + ejected:
        return "ejected" if ejected else "up"
    return "down" if down >= ejected else "ejected"
