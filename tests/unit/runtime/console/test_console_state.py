from __future__ import annotations

from typing import Any

import pytest

from infergate.core.errors import GatewayError, Kind
from infergate.core.request_record import RequestRecord
from infergate.core.stats import EndpointStats
from infergate.observe.aggregation import AggregatedMetrics
from infergate.observe.metrics import Metrics
from infergate.observe.recent_requests import (
    MAX_FAILURES,
    ProcessSnapshot,
    RecentRequests,
    TensorShape,
    sample_of,
    take_snapshot,
)
from infergate.runtime.console import state
from infergate.runtime.console.explanations import MEANINGS, explain
from request_records import make_record


def record_of(**fields: Any) -> RequestRecord:
    defaults = {
        "protocol": "v2-rest", "operation": "infer", "model": "m", "route": "m", "backend": "b",
        "backend_protocol": "v2-grpc", "pipeline": "translate",
    }  # fmt: skip
    return make_record(**defaults | fields)


def record(metrics: Metrics, times: int = 1, **fields: Any) -> None:
    for _ in range(times):
        metrics.record(record_of(**fields), 0.1)


def statistics_of(*metrics: Metrics) -> Any:
    return state.statistics([take_snapshot(RecentRequests(), each) for each in metrics])


def test_statistics_include_exited_processes() -> None:
    first, second, exited, past = Metrics(), Metrics(), Metrics(), AggregatedMetrics()
    for metrics in (first, second, exited):
        metrics.record(record_of(bytes_in=10, backend_seconds=0.01), 0.02)
        metrics.in_flight.set(2)
    exited.record(record_of(route="old"), 500.0)
    past.add(exited.registry.collect(), has_exited=True)
    past_snapshot = ProcessSnapshot(None, {}, (), (), list(past.collect()))
    running = [take_snapshot(RecentRequests(), each, i) for i, each in enumerate((first, second))]
    statistics = state.statistics([*running, past_snapshot])
    flow, old = statistics["flows"]
    assert (flow["outcomes"], flow["bytes_in"]) == ({"ok": 3}, 30)
    assert (flow["seconds"]["count"], flow["seconds"]["buckets"][-1]) == (3, [None, 3])
    assert flow["backend_seconds"]["count"] == 3
    assert flow["seconds"]["sum"] == pytest.approx(0.06)
    assert (old["route"], old["seconds"]["buckets"][-2:]) == ("old", [[300.0, 0], [None, 1]])
    assert statistics["totals"]["in_flight"] == 4, "requests of running processes only"


def test_errors_of_clients_are_counted_apart_from_failures() -> None:
    metrics = Metrics()
    for kind, times in ((Kind.BAD_REQUEST, 3), (Kind.CANCELLED, 2), (Kind.CONNECT, 5)):
        record(metrics, times, outcome=kind.value)
    record(metrics)
    (flow,) = statistics_of(metrics)["flows"]
    assert flow["client_errors"] == 5
    assert sum(flow["outcomes"].values()) == 11


def test_the_busiest_flows_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infergate.observe.request_counters.MAX_FLOWS", 2)
    metrics = Metrics()
    for number in range(4):
        record(metrics, number, route=f"r{number}")
    assert [each["route"] for each in statistics_of(metrics)["flows"]] == ["r3", "r2"]


def test_a_failing_flow_with_few_requests_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infergate.observe.request_counters.MAX_FLOWS", 2)
    metrics = Metrics()
    for route, outcome, times in (
        ("busy", "ok", 9), ("failing", "connect", 1), ("wrong", "bad_request", 5), ("idle", "ok", 1)
    ):  # fmt: skip
        record(metrics, times, route=route, outcome=outcome)
    assert [each["route"] for each in statistics_of(metrics)["flows"]] == ["failing", "busy"]


def test_a_flow_that_was_left_out_earlier_has_the_time_of_its_listing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("infergate.observe.request_counters.MAX_FLOWS", 1)
    first, second = Metrics(), Metrics()

    def record_and_list(**requests: int) -> dict[str, float]:
        for route, count in requests.items():
            record(first, count, route=route)
        flows = statistics_of(first, second)["flows"]
        return {each["route"]: each["listed_since"] for each in flows}

    assert record_and_list(busy=2) == {"busy": 0}
    assert record_and_list(late=1) == {"busy": 0}
    record(second, route="late")
    assert record_and_list() == {"busy": 0, "late": 0}, "listed by the other process"
    listed_since = record_and_list(late=2)
    assert listed_since["late"] > 0, "the counters contain requests that were left out"
    assert record_and_list(late=1) == listed_since


