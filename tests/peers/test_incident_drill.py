"""Tests that the console's JSON, the commands and the log report the requests and events of an
incident drill. No test depends on the speed of the machine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from e2e.several import until
from infergate.cli.top import TrafficQuery
from peers.incident_drill import (
    BACKENDS,
    CLIENT_KINDS,
    FIRST_FAILURE_ID,
    MODELS,
    PROTOCOLS,
    ROUTES,
    SLOW_SECONDS,
    Drill,
    started_drill,
    sums,
)

pytestmark = pytest.mark.peers


@pytest.fixture(scope="module")
def drill() -> Iterator[Drill]:
    with started_drill() as running:
        yield running


# ---- the console


def test_the_history_counts_each_request_failure_and_client_error(drill: Drill) -> None:
    for subject, routes in {**ROUTES, **BACKENDS}.items():
        totals = sums(drill.history(subject))
        assert (
            totals["requests"], totals["failures"], totals["client_errors"]
        ) == drill.sent.traffic(*routes), subject  # fmt: skip
    everything = sums(drill.history())
    assert everything["requests"] == sum(drill.sent.counts.values())
    assert everything["client_errors"] == drill.sent.traffic("good", "")[2]


def test_slow_requests_are_in_the_buckets_of_slow_requests(drill: Drill) -> None:
    history = drill.history("route=slow")
    slow = [n for n, bound in enumerate(history["bounds"]) if bound is None or bound > 0.5]
    count = sum(column[bucket] for column in history["latencies"] for bucket in slow)
    assert count == drill.sent.counts["slow", "ok"]


def test_each_ejection_is_an_event_within_its_time(drill: Drill) -> None:
    assert sums(drill.history("backend=flapping"))["ejections"] == len(drill.sent.flaps)
    address = f"http://{drill.servers['flapping'].address}"
    query = f"backend=flapping&endpoint={address}"
    assert sums(drill.history(query))["ejections"] == len(drill.sent.flaps)
    ejected = drill.events("ejected", query=query)[::-1]
    for event, (start, end) in zip(ejected, drill.sent.flaps, strict=True):
        assert start <= event["time"] <= end
        assert (event["backend"], event["endpoint"]) == ("flapping", address)
    until(lambda: len(drill.events("up")) == len(ejected), "the endpoint is available again")


def test_each_event_is_listed_once_and_the_newest_first(drill: Drill) -> None:
    changes = drill.history("minutes=15")["events"]
    times = [each["time"] for each in changes]
    assert times == sorted(times, reverse=True)
    kinds = Counter(each["kind"] for each in changes if each["kind"] != "up")
    assert kinds == {"start": 1, "ejected": 2, "reload": 1, "reload_failed": 1}
    reload, rejected = (drill.events(kind)[0] for kind in ("reload", "reload_failed"))
    for event, (start, end) in zip((reload, rejected), drill.sent.reloads, strict=True):
        assert start <= event["time"] <= end
    changed = [each for each in reload["diff"].splitlines() if each[:2] in {"- ", "+ "}]
    assert changed == ["-  timeout: 30s", "+  timeout: 20s"]
    assert (
        f"routes.yaml:{drill.bad_line}: routes[5].timeout: expected a duration"
        in (rejected["text"])
    )


def test_the_previous_configuration_stays_active(drill: Drill) -> None:
    state, config = drill.get("/console/state"), drill.get("/console/config")
    assert (state["config"]["number"], state["config"]["last_reload"]["ok"]) == (2, False)
    assert "timeout: 20s" in config["loaded"]
    assert f":{drill.bad_line}:" in str(config["mistakes"])
    assert state["ready"], "one failing backend of five does not make the gateway unready"


def test_failed_requests_have_timelines_and_inputs(drill: Drill) -> None:
    failed = drill.history("backend=failing")["failed"]
    assert {each["kind"] for each in failed} == {"backend_garbage"}
    assert len(failed) == min(20, drill.sent.counts["failing", "failed"])
    timed_out = drill.history("route=impatient")["failed"]
    assert {each["kind"] for each in timed_out} == {"timeout"}
    assert len(timed_out) == drill.sent.counts["impatient", "failed"]
    for sample in failed + timed_out:
        phases = {each["phase"]: each["seconds"] for each in sample["phases"]}
        assert sum(phases.values()) == pytest.approx(sample["seconds"], abs=0.02)
        if sample in failed or "backend" in phases:  # a late request may time out before it is sent
            assert phases["connect"] + phases["backend"] > 0
        assert sample["advice"]
    # The inputs of at most ten requests per second are read; this request is the first to fail.
    failures = {each["request_id"]: each for each in drill.get("/console/state")["failures"]}
    (pixels,) = failures[FIRST_FAILURE_ID]["inputs"]
    assert tuple(map(str, pixels.values())) == ("pixels", "FP32", "[2, 2]")
    assert all(each == pixels for sample in failed for each in sample["inputs"])
    timelines = [{each["phase"] for each in sample["phases"]} for sample in timed_out]
    assert any(phases >= {"parse", "queue", "backend"} for phases in timelines)


def test_the_slowest_requests_waited_for_the_backend(drill: Drill) -> None:
    slowest = drill.history("route=slow")["slowest"]
    protocols = {each["protocol"] for each in slowest}
    assert protocols == {"v2-rest", "trtis-grpc"}
    for sample in slowest:
        phases = {each["phase"]: each["seconds"] for each in sample["phases"]}
        assert phases["backend"] >= SLOW_SECONDS


def test_many_client_errors_do_not_displace_the_first_failure(drill: Drill) -> None:
    for failures in (drill.get("/console/state")["failures"], drill.history()["failed"]):
        is_client_error = Counter(each["kind"] in CLIENT_KINDS for each in failures)
        assert is_client_error[True] >= 20
        assert is_client_error[False] >= 20
    requests = drill.get("/console/state")["failures"]
    assert FIRST_FAILURE_ID in {each["request_id"] for each in requests}


# ---- the commands


def test_backends_and_routes_list_failures_first(drill: Drill) -> None:
    backends = json.loads(drill.command("backends", "--json"))
    assert [each["name"] for each in backends][:2] == ["failing", "slow"]
    for backend in backends:
        traffic, routes = backend["traffic"], BACKENDS.get(f"backend={backend['name']}", ())
        assert (
            traffic["requests"], traffic["failures"], traffic["client_errors"]
        ) == drill.sent.traffic(*routes)  # fmt: skip
    [flapping] = [each for each in backends if each["name"] == "flapping"]
    ejections = {each["endpoint"]: each["ejections"] for each in flapping["endpoints"]}
    assert ejections[f"http://{drill.servers['flapping'].address}"] == len(drill.sent.flaps)
    assert sum(ejections.values()) == len(drill.sent.flaps)
    lines = drill.command("routes").splitlines()
    names = [line.split()[1] for line in lines if line.split()[:1] and line.split()[0].isdecimal()]
    assert names[:2] == ["failing", "impatient"]
    assert names[-1] == "idle"


def test_health_shows_the_rejected_reload_with_its_line(drill: Drill) -> None:
    text = drill.command("health")
    assert f"routes.yaml:{drill.bad_line}: routes[5].timeout" in text.replace("\n", "")
    assert "ready" in text
    endpoints = json.loads(drill.command("health", "--json"))["endpoints"]
    assert {each["health"] for each in endpoints if each["backend"] == "failing"} <= {
        "failing", "ejected", "down",
    }  # fmt: skip


def test_trace_shows_the_first_failure(drill: Drill) -> None:
    [request] = json.loads(drill.command("trace", FIRST_FAILURE_ID, "--json"))
    assert (request["backend"], request["kind"]) == ("failing", "backend_garbage")
    text = drill.command("trace", FIRST_FAILURE_ID)
    assert all(word in text for word in ("backend_garbage", "timeline", "pixels", "[2, 2]"))


def test_a_frame_of_top_has_the_requests_since_the_previous_frame(drill: Drill) -> None:
    top = TrafficQuery(f"http://{drill.gateway.admin}", 0.01)
    top()
    for _ in range(3):
        drill.clients.infer("v2-rest", "failing", "failed")
    for protocol in PROTOCOLS:
        drill.clients.infer(protocol, "good", "ok")
    drill.clients.post("/v2/models/good/infer", b"{", "good", "client error")
    frame = top().data
    names = ("requests", "failures", "client_errors")
    routes = {each["label"]: [each["traffic"][name] for name in names] for each in frame["routes"]}
    assert [*routes.items()][:2] == [("failing", [3, 3, 0]), ("good", [8, 0, 1])]
    assert all(routes[name] == [0, 0, 0] for name in MODELS if name not in {"failing", "good"})
    assert [each["name"] for each in frame["backends"]][:2] == ["failing", "good"]
    text = drill.command("top", "--count", "1", "--interval", "0.1")
    tables = [each.splitlines() for each in text.split("\n\n") if "failures first" in each]
    first = [table[2].split()[0] for table in tables]
    assert first == ["failing", "failing"], "failing rows stay first without new requests"


# ---- the log


def test_the_log_has_each_request_and_each_event(drill: Drill) -> None:
    expected = sum(drill.sent.counts.values())
    until(lambda: len(drill.gateway.logged("request")) == expected, "all lines are written")
    counts: Counter[tuple[str, str]] = Counter()
    for line in drill.gateway.logged("request"):
        outcome = line["outcome"]
        kind = "client error" if outcome in CLIENT_KINDS else "ok" if outcome == "ok" else "failed"
        counts[line.get("route") or "", kind] += 1
    assert counts == drill.sent.counts
    ejected = drill.gateway.logged("endpoint_ejected")
    assert len(ejected) == len(drill.sent.flaps)
    [rejected] = drill.gateway.logged("config_refused")
    assert f"routes.yaml:{drill.bad_line}: routes[5].timeout" in rejected["message"]
