"""The history of the last hour: its columns, its memory, its events and its JSON."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Mapping
from typing import Any, cast

import pytest

from infergate.config.schema import Config
from infergate.core.duration_histogram import REQUEST_BUCKETS
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.request_record import RequestRecord
from infergate.core.wire import HttpRequest
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
from infergate.runtime.console import state
from infergate.runtime.console.history import (
    ALL,
    BACKEND,
    COLUMNS,
    ENDPOINT,
    INTERVAL_SECONDS,
    MAX_SUBJECTS,
    ROUTE,
    TrafficHistory,
)
from infergate.runtime.console.history_query import HistoryQuery
from infergate.runtime.console.history_sampler import HistorySampler
from infergate.runtime.console.sources import ConsoleSource, WorkerCounts
from infergate.runtime.gateway_events import MAX_DIFF_CHARS, MAX_EVENTS, GatewayEvents
from infergate.runtime.input_shapes import InputShapes
from infergate.transport.base import Address

MIB = 1024 * 1024
START = 1_000_000.0
"""The wall-clock time of the first sample, the start of a column."""


def flow_of(route: str, backend: str, bucket: int = 5, **outcomes: int) -> dict[str, Any]:
    clients = outcomes.get("bad_request", 0)
    total = sum(outcomes.values())
    cumulative = [0] * bucket + [total] * (len(REQUEST_BUCKETS) + 1 - bucket)
    return {
        "route": route, "backend": backend, "outcomes": outcomes, "client_errors": clients,
        "seconds": {"buckets": [[None, each] for each in cumulative]},
    }  # fmt: skip


def statistics_of(
    *flows: dict[str, Any],
    endpoints: tuple[dict[str, Any], ...] = (),
    backends: tuple[dict[str, Any], ...] = (),
) -> dict[str, Any]:
    return {"flows": list(flows), "endpoints": list(endpoints), "backends": list(backends)}


def counts(history: TrafficHistory, kind: str, name: str = "", backend: str = "") -> Any:
    """Return the counts of the last hour, or since START if that was later."""
    series = history.series(kind, name, backend, 60)
    skipped = max(0, int(START - series["start"]) // INTERVAL_SECONDS)
    return {name: numbers[skipped:] for name, numbers in series["counts"].items()}


@pytest.fixture
def history() -> TrafficHistory:
    found = TrafficHistory(GatewayEvents())
    found.add(statistics_of(flow_of("m", "b", ok=100)), START)
    return found


def test_only_what_happens_after_the_start_is_counted(history: TrafficHistory) -> None:
    history.add(statistics_of(flow_of("m", "b", ok=107, bad_request=2, connect=3)), START + 5)
    history.add(
        statistics_of(flow_of("m", "b", ok=108, bad_request=2, connect=3), flow_of("n", "b", ok=4)),
        START + 12,
    )
    for kind, name in ((ALL, ""), (BACKEND, "b")):
        assert counts(history, kind, name)["requests"] == [12, 5]
    route = counts(history, ROUTE, "m")
    assert (route["client_errors"], route["failures"]) == ([2, 0], [3, 0])
    assert counts(history, ROUTE, "n")["requests"] == [0, 4], "its first request is counted"
    assert counts(history, ROUTE, "unknown")["requests"] == [0, 0]


def test_latencies_are_counted_by_bucket_and_time(history: TrafficHistory) -> None:
    history.add(statistics_of(flow_of("m", "b", 5, ok=103)), START + INTERVAL_SECONDS)
    series = history.series(ROUTE, "m", "", 60)
    assert series["start"] + series["interval"] * COLUMNS == START + 2 * INTERVAL_SECONDS
    before, last = series["latencies"][-2:]
    assert before == [0] * 18
    assert last[5] == sum(last) == 3


def test_retries_and_hedges_are_those_of_the_backend(history: TrafficHistory) -> None:
    row = {"backend": "b", "retries": {"broken": 2, "timeout": 1}, "hedges": {"won": 4}}
    history.add(statistics_of(backends=({**row, "refusals": {"full": 5}},)), START + 1)
    shown = counts(history, BACKEND, "b")
    assert (shown["retries"], shown["hedges"], shown["refusals"]) == ([3], [4], [5])


def test_a_total_that_falls_counts_as_unchanged(history: TrafficHistory) -> None:
    history.add(statistics_of(flow_of("m", "b", ok=40)), START + 1)
    history.add(statistics_of(flow_of("m", "b", ok=43)), START + 2)
    assert counts(history, ROUTE, "m")["requests"] == [3]


def test_the_history_covers_one_hour(history: TrafficHistory) -> None:
    history.add(statistics_of(flow_of("m", "b", ok=101)), START + 1)
    history.add(statistics_of(flow_of("m", "b", ok=103)), START + INTERVAL_SECONDS * COLUMNS)
    requests = counts(history, ROUTE, "m")["requests"]
    assert requests == [0] * (COLUMNS - 1) + [2], "the first column is forgotten"
    assert len(history.series(ROUTE, "m", "", 15)["counts"]["requests"]) == 90
    later = START + INTERVAL_SECONDS * COLUMNS * 3
    history.add(statistics_of(flow_of("m", "b", ok=103)), later)
    assert sum(counts(history, ROUTE, "m")["requests"]) == 0, "nothing is left after a gap"


def test_a_clock_that_is_set_back_does_not_erase_the_history(history: TrafficHistory) -> None:
    history.add(statistics_of(flow_of("m", "b", ok=101)), START + 100)
    history.add(statistics_of(flow_of("m", "b", ok=103)), START - 5000)
    assert sum(counts(history, ROUTE, "m")["requests"]) == 3


def test_200_routes_need_less_than_20_mb() -> None:
    history = TrafficHistory(GatewayEvents())
    endpoints = tuple({"backend": f"b{i}", "endpoint": f"http://h{i}"} for i in range(100))
    flows = [flow_of(f"m{i}", f"b{i % 50}", ok=i) for i in range(200)]
    history.add(statistics_of(*flows, endpoints=endpoints), START)
    assert counts(history, ROUTE, "m199")["requests"] == [0]
    assert history.nbytes < 12 * MIB
    more = [flow_of(f"r{i}", f"c{i}", ok=i) for i in range(3 * MAX_SUBJECTS)]
    endpoints = tuple({"backend": f"c{i}", "endpoint": "e"} for i in range(3 * MAX_SUBJECTS))
    history.add(statistics_of(*more, endpoints=endpoints), START + 1)
    assert history.nbytes < 18 * MIB, "the number of subjects is limited"


def test_the_memory_that_is_counted_is_the_memory_that_is_used() -> None:
    endpoints = tuple(endpoint_of(endpoint=f"http://h{i}") for i in range(100))
    tracemalloc.start()
    try:
        history = TrafficHistory(GatewayEvents())
        for minute in range(60):
            flows = [flow_of(f"m{i}", f"b{i % 50}", ok=i + minute) for i in range(200)]
            history.add(statistics_of(*flows, endpoints=endpoints), START + 60 * minute)
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
    history.add(statistics_of(), START)
    history.add(statistics_of(*old), START + 1)
    new = flow_of("new", "", ok=1)
    history.add(statistics_of(*old, new), START + 2)
    assert counts(history, ROUTE, "new")["requests"] == [0], "there is no space"
    busy = flow_of("m1", "", ok=2)
    history.add(statistics_of(*old[2:], busy, new), START + 60)
    later = START + INTERVAL_SECONDS * (COLUMNS + 3)
    history.add(statistics_of(*old[2:], busy, flow_of("new", "", ok=4)), later)
    history.add(statistics_of(*old[2:], busy, flow_of("new", "", ok=9)), later + 1)
    assert counts(history, ROUTE, "new")["requests"][-1] == 8
    assert sum(counts(history, ROUTE, "m1")["requests"]) == 1, "it had traffic in the last hour"


def test_requests_before_a_subject_gets_its_space_are_not_counted_later() -> None:
    history = TrafficHistory(GatewayEvents())
    old = [flow_of(f"m{i}", "", ok=1000) for i in range(MAX_SUBJECTS)]
    history.add(statistics_of(), START)
    history.add(statistics_of(*old), START + 1)
    refused = flow_of("refused", "", ok=500)
    history.add(statistics_of(*old, refused), START + 2)
    later = START + INTERVAL_SECONDS * (COLUMNS + 3)
    new = flow_of("new", "", ok=3)
    for each in (later, later + 1):
        history.add(statistics_of(*old, refused, new), each)
    assert counts(history, ROUTE, "new")["requests"][-1] == 3, "it has the space of an idle one"
    for name in ("m3", f"m{MAX_SUBJECTS - 2}", "refused"):
        assert sum(counts(history, ROUTE, name)["requests"]) == 0, name
    active = flow_of("m3", "", ok=7)
    history.add(statistics_of(*old, active, refused, new), later + 2)
    assert counts(history, ROUTE, "m3")["requests"][-1] == 7, "it is counted again"


def endpoint_of(**fields: Any) -> dict[str, Any]:
    return {"backend": "b", "endpoint": "http://h", **fields}


def test_events_tell_when_an_endpoint_was_ejected_or_went_down(history: TrafficHistory) -> None:
    def step(at: float, **numbers: float) -> list[str]:
        before = len(history.events.as_json(0))
        history.add(statistics_of(endpoints=(endpoint_of(**numbers),)), START + at)
        events = history.events.as_json(0)
        return [each["kind"] for each in events[: len(events) - before]]

    assert step(1, available=1) == []
    assert step(2, available=0, ejected=1, ejections=1) == ["ejected"]
    assert step(3, available=0, ejected=1, ejections=1) == []
    assert step(4, available=1, ejections=1) == ["up"]
    assert step(5, available=0, down=1, ejections=1) == ["down"]
    assert step(6, available=1, ejections=1) == ["up"]
    assert counts(history, ENDPOINT, "http://h", "b")["ejections"] == [1]
    assert step(7, available=1, ejections=2) == ["up", "ejected"], "it ended before the sample"
    assert step(8, available=2, ejected=1, ejections=3) == ["ejected"], "one of three addresses"
    assert step(9, available=3, ejections=3) == ["up"]
    assert step(9.5, down=1, ejections=4) == ["down", "ejected"]


def test_the_number_and_the_size_of_events_are_limited() -> None:
    events = GatewayEvents()
    for _ in range(2 * MAX_EVENTS):
        events.add("reload", "t" * 5000, diff="d" * 100_000)
    found = events.as_json(0)
    assert len(found) == MAX_EVENTS
    assert len(found[0]["diff"]) < MAX_DIFF_CHARS + 100
    assert len(found[0]["text"]) < 1100


def test_events_of_many_endpoints_do_not_displace_a_reload() -> None:
    events = GatewayEvents()
    events.add("reload", "a new configuration is active", diff="+ a")
    for number in range(2 * MAX_EVENTS):
        events.add("down", "is down", "b", f"http://h{number}")
    found = events.as_json(0)
    assert len(found) == MAX_EVENTS + 2
    assert [each["kind"] for each in found[-2:]] == ["reload", "start"]
    assert found[0]["endpoint"] == f"http://h{2 * MAX_EVENTS - 1}", "the newest first"


# ---- the sampler


class Workers:
    """Two workers, of which the second does not respond if it ``hangs``."""

    config = Config.default()
    addresses: Mapping[str, Address] = {}
    workers = WorkerCounts(2, 2)

    def __init__(self) -> None:
        self.reads = 0
        self.hangs = False
        self.metrics, self.requests = Metrics(), RecentRequests()

    async def recent(self) -> list[ProcessSnapshot]:
        self.reads += 1
        await asyncio.sleep(0.01)
        numbers = (0,) if self.hangs else (0, 1)
        return [take_snapshot(self.requests, self.metrics, number) for number in numbers]


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
    assert sampler.history.is_empty == hangs, "sums without a worker would fall"


# ---- requests


def record_of(**fields: Any) -> RequestRecord:
    return RequestRecord(
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
        HistoryQuery().answer(TrafficHistory(GatewayEvents()), [snapshot], 1000.0)["failed"],
        state.recent_failures([snapshot]),
    ):
        found = [each["request_id"] for each in requests]
        assert found[0] == f"client {3 * MAX_FAILURES - 1}", "the newest first"
        assert found[-1] == "failure"


def test_the_slowest_request_of_each_route_is_kept() -> None:
    metrics, recent = Metrics(), RecentRequests()
    take_snapshot(recent, metrics)
    for route, seconds in (("m", 0.2), ("m", 0.9), ("m", 0.5), ("quick", 0.001)):
        record = record_of(route=route)
        if metrics.record(record, seconds):
            recent.record_slowest(sample_of(record, f"{route}-{seconds}", seconds, 1.0))
    found = take_snapshot(recent, metrics).slowest
    assert [each.request_id for each in found] == ["m-0.9", "quick-0.001"]


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


def test_the_inputs_of_a_request_have_names_datatypes_and_shapes() -> None:
    shapes = InputShapes(DEFAULT_LIMITS)
    assert shapes.read("v2-rest", v2_request(), 1.0) == (TensorShape("x0", "FP32", (1,)),)
    read = [bool(shapes.read("v2-rest", v2_request(), 1.01)) for _ in range(20)]
    assert read.count(True) == 9, "about ten a second"
    assert len(shapes.read("v2-rest", v2_request(inputs=100), 2.0)) == 16
    assert shapes.read("v2-rest", v2_request(size=50_000), 3.0) == (), "too much JSON"
    broken = HttpRequest("POST", "/v2/models/m/infer", body=[b"{"])
    assert shapes.read("v2-rest", broken, 4.0) == ()
    assert shapes.read("openai", v2_request(), 5.0) == ()


# ---- the JSON


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
    shown = HistoryQuery(BACKEND, "b").answer(history, [process], now)
    assert [each["time"] for each in shown["failed"]] == [2, 0], "the newest first"
    assert shown["failed"][0]["worker"] == 3
    assert shown["failed"][0]["advice"]
    assert [each["kind"] for each in shown["events"]] == ["ejected", "start"]
    everything = HistoryQuery().answer(history, [process], now)
    assert len(everything["failed"]) == 3
    assert len(everything["events"]) == 3
    assert HistoryQuery().answer(history, [process], now + 7200)["events"] == []