def test_a_flow_has_all_its_counters() -> None:
    metrics = Metrics()
    metrics.record(record_of(bytes_in=10, bytes_out=20, backend_seconds=0.01), 0.02)
    failed = record_of(bytes_in=1)
    failed.record_error(GatewayError(Kind.TIMEOUT, "late"))
    metrics.record(failed, 40.0)
    [flow] = statistics_of(metrics)["flows"]
    assert flow["outcomes"] == {"ok": 1, "timeout": 1}
    labels = flow["route"], flow["protocol"], flow["backend_protocol"]
    assert labels == ("m", "v2-rest", "v2-grpc")
    assert flow["seconds"]["count"] == 2
    assert flow["seconds"]["sum"] == pytest.approx(40.02)
    assert flow["seconds"]["buckets"][-1] == [None, 2], "JSON has no infinity"
    assert dict(map(tuple, flow["seconds"]["buckets"]))[0.025] == 1
    assert flow["backend_seconds"]["count"] == 1
    assert set(flow) >= {"gateway_seconds"}
    assert (flow["bytes_in"], flow["bytes_out"]) == (11, 20)


@pytest.mark.parametrize(
    ("stats", "health"),
    [
        ({"available": 1}, "unknown"),
        ({"available": 1, "failed": 1}, "failing"),
        ({"available": 1, "ok": 1}, "up"),
        ({"available": 1, "checks_ok": 1, "failed": 3}, "up"),
        ({"available": 1, "down": 1}, "degraded"),
        ({"down": 2, "ok": 7}, "down"),
        ({"ejected": 1, "ok": 7}, "ejected"),
    ],
)
def test_endpoint_health_follows_the_counters(stats: dict[str, int], health: str) -> None:
    metrics = Metrics()
    metrics.endpoints.source = lambda: [EndpointStats("b", "http://a:1", **stats)]
    [row] = statistics_of(metrics)["endpoints"]
    assert (row["backend"], row["endpoint"], row["health"]) == ("b", "http://a:1", health)
    assert row["requests"] == {"ok": stats.get("ok", 0), "failed": stats.get("failed", 0)}


def test_backends_have_retries_and_queue_lengths() -> None:
    metrics = Metrics()
    counters = metrics.backends.backend_counters("b")
    counters.retries["not_sent"] = 3
    counters.queued = 2
    [row] = statistics_of(metrics)["backends"]
    assert (row["retries"], row["waiting"]) == ({"not_sent": 3}, 2)


def test_pipeline_counts_of_several_processes_are_added() -> None:
    first, second = RecentRequests(), RecentRequests()
    first.pipelines["a", "b", "translate"] = 2
    second.pipelines["a", "b", "translate"] = 3
    second.pipelines["a", "a", "forward"] = 1
    snapshots = take_snapshot(first, Metrics(), 0), take_snapshot(second, Metrics(), 1)
    assert [each["count"] for each in state.pipeline_counts(snapshots)] == [1, 5]


INPUTS = (TensorShape("x", "FP32", (2, 3)),)


def test_the_latest_failures_of_all_processes_are_explained() -> None:
    snapshots = []
    for worker in (0, 1):
        recent = RecentRequests()
        for number in range(MAX_FAILURES + 5):
            failed = record_of(model="m" * 1000)
            failed.record_error(GatewayError(Kind.CONNECT, "e" * 5000, detail="d"))
            recent.record_failure(
                sample_of(failed, f"{worker}-{number}", 0.5, number * 2 + worker, INPUTS)
            )
        snapshots.append(take_snapshot(recent, Metrics(), worker))
    failures = state.recent_failures(snapshots)
    assert len(failures) == state.MAX_FAILURES
    assert [each["request_id"] for each in failures[:3]] == ["1-104", "0-104", "1-103"]
    assert failures[0]["worker"] == 1
    assert len(failures[0]["error"]) == 1024
    assert len(failures[0]["model"]) == 256
    assert failures[0]["meaning"] == MEANINGS["connect"]
    assert failures[0]["inputs"] == [{"name": "x", "datatype": "FP32", "shape": (2, 3)}]
    assert [each["phase"] for each in failures[0]["phases"]] == ["receive", "parse"]
    assert failures[0]["advice"].startswith("Check that the server")


def test_every_kind_of_error_is_explained() -> None:
    assert set(MEANINGS) == {kind.value for kind in Kind}
    for kind in MEANINGS:
        explanation = explain(kind)
        assert explanation["meaning"].endswith(".")
        assert explanation["advice"][0].isupper()
        assert explanation["advice"][-1] in ".?"


def test_an_unknown_kind_has_no_explanation() -> None:
    recent = RecentRequests()
    recent.record_failure(sample_of(record_of(outcome="new"), "r1", 0.1, 1.0))
    [failure] = state.recent_failures([take_snapshot(recent, Metrics())])
    assert (failure["kind"], failure["meaning"], failure["advice"]) == ("new", "", "")
