"""The console's history of an hour: columns, memory, events, samples of requests, and queries."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from infergate.config.schema import Config
from infergate.core.duration_histogram import REQUEST_BUCKETS
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.request_record import RequestRecord
from infergate.core.wire import HttpRequest
from infergate.observe.family import MetricFamily
from infergate.observe.metrics import Metrics
from infergate.observe.recent_requests import (
    MAX_FAILURES,
    SLOW_WINDOW_SECONDS,
    ProcessSnapshot,
    RecentRequests,
    TensorShape,
    phases_of,
    sample_of,
    take_snapshot,
)
from infergate.observe.request_counters import RequestFlow
from infergate.runtime.console import state
from infergate.runtime.console.history import (
    COLUMNS,
    HUNG_SECONDS,
    INTERVAL_SECONDS,
    MAX_SUBJECTS,
    TrafficHistory,
)
from infergate.runtime.console.history_query import HistoryQuery
from infergate.runtime.console.history_sampler import HistorySampler
from infergate.runtime.console.history_totals import (
    ALL,
    BACKEND,
    ENDPOINT,
    ROUTE,
)
from infergate.runtime.console.sources import ConsoleSource, WorkerCounts
from infergate.runtime.gateway_events import MAX_DIFF_CHARS, MAX_EVENTS, GatewayEvents
from infergate.runtime.input_shapes import InputShapes
from infergate.transport.base import Address
from request_records import make_record

MIB = 1024 * 1024
START = 1_000_000.0
"""The time of the first sample, which is the start of a column."""


def flow_of(route: str, backend: str, bucket: int = 5, **outcomes: int) -> RequestFlow:
    total = sum(outcomes.values())
    buckets = [total if each == bucket else 0 for each in range(len(REQUEST_BUCKETS) + 1)]
    labels = (route, "v2-rest", backend, "v2-rest", "infer")
    return RequestFlow(labels, outcomes, tuple(buckets), 0.0, (0, 0.0), (0, 0.0), 0, 0)


def snapshot_of(
    *flows: RequestFlow,
    endpoints: tuple[dict[str, Any], ...] = (),
    backends: tuple[dict[str, Any], ...] = (),
    worker: int | None = None,
    process: int = 1,
) -> ProcessSnapshot:
    families = [
        *(family_of("endpoint_" + name, endpoints, name) for name in ("requests", "checks")),
        family_of("endpoint_ejections", endpoints, "ejections"),
        family_of("endpoint_addresses", [{**each, "states": each} for each in endpoints], "states"),
        family_of("retries", backends, "retries"),
        family_of("hedges", backends, "hedges"),
        family_of("queue_refusals", backends, "refusals"),
    ]
    return ProcessSnapshot(worker, {}, (), flows, families, (), process)


def family_of(name: str, entries: Sequence[dict[str, Any]], key: str) -> MetricFamily:
    """Return a family whose rows are the values of ``key`` in ``entries``. A value that is a dict
    has a row for each of its keys."""
    rows: list[tuple[tuple[str, ...], float]] = []
    for each in entries:
        labels = tuple(each[name] for name in ("backend", "endpoint") if name in each)
        value = each.get(key, {})
        numbers = value.items() if isinstance(value, dict) else [(None, value)]
        for label, number in numbers:
            if not isinstance(number, str | dict):
                rows.append(((*labels, label) if label else labels, number))
    return MetricFamily("counter", f"infergate_{name}", "", (), rows)


def hung(worker: int) -> ProcessSnapshot:
    """Return the entry of a worker that does not respond."""
    return snapshot_of(worker=worker, process=0)


def add(history: TrafficHistory, moment: float, *snapshots: ProcessSnapshot) -> None:
    """Add ``snapshots`` at ``moment``, the time of both clocks."""
    history.add(snapshots, moment, moment)


def counts(history: TrafficHistory, kind: str, name: str = "", backend: str = "") -> Any:
    """Return the counts of the last hour, or of the time since START if that is shorter."""
    series = history.series(kind, name, backend, 60)
    skipped = max(0, int(START - series["start"]) // INTERVAL_SECONDS)
    return {name: numbers[skipped:] for name, numbers in series["counts"].items()}


@pytest.fixture
def history() -> TrafficHistory:
    traffic = TrafficHistory(GatewayEvents())
    add(traffic, START, snapshot_of(flow_of("m", "b", ok=100)))
    return traffic


def test_only_what_happens_after_the_start_is_counted(history: TrafficHistory) -> None:
    add(history, START + 5, snapshot_of(flow_of("m", "b", ok=107, bad_request=2, connect=3)))
    flows = flow_of("m", "b", ok=108, bad_request=2, connect=3), flow_of("n", "b", ok=4)
    add(history, START + 12, snapshot_of(*flows))
    for kind, name in ((ALL, ""), (BACKEND, "b")):
        assert counts(history, kind, name)["requests"] == [12, 5]
    route = counts(history, ROUTE, "m")
    assert (route["client_errors"], route["failures"]) == ([2, 0], [3, 0])
    assert counts(history, ROUTE, "n")["requests"] == [0, 4], "n is a new route"
    assert counts(history, ROUTE, "unknown")["requests"] == [0, 0]


def test_latencies_are_counted_by_bucket_and_time(history: TrafficHistory) -> None:
    add(history, START + INTERVAL_SECONDS, snapshot_of(flow_of("m", "b", 5, ok=103)))
    series = history.series(ROUTE, "m", "", 60)
    assert series["start"] + series["interval"] * COLUMNS == START + 2 * INTERVAL_SECONDS
    before, last = series["latencies"][-2:]
    assert before == [0] * 18
    assert last[5] == sum(last) == 3


def test_the_counters_of_a_backend_are_in_its_series(history: TrafficHistory) -> None:
    row = {"backend": "b", "retries": {"broken": 2, "timeout": 1}, "hedges": {"won": 4}}
    add(history, START + 1, snapshot_of(backends=({**row, "refusals": {"full": 5}},)))
    series = counts(history, BACKEND, "b")
    assert (series["retries"], series["hedges"], series["refusals"]) == ([3], [4], [5])


def test_a_total_that_falls_counts_as_unchanged(history: TrafficHistory) -> None:
    add(history, START + 1, snapshot_of(flow_of("m", "b", ok=40)))
    add(history, START + 2, snapshot_of(flow_of("m", "b", ok=43)))
    assert counts(history, ROUTE, "m")["requests"] == [3]


def test_the_history_covers_one_hour(history: TrafficHistory) -> None:
    add(history, START + 1, snapshot_of(flow_of("m", "b", ok=101)))
    add(history, START + INTERVAL_SECONDS * COLUMNS, snapshot_of(flow_of("m", "b", ok=103)))
    requests = counts(history, ROUTE, "m")["requests"]
    assert requests == [0] * (COLUMNS - 1) + [2], "the first column is forgotten"
    assert len(history.series(ROUTE, "m", "", 15)["counts"]["requests"]) == 90
    later = START + INTERVAL_SECONDS * COLUMNS * 3
    add(history, later, snapshot_of(flow_of("m", "b", ok=103)))
    assert sum(counts(history, ROUTE, "m")["requests"]) == 0, "no column is left after a gap"


@pytest.mark.parametrize("change", [-5000, 7200])
def test_a_clock_that_is_set_moves_the_times_and_not_the_columns(
    history: TrafficHistory, change: int
) -> None:
    history.add([snapshot_of(flow_of("m", "b", ok=101))], START + 10, START + 10)
    history.add([snapshot_of(flow_of("m", "b", ok=103))], START + change + 20, START + 20)
    history.add([snapshot_of(flow_of("m", "b", ok=107))], START + change + 30.5, START + 30)
    series = history.series(ROUTE, "m", "", 60)
    assert series["counts"]["requests"][-4:] == [0, 1, 2, 4]
    assert series["start"] + COLUMNS * INTERVAL_SECONDS == START + change + 40
    [event] = history.events.as_json(float("-inf"))
    assert event["time"] - change == pytest.approx(time.monotonic(), abs=60), (
        "the time of an event moves with the clock"
    )


def test_the_memory_for_many_routes_is_limited() -> None:
    history = TrafficHistory(GatewayEvents())

    def endpoints(count: int) -> tuple[dict[str, Any], ...]:
        rows = [{"backend": f"b{i % 50}", "endpoint": f"http://h{i}"} for i in range(count)]
        return tuple(each | {"requests": {"ok": count}} for each in rows)

    flows = [flow_of(f"m{i}", f"b{i % 50}", ok=i) for i in range(200)]
    for moment in (START, START + 1):
        processes = (worker_of(each, *flows, endpoints=endpoints(100)) for each in range(8))
        add(history, moment, *processes)
    assert counts(history, ROUTE, "m199")["requests"] == [0]
    assert history.nbytes < 12 * MIB
    more = [flow_of(f"r{i}", f"c{i}", ok=i) for i in range(3 * MAX_SUBJECTS)]
    add(history, START + 2, worker_of(1, *more, endpoints=endpoints(3 * MAX_SUBJECTS)))
    assert 15 * MIB < history.nbytes < 18 * MIB, "the number of subjects is limited"


def test_nbytes_is_the_memory_that_is_used() -> None:
    endpoints = tuple(endpoint_of(endpoint=f"http://h{i}") for i in range(100))
    tracemalloc.start()
    try:
        history = TrafficHistory(GatewayEvents())
        for minute in range(60):
            flows = [flow_of(f"m{i}", f"b{i % 50}", ok=i + minute) for i in range(200)]
            add(history, START + 60 * minute, snapshot_of(*flows, endpoints=endpoints))
        del flows
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(counts(history, ROUTE, "m1")["requests"]) == 59
    assert used < 12 * MIB
    assert history.nbytes == pytest.approx(used, rel=0.1)


def test_a_subject_without_traffic_for_an_hour_makes_space() -> None:
    history = TrafficHistory(GatewayEvents())
    old = [flow_of(f"m{i}", "", ok=1) for i in range(MAX_SUBJECTS)]
    add(history, START, snapshot_of())
    add(history, START + 1, snapshot_of(*old))
    new = flow_of("new", "", ok=1)
    add(history, START + 2, snapshot_of(*old, new))
    assert counts(history, ROUTE, "new")["requests"] == [0], "there is no space"
    busy = flow_of("m1", "", ok=2)
    add(history, START + 60, snapshot_of(*old[2:], busy, new))
    later = START + INTERVAL_SECONDS * (COLUMNS + 3)
    add(history, later, snapshot_of(*old[2:], busy, flow_of("new", "", ok=4)))
    add(history, later + 1, snapshot_of(*old[2:], busy, flow_of("new", "", ok=9)))
    assert counts(history, ROUTE, "new")["requests"][-1] == 8
    assert sum(counts(history, ROUTE, "m1")["requests"]) == 1, "m1 had traffic in the last hour"


def test_requests_before_a_subject_gets_its_space_are_not_counted_later() -> None:
    history = TrafficHistory(GatewayEvents())
    old = [flow_of(f"m{i}", "", ok=1000) for i in range(MAX_SUBJECTS)]
    add(history, START, snapshot_of())
    add(history, START + 1, snapshot_of(*old))
    refused = flow_of("refused", "", ok=500)
    add(history, START + 2, snapshot_of(*old, refused))
    later = START + INTERVAL_SECONDS * (COLUMNS + 3)
    new = flow_of("new", "", ok=3)
    for each in (later, later + 1):
        add(history, each, snapshot_of(*old, refused, new))
    assert counts(history, ROUTE, "new")["requests"][-1] == 3, "new displaced an idle subject"
    for name in ("m3", f"m{MAX_SUBJECTS - 2}", "refused"):
        assert sum(counts(history, ROUTE, name)["requests"]) == 0, name
    active = flow_of("m3", "", ok=7)
    add(history, later + 2, snapshot_of(*old, active, refused, new))
    assert counts(history, ROUTE, "m3")["requests"][-1] == 7, "m3 is counted again"


def endpoint_of(**fields: Any) -> dict[str, Any]:
    return {"backend": "b", "endpoint": "http://h", **fields}


def test_ejections_and_failures_of_endpoints_are_events(history: TrafficHistory) -> None:
    def sample(seconds: float, **numbers: float) -> list[str]:
        before = len(history.events.as_json(0))
        add(history, START + seconds, snapshot_of(endpoints=(endpoint_of(**numbers),)))
        events = history.events.as_json(0)
        return [each["kind"] for each in events[: len(events) - before]]

    assert sample(1, available=1) == []
    assert sample(2, available=0, ejected=1, ejections=1) == ["ejected"]
    assert sample(3, available=0, ejected=1, ejections=1) == []
    assert sample(4, available=1, ejections=1) == ["up"]
    assert sample(5, available=0, down=1, ejections=1) == ["down"]
    assert sample(6, available=1, ejections=1) == ["up"]
    assert counts(history, ENDPOINT, "http://h", "b")["ejections"] == [1]
    assert sample(7, available=1, ejections=2) == ["up", "ejected"], (
        "the ejection ended before the sample"
    )
    assert sample(8, available=2, ejected=1, ejections=3) == ["ejected"], "one of three addresses"
    assert sample(9, available=3, ejections=3) == ["up"]
    assert sample(9.5, down=1, ejections=4) == ["down", "ejected"]


def test_the_number_and_the_size_of_events_are_limited() -> None:
    events = GatewayEvents()
    for _ in range(2 * MAX_EVENTS):
        events.add("reload", "t" * 5000, diff="d" * 100_000)
    entries = events.as_json(0)
    assert len(entries) == MAX_EVENTS
    assert len(entries[0]["diff"]) < MAX_DIFF_CHARS + 100
    assert len(entries[0]["text"]) < 1100


def test_events_of_many_endpoints_do_not_displace_a_reload() -> None:
    events = GatewayEvents()
    events.add("reload", "a new configuration is active", diff="+ a")
    for number in range(2 * MAX_EVENTS):
        events.add("down", "is down", "b", f"http://h{number}")
    entries = events.as_json(0)
    assert len(entries) == MAX_EVENTS + 2
    assert [each["kind"] for each in entries[-2:]] == ["reload", "start"]
    assert entries[0]["endpoint"] == f"http://h{2 * MAX_EVENTS - 1}", "the newest first"


# ---- several workers


def worker_of(worker: int, *flows: RequestFlow, process: int = 0, **more: Any) -> ProcessSnapshot:
    return snapshot_of(*flows, worker=worker, process=process or 100 + worker, **more)


@pytest.fixture
def workers() -> TrafficHistory:
    """The history of two workers that served 100 and 1000 requests before the history began."""
    traffic = TrafficHistory(GatewayEvents())
    flows = (flow_of("m", "b", ok=100), flow_of("m", "b", ok=1000))
    add(traffic, START, *(worker_of(number, each) for number, each in enumerate(flows)))
    return traffic


def kinds(history: TrafficHistory) -> list[str]:
    return [each["kind"] for each in history.events.as_json(0)]


def test_other_workers_are_counted_while_one_hangs(workers: TrafficHistory) -> None:
    for step in range(1, 6):
        add(workers, START + 10 * step, worker_of(0, flow_of("m", "b", ok=100 + step)), hung(1))
    assert counts(workers, ROUTE, "m")["requests"] == [0, 1, 1, 1, 1, 1]
    assert kinds(workers) == ["worker_hung", "start"], "the hung worker is reported once"
    response = HistoryQuery().to_json(workers, [], START + 50)
    assert response["missing"] == [{"worker": 1, "since": START}]


def test_requests_during_a_hang_are_distributed_over_its_time(workers: TrafficHistory) -> None:
    for step in range(1, 4):
        add(workers, START + 10 * step, worker_of(0, flow_of("m", "b", ok=100)), hung(1))
    late = worker_of(1, flow_of("m", "b", ok=1009, connect=2))
    add(workers, START + 40, worker_of(0, flow_of("m", "b", ok=100)), late)
    series = counts(workers, ROUTE, "m")
    assert series["requests"] == [0, 2, 2, 2, 5], "the requests of the hung worker are distributed"
    assert series["failures"] == [0, 0, 0, 0, 2]
    assert sum(map(sum, workers.series(ROUTE, "m", "", 60)["latencies"])) == 11
    assert kinds(workers) == ["worker_responds", "worker_hung", "start"]
    assert workers.missing == []


def test_a_late_response_is_no_event(workers: TrafficHistory) -> None:
    ready = worker_of(0, flow_of("m", "b", ok=100))
    add(workers, START + HUNG_SECONDS / 2, ready, hung(1))
    add(workers, START + 2 * HUNG_SECONDS, ready, worker_of(1, flow_of("m", "b", ok=1001)))
    assert sum(counts(workers, ROUTE, "m")["requests"]) == 1
    assert kinds(workers) == ["start"]


@pytest.mark.parametrize("snapshots", [(), (hung(1),)], ids=["not listed", "no response"])
def test_a_worker_that_was_restarted_counts_from_zero(
    workers: TrafficHistory, snapshots: tuple[ProcessSnapshot, ...]
) -> None:
    ready = worker_of(0, flow_of("m", "b", ok=100))
    add(workers, START + 1, ready, *snapshots)
    add(workers, START + 2, ready, worker_of(1, flow_of("m", "b", ok=2000), process=7))
    assert counts(workers, ROUTE, "m")["requests"] == [2000]


def test_a_worker_that_starts_counts_from_zero_although_it_responds_late(
    workers: TrafficHistory,
) -> None:
    ready = worker_of(0, flow_of("m", "b", ok=100))
    add(workers, START + 1, ready)
    add(workers, START + 2, ready, hung(2))
    add(workers, START + 3, ready, worker_of(2, flow_of("m", "b", ok=5)))
    assert counts(workers, ROUTE, "m")["requests"] == [5]


def test_a_worker_that_hangs_when_the_history_begins_is_counted_from_its_response() -> None:
    history = TrafficHistory(GatewayEvents())
    add(history, START, hung(1))
    add(history, START + 1, worker_of(1, flow_of("m", "b", ok=1000)))
    add(history, START + 2, worker_of(1, flow_of("m", "b", ok=1003)))
    assert counts(history, ROUTE, "m")["requests"] == [3]


def test_a_hung_worker_does_not_change_the_state_of_endpoints() -> None:
    history = TrafficHistory(GatewayEvents())
    entries = [{"endpoints": (endpoint_of(**each),)} for each in ({"available": 1}, {"ejected": 1})]
    add(history, START, *(worker_of(number, **each) for number, each in enumerate(entries)))
    add(history, START + 1, worker_of(0, **entries[0]), hung(1))
    assert kinds(history) == ["start"]
    available = {"endpoints": (endpoint_of(available=1, ejections=2),)}
    add(history, START + 2, worker_of(0, **available), hung(1))
    assert kinds(history) == ["ejected", "start"], "the other worker's ejections are events"
    add(history, START + 3, worker_of(0, **available))
    assert kinds(history) == ["up", "ejected", "start"], "the hung worker has ended"


# ---- the sampler


class Workers:
    """Two workers. The second does not respond if ``hangs`` is set. ``recent`` sets ``began``, and
    returns when ``may_respond`` is set."""

    config = Config.default()
    addresses: Mapping[str, Address] = {}
    workers = WorkerCounts(2, 2)

    def __init__(self) -> None:
        self.reads = 0
        self.hangs = False
        self.began, self.may_respond = asyncio.Event(), asyncio.Event()
        self.may_respond.set()
        self.metrics, self.requests = Metrics(), RecentRequests()

    async def recent(self) -> list[ProcessSnapshot]:
        self.reads += 1
        second = ProcessSnapshot(1, {}, (), (), ())
        if not self.hangs:
            second = take_snapshot(self.requests, Metrics(), 1)
        snapshots = [take_snapshot(self.requests, self.metrics, 0), second]
        self.began.set()
        await asyncio.sleep(0)
        await self.may_respond.wait()
        return snapshots


@pytest.mark.parametrize("hangs", [False, True])
async def test_concurrent_readers_share_a_sample(hangs: bool) -> None:
    workers = Workers()
    workers.hangs = hangs
    workers.requests.record_failure(sample_of(record_of(outcome="connect"), "failure", 0.1, 1.0))
    sampler = HistorySampler(cast("ConsoleSource", workers), GatewayEvents())
    for reads in (1, 2):
        results = await asyncio.gather(*(sampler.refresh() for _ in range(9)))
        assert workers.reads == reads
        assert {each[0].failures[0].request_id for each in results} == {"failure"}
    assert [each["worker"] for each in sampler.history.missing] == [1] * hangs


async def test_a_reader_sees_all_requests_that_finished_earlier() -> None:
    workers = Workers()
    sampler = HistorySampler(cast("ConsoleSource", workers), GatewayEvents())
    for number in range(1, 4):
        await sampler.refresh()
        workers.metrics.record(record_of(), 0.1)
        await sampler.refresh()
        requests = sampler.history.series(ALL, "", "", 60)["counts"]["requests"]
        assert sum(requests) == number, "even just after another refresh"


async def test_a_reader_does_not_share_a_sample_that_began_earlier() -> None:
    workers = Workers()
    sampler = HistorySampler(cast("ConsoleSource", workers), GatewayEvents())
    await sampler.refresh()
    workers.may_respond.clear()
    workers.began.clear()
    early = asyncio.create_task(sampler.refresh())
    await workers.began.wait()
    workers.metrics.record(record_of(), 0.1)
    late = [asyncio.create_task(sampler.refresh()) for _ in range(9)]
    await asyncio.sleep(0)
    workers.may_respond.set()
    await asyncio.gather(early, *late)
    assert sum(sampler.history.series(ALL, "", "", 60)["counts"]["requests"]) == 1
    assert workers.reads == 3, "the late readers share one sample"


async def test_a_failed_sample_does_not_prevent_the_next_one() -> None:
    workers = Workers()
    sampler = HistorySampler(cast("ConsoleSource", workers), GatewayEvents())
    del workers.metrics
    with pytest.raises(AttributeError):
        await sampler.refresh()
    workers.metrics = Metrics()
    await sampler.refresh()
    assert workers.reads == 2


def test_a_flow_that_is_listed_late_does_not_bring_its_earlier_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("infergate.observe.request_counters.MAX_FLOWS", 1)
    metrics, history = Metrics(), TrafficHistory(GatewayEvents())

    def sample(seconds: float, **requests: int) -> None:
        for route, count in requests.items():
            for _ in range(count):
                metrics.record(record_of(route=route), 0.1)
        add(history, START + seconds, take_snapshot(RecentRequests(), metrics))

    sample(1)
    sample(2, busy=9, late=5)
    sample(10, late=6, other=1)
    assert counts(history, ROUTE, "late")["requests"] == [5, 6]
    assert counts(history, ROUTE, "busy")["requests"] == [9, 0]
    assert counts(history, BACKEND, "b")["requests"] == [14, 7]
    assert counts(history, ALL)["requests"] == [14, 7]
    assert sum(map(sum, history.series(ALL, "", "", 60)["latencies"])) == 21


# ---- requests


def record_of(**fields: Any) -> RequestRecord:
    return make_record(
        **{"protocol": "v2-rest", "operation": "infer", "route": "m", "backend": "b"} | fields
    )


def test_client_errors_do_not_displace_failures() -> None:
    recent, metrics = RecentRequests(), Metrics()
    recent.record_failure(sample_of(record_of(outcome="connect"), "failure", 0.1, 1.0))
    for number in range(3 * MAX_FAILURES):
        record = record_of(outcome="bad_request")
        recent.record_failure(sample_of(record, f"client {number}", 0.1, 2.0 + number))
    snapshot = take_snapshot(recent, metrics)
    assert len(snapshot.failures) == 1 + MAX_FAILURES
    for requests in (
        HistoryQuery().to_json(TrafficHistory(GatewayEvents()), [snapshot], 1000.0)["failed"],
        state.recent_failures([snapshot]),
    ):
        ids = [each["request_id"] for each in requests]
        assert ids[0] == f"client {3 * MAX_FAILURES - 1}", "the newest first"
        assert ids[-1] == "failure"


def test_the_slowest_request_of_each_route_is_kept() -> None:
    metrics, recent = Metrics(), RecentRequests()
    take_snapshot(recent, metrics)
    for route, seconds in (("m", 0.2), ("m", 0.9), ("m", 0.5), ("quick", 0.001)):
        record = record_of(route=route)
        if metrics.record(record, seconds):
            recent.record_slowest(sample_of(record, f"{route}-{seconds}", seconds, 1.0))
    slowest = take_snapshot(recent, metrics).slowest
    assert [each.request_id for each in slowest] == ["m-0.9", "quick-0.001"]


def test_slow_requests_are_forgotten_after_two_windows() -> None:
    metrics, recent = Metrics(), RecentRequests()
    now = 10 * SLOW_WINDOW_SECONDS
    recent.start_window_if_due(metrics, now)
    assert metrics.record(record_of(), 5.0)
    recent.record_slowest(sample_of(record_of(), "r1", 5.0, 1.0))
    assert not metrics.record(record_of(), 4.0)
    recent.start_window_if_due(metrics, now + SLOW_WINDOW_SECONDS)
    assert [each.request_id for each in recent.slowest()] == ["r1"]
    assert metrics.record(record_of(), 4.0), "the slowest of the new window"
    recent.start_window_if_due(metrics, now + 2 * SLOW_WINDOW_SECONDS)
    assert recent.slowest() == ()


def test_the_phases_of_a_request_add_up_to_its_duration() -> None:
    record = record_of(
        started_at=10.0, received_at=10.1, backend_started_at=10.3, backend_seconds=1.0,
        queue_seconds=0.4, connect_seconds=0.2,
    )  # fmt: skip
    phases = dict(phases_of(record, 1.5))
    assert phases == pytest.approx(
        {"receive": 0.1, "parse": 0.2, "queue": 0.4, "connect": 0.2, "backend": 0.4, "render": 0.2}
    )
    rejected = record_of(started_at=10.0, received_at=10.1)
    assert dict(phases_of(rejected, 0.3)) == pytest.approx({"receive": 0.1, "parse": 0.2})


def v2_request(inputs: int = 1, size: int = 1) -> HttpRequest:
    tensor = f'{{"name":"x","datatype":"FP32","shape":[{size}],"data":[{",".join("1" * size)}]}}'
    body = f'{{"inputs":[{",".join([tensor.replace("x", f"x{i}") for i in range(inputs)])}]}}'
    return HttpRequest("POST", "/v2/models/m/infer", body=[body.encode()])


def test_datatypes_and_shapes_of_inputs_are_read_within_limits() -> None:
    shapes = InputShapes(DEFAULT_LIMITS)
    assert shapes.read("v2-rest", v2_request(), 1.0) == (TensorShape("x0", "FP32", (1,)),)
    is_read = [bool(shapes.read("v2-rest", v2_request(), 1.01)) for _ in range(20)]
    assert is_read.count(True) == 9, "about ten a second"
    assert len(shapes.read("v2-rest", v2_request(inputs=100), 2.0)) == 16
    assert shapes.read("v2-rest", v2_request(size=50_000), 3.0) == (), "too much JSON"
    broken = HttpRequest("POST", "/v2/models/m/infer", body=[b"{"])
    assert shapes.read("v2-rest", broken, 4.0) == ()
    assert shapes.read("openai", v2_request(), 5.0) == ()


# ---- queries and their JSON


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("", HistoryQuery()),
        ("minutes=15", HistoryQuery(minutes=15)),
        ("minutes=99", HistoryQuery(minutes=60)),
        ("route=a%2Fb", HistoryQuery(ROUTE, "a/b")),
        ("backend=b&minutes=0", HistoryQuery(BACKEND, "b", minutes=1)),
        ("endpoint=http://h&backend=b", HistoryQuery(ENDPOINT, "http://h", "b")),
    ],
)
def test_a_query_selects_a_subject(text: str, query: HistoryQuery) -> None:
    assert HistoryQuery.parse(text) == query


@pytest.mark.parametrize(
    "text", ["minutes=many", "minutes=-1", "minutes=1000", "endpoint=x", "route=a&backend=b", "x=1"]
)
def test_an_invalid_query_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"minutes|expected|unknown"):
        HistoryQuery.parse(text)


def test_the_json_has_the_requests_and_events_of_its_subject(history: TrafficHistory) -> None:
    history.events.add("ejected", "out", "b", "http://h")
    history.events.add("ejected", "out", "other", "http://h")
    samples = [
        sample_of(record_of(outcome="connect", backend=backend), backend, 0.1 * number, number)
        for number, backend in enumerate(("b", "other", "b"))
    ]
    process = ProcessSnapshot(3, {}, tuple(samples), (), (), tuple(samples))
    now = history.events.as_json(0)[0]["time"] + 1
    selected = HistoryQuery(BACKEND, "b").to_json(history, [process], now)
    assert [each["time"] for each in selected["failed"]] == [2, 0], "the newest first"
    assert selected["failed"][0]["worker"] == 3
    assert selected["failed"][0]["advice"]
    assert [each["kind"] for each in selected["events"]] == ["ejected", "start"]
    everything = HistoryQuery().to_json(history, [process], now)
    assert len(everything["failed"]) == 3
    assert len(everything["events"]) == 3
    assert HistoryQuery().to_json(history, [process], now + 7200)["events"] == []
