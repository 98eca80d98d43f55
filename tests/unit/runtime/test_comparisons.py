"""The path /comparisons of the admin listener, and summaries of all workers and across reloads."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from infergate.comparison.outcomes import Comparison
from infergate.comparison.settings import MirrorComparison
from infergate.comparison.summary import Summary
from infergate.config.schema import Config
from infergate.core.counters import RouteCounters
from infergate.core.datatypes import Datatype
from infergate.core.messages import InferRequest
from infergate.core.request_context import RequestContext
from infergate.core.tensor import tensor_from_array
from infergate.core.wire import HttpRequest, HttpResponse, join_parts
from infergate.gateway.gateway import RoutingGateway
from infergate.observe.metrics import Metrics
from infergate.routing.table import MirrorTarget, Route
from infergate.runtime.admin import AdminApp
from infergate.runtime.comparisons import PATH, ComparisonsApp, encode_summaries, make_comparer
from infergate.runtime.config_history import ConfigHistory
from infergate.runtime.running import RunningGateway
from infergate.runtime.workers.messages import WorkerCommand
from infergate.runtime.workers.supervisor import Supervisor
from running_gateways import quiet_config, serving
from waiting import until


def summary_of(*routes: str) -> Summary:
    summary = Summary()
    for route in routes:
        summary.add(route, "m", Comparison("ok", "timeout", "outcome"))
    return summary


class Source:
    def __init__(self, *routes: str) -> None:
        self.summary = summary_of(*routes)

    async def comparisons(self) -> Sequence[bytes]:
        return await encode_summaries([self.summary, summary_of("a")])

    async def reset_comparisons(self) -> None:
        self.summary = Summary()


def admin(source: Source, *, actions: bool = False) -> AdminApp:
    async def ready() -> bool:
        return True

    app = ComparisonsApp(source, ("ops.example",), allows_reset=actions)
    return AdminApp(Metrics().scrape, ready, ConfigHistory(), apps={PATH: lambda: app})


async def send(
    app: AdminApp, method: str = "GET", path: str = PATH, query: str = "", **headers: str
) -> tuple[HttpResponse, bytes]:
    wire = HttpRequest(method, path, query, headers)
    response = await app.respond(wire, RequestContext("test"))
    return response, bytes(join_parts(response.body))


async def test_the_report_is_returned_as_json_or_html() -> None:
    app = admin(Source("a", "b"))
    _, body = await send(app, query="format=report")
    report = json.loads(body)
    assert report["headline"].startswith("0 % of 3 responses equal within tolerance")
    counts = [(model["route"], model["compared"]) for model in report["models"]]
    assert counts == [("a", 2), ("b", 1)]
    response, body = await send(app, query="format=html")
    assert response.headers["content-security-policy"].startswith("default-src 'none'")
    assert body.startswith(b"<!doctype html>")
    assert b"0 % of 3 responses" in body
    assert (await send(app, query="format=pdf"))[0].status == 400


async def test_the_merged_summaries_are_returned_as_json() -> None:
    source = Source("a", "b")
    source.summary.add("b", "other model", Comparison("ok", "ok"))
    expected = summary_of("a", "b", "a")
    expected.add("b", "other model", Comparison("ok", "ok"))
    response, body = await send(admin(source))
    assert response.status == 200
    assert Summary.from_json(json.loads(body)) == expected
    paths = json.loads((await send(admin(source), path="/"))[1])["paths"]
    assert PATH in paths


@pytest.mark.parametrize(
    ("actions", "method", "headers", "status"),
    [
        (False, "DELETE", {}, 403),
        (True, "POST", {}, 405),
        (True, "DELETE", {"origin": "http://evil.example"}, 403),
        (True, "DELETE", {"host": "evil.example"}, 403),
        (True, "GET", {"host": "evil.example"}, 403),
        (False, "GET", {"host": "ops.example"}, 200),
    ],
)
async def test_methods_hosts_and_origins_are_checked(
    actions: bool, method: str, headers: dict[str, str], status: int
) -> None:
    source = Source("a")
    response, _ = await send(admin(source, actions=actions), method, **headers)
    assert response.status == status
    assert source.summary.routes


async def test_a_reset_is_audited(caplog: pytest.LogCaptureFixture) -> None:
    source = Source("a")
    with caplog.at_level(logging.INFO, "infergate.audit"):
        assert (await send(admin(source, actions=True), "DELETE"))[0].status == 200
    assert not source.summary.routes
    assert caplog.messages == ["reset comparisons peer=test"]


async def test_the_supervisor_collects_the_summaries_of_all_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    supervisor = Supervisor(quiet_config(workers=2), ConfigHistory())
    commands: list[object] = []

    async def respond(worker: list[bytes], message: object, seconds: float = 1.0) -> Any:
        commands.append(message)
        return worker if message is WorkerCommand.GET_COMPARISONS else None

    workers = [(None, [b"1"]), (None, [b"2", b"3"])]
    monkeypatch.setattr(supervisor, "_request", respond)
    monkeypatch.setattr(supervisor, "_serving", lambda: workers)
    assert await supervisor.comparisons() == [b"1", b"2", b"3"]
    await supervisor.reset_comparisons()
    assert commands.count(WorkerCommand.RESET_COMPARISONS) == 2
    await supervisor.stop(0)


async def test_without_a_comparison_there_is_no_comparer() -> None:
    plain = Route("m", "old", mirror=MirrorTarget("new"))
    compared = Route("m", "old", mirror=MirrorTarget("new", comparison=MirrorComparison()))
    assert make_comparer([plain], lambda _: RouteCounters(), None) is None
    comparer = make_comparer([plain, compared], lambda _: RouteCounters(), None)
    assert comparer is not None
    assert comparer.of_route(plain) is None
    assert comparer.of_route(compared) is not None
    await comparer.close()


def compared_config(percent: float, atol: float = 1.0) -> Config:
    compare = {"tolerances": {"FP32": {"atol": atol}}}
    mirror = {"backend": "new", "percent": percent, "compare": compare}
    return quiet_config(
        backends={"old": {"protocol": "builtin"}, "new": {"protocol": "builtin"}},
        routes=({"model": "identity", "backend": "old", "mirror": mirror},),
    )


async def count_after_inference(running: RunningGateway) -> int:
    """Run an inference, wait until it is compared, and return the number of comparisons."""
    gateway = running.gateway
    before = _comparison_count(gateway)
    tensor = tensor_from_array("INPUT0", Datatype.FP32, np.ones(4))
    await gateway.perform(InferRequest("identity", inputs=(tensor,)), RequestContext("test"))
    await until(lambda: _comparison_count(gateway) != before)
    return _comparison_count(gateway)


def _comparison_count(gateway: RoutingGateway) -> int:
    return sum(
        each.compared
        for summary in gateway.comparisons()
        for each in summary.routes.get("identity", {}).values()
    )


async def test_a_reload_keeps_the_summary_unless_the_rules_change() -> None:
    async with serving(compared_config(100)) as running:
        assert await count_after_inference(running) == 1
        await running.reload(compared_config(99))
        await running.reload(compared_config(100))
        assert await count_after_inference(running) == 2
        await running.reload(compared_config(0))
        assert _comparison_count(running.gateway) == 2
        assert not running.gateway.traffic_splits
        await running.reload(compared_config(100, atol=2.0))
        assert _comparison_count(running.gateway) == 0
        assert await count_after_inference(running) == 1
