"""Responses of an assembled gateway to the requests of its console."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from infergate.codecs.registry import plugins
from infergate.config import Config
from infergate.config.load import load
from infergate.config.tracked_files import TrackedFiles
from infergate.core.request_context import RequestContext
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.runtime.assemble import assemble
from infergate.runtime.config_history import ConfigHistory, ReloadResult
from infergate.runtime.console.browser_checks import CONSOLE_HEADER
from infergate.runtime.console.console import _encode
from infergate.runtime.console.plan import plan
from infergate.runtime.running import ADMIN, RunningGateway
from infergate.transport.base import Address
from running_gateways import FREE, quiet_config, serving

TEXT = """
log: {access: false}
helpers: 0
listeners:
  http: {address: "127.0.0.1:0"}
  grpc: null
  admin: {address: "127.0.0.1:0"}
  graphpipe: [{address: "127.0.0.1:0", model: simple, framing: size-prefixed}]
backends:
  demo: {protocol: builtin}
  gone: {protocol: v2-grpc, endpoints: ["grpc://127.0.0.1:9"], health: {checks: never}}
routes:
  - {model: gone, backend: gone, rewrite: {model: other}}
  - {model: "*", backend: demo, fallback: gone}
"""


class Harness:
    """A running gateway and a client of its console."""

    def __init__(self, running: RunningGateway, history: ConfigHistory, file: Path) -> None:
        self.running = running
        self.history = history
        self.file = file

    async def send(
        self,
        path: str,
        method: str = "GET",
        headers: dict[str, str] | None = None,
        query: str = "",
    ) -> HttpResponse:
        app = self.running._active.listeners[ADMIN].app
        context = RequestContext("test")
        response: HttpResponse = await app.respond(
            HttpRequest(method, path, query, headers or {}), context
        )
        return response

    async def report(self, path: str, query: str = "") -> Any:
        response = await self.send(path, query=query)
        assert response.status == 200
        return json.loads(b"".join(map(bytes, response.body)))

    async def infer(self, model: str) -> int:
        app = self.running._active.listeners["http"].app
        tensor = {"name": "INPUT0", "shape": [1], "datatype": "INT32", "data": [1]}
        body = json.dumps({"inputs": [tensor]}).encode()
        wire = HttpRequest("POST", f"/v2/models/{model}/infer", body=[body])
        response: HttpResponse = await app.respond(wire, RequestContext("test"))
        return response.status


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    file = tmp_path / "routes.yaml"
    file.write_text(TEXT)
    history = ConfigHistory(file, "abc")
    history.read_config = lambda: load(file, {}, TrackedFiles())
    async with serving(load(file, {}), history=history) as running:
        yield Harness(running, history, file)


async def test_the_state_has_requests_and_their_outcomes(harness: Harness) -> None:
    assert await harness.infer("identity") == 200
    assert await harness.infer("gone") == 502
    report = await harness.report("/console/state")
    outcomes = {each["route"]: each["outcomes"] for each in report["flows"]}
    assert outcomes == {"*": {"ok": 1}, "gone": {"connect": 1}}
    assert {(p["backend_protocol"], p["pipeline"], p["count"]) for p in report["pipelines"]} == {
        ("builtin", "translate", 1),
        ("v2-grpc", "translate", 1),
    }
    [failure] = report["failures"]
    assert failure["kind"] == "connect"
    assert "127.0.0.1:9" in failure["detail"]
    assert "down" in failure["meaning"]
    assert report["workers"] == {"wanted": 1, "serving": 1, "reporting": 1}
    assert report["config"]["sha256"] == "abc"
    assert report["actions"] == {"reload": False, "try": False, "key": False}


async def test_the_plan_shows_listeners_routes_and_backends(harness: Harness) -> None:
    report = await harness.report("/console/plan")
    names = [each["name"] for each in report["listeners"]]
    assert names == ["http", "graphpipe[0]", "admin"]
    http, graphpipe, _ = report["listeners"]
    assert set(http["protocols"]) < set(plugins())
    assert not http["address"].endswith(":0"), "the address has the assigned port"
    assert (graphpipe["model"], graphpipe["framed"]) == ("simple", True)
    assert [(r["label"], r["backend"], r["fallback"]) for r in report["routes"]] == [
        ("gone", "gone", ""),
        ("*", "demo", "gone"),
    ]
    assert report["routes"][0]["rewrites"] == ["model: other"]
    assert report["backends"][1]["endpoints"] == ["grpc://127.0.0.1:9"]


def test_the_plan_names_the_protocols_of_envelopes() -> None:
    envelopes = {
        "mlflow": {"model": "m"},
        "embeddings": {"models": {"m": {"input": "x", "output": "y"}}},
    }
    listeners = {
        "http": FREE | {"envelopes": {"sagemaker": {"model": "m"}}},
        "additional": {"a": FREE | {"protocols": ("v2-rest",), "envelopes": envelopes}},
    }
    config = quiet_config(listeners=listeners)
    names = ("http", "additional.a", "admin")
    planned = plan(config, dict.fromkeys(names, Address("127.0.0.1", 1)))["listeners"]
    assert {each["name"]: each["envelopes"] for each in planned} == {
        "http": [],
        "additional.a": ["mlflow", "openai-embeddings"],
        "admin": [],
    }


async def test_the_configuration_is_compared_with_its_file(harness: Harness) -> None:
    report = await harness.report("/console/config")
    assert "fallback: gone" in report["loaded"]
    assert "idle_body_time" not in report["loaded"]
    assert "idle_body_time" in (await harness.report("/console/config", "defaults"))["loaded"]
    assert (report["diff"], report["mistakes"]) == ("", [])
    harness.file.write_text(TEXT.replace("fallback: gone", "timeout: 5s"))
    diff = (await harness.report("/console/config"))["diff"].splitlines()
    assert "-  fallback: gone" in diff
    assert "+  timeout: 5s" in diff
    harness.file.write_text(TEXT.replace("fallback", "falback"))
    report = await harness.report("/console/config")
    assert "falback" in report["mistakes"][0]


async def test_a_file_that_has_not_changed_is_not_read(harness: Harness) -> None:
    def read() -> Config:
        raise AssertionError("an unchanged file must not be read")

    harness.history.read_config, harness.history.have_files_changed = read, lambda: False
    assert (await harness.report("/console/config"))["diff"] == ""
    harness.history.record(ReloadResult("test", 1.0, "wrong"))
    with pytest.raises(AssertionError):
        await harness.report("/console/config")


async def test_concurrent_requests_share_a_comparison_with_the_file(harness: Harness) -> None:
    read, started, proceed = harness.history.read_config, threading.Semaphore(0), threading.Event()
    assert read is not None

    def slow() -> Config:
        started.release()
        assert proceed.wait(60)
        return read()

    harness.history.read_config = slow
    pending = [asyncio.create_task(harness.report("/console/config")) for _ in range(20)]
    try:
        assert await asyncio.to_thread(started.acquire, timeout=60)
        pending[0].cancel()
    finally:
        proceed.set()
    first, *reports = await asyncio.gather(*pending, return_exceptions=True)
    assert isinstance(first, asyncio.CancelledError)
    assert [each["diff"] for each in reports] == [""] * 19
    assert not started.acquire(blocking=False), "the file is read once for all requests"


async def test_a_comparison_reads_the_file_after_its_request(harness: Harness) -> None:
    read, started, proceed = harness.history.read_config, threading.Event(), threading.Event()
    assert read is not None

    def read_and_wait() -> Config:
        config = read()
        started.set()
        assert proceed.wait(60)
        return config

    harness.history.read_config = read_and_wait
    earlier = asyncio.create_task(harness.report("/console/config"))
    try:
        assert await asyncio.to_thread(started.wait, 60)
        harness.file.write_text(TEXT.replace("fallback: gone", "timeout: 5s"))
        later = asyncio.create_task(harness.report("/console/config"))
        await asyncio.sleep(0)
    finally:
        proceed.set()
    assert (await earlier)["diff"] == ""
    assert "+  timeout: 5s" in (await later)["diff"]


async def test_a_gateway_without_a_file_has_no_comparison(harness: Harness) -> None:
    harness.history.read_config = None
    report = await harness.report("/console/config")
    assert (report["diff"], report["mistakes"]) == ("", [])


@pytest.mark.parametrize(
    ("path", "method", "headers", "status"),
    [
        ("/console/nothing", "GET", {}, 404),
        ("/console/state", "POST", {}, 405),
        ("/console/state", "GET", {"host": "evil.example"}, 403),
        ("/consoles", "GET", {}, 404),
        ("/", "GET", {"accept": "text/html,*/*"}, 303),
        ("/", "GET", {"accept": "*/*"}, 200),
    ],
)
async def test_paths_methods_and_hosts_are_checked(
    harness: Harness, path: str, method: str, headers: dict[str, str], status: int
) -> None:
    response = await harness.send(path, method, headers)
    assert response.status == status
    if path.startswith("/console/"):
        assert response.headers["cache-control"] == "no-store"
        assert response.headers["x-content-type-options"] == "nosniff"


async def test_the_state_can_be_read_after_an_undecodable_model_name(harness: Harness) -> None:
    assert await harness.infer("gone%ED%A0%80") >= 400
    await harness.report("/console/state")


async def test_only_the_console_files_are_served(harness: Harness) -> None:
    response = await harness.send("/console")
    assert (response.status, response.headers["location"]) == (303, "console/")
    text = ""
    names = ["", "icon.svg", "console.css", "console.js"]
    for name in names:
        response = await harness.send(f"/console/{name}")
        assert response.status == 200, name
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        source = b"".join(map(bytes, response.body)).decode()
        for imported in re.findall(r'from "\./([\w.]+)"', source):
            if imported not in names:
                names.append(imported)
        text += source
    assert len(names) > 8
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)\S+", text), "no external resources"
    for name in ("../console.py", "%2e%2e/page.py", "index.htm", "/", "page"):
        assert (await harness.send(f"/console/{name}")).status == 404


def gateway_with(history: ConfigHistory, **admin: Any) -> RunningGateway:
    listeners = {"http": FREE, "grpc": None, "admin": FREE | admin}
    return assemble(quiet_config(listeners=listeners), history=history)


async def test_a_disabled_console_is_not_found(harness: Harness) -> None:
    running = gateway_with(harness.history, console=False)
    disabled = Harness(running, harness.history, harness.file)
    assert (await disabled.send("/console/state")).status == 404
    assert (await disabled.send("/", headers={"accept": "text/html"})).status == 200
    await running.stop(0)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "h", "origin": "http://h", CONSOLE_HEADER: "1"}, 200),
        ({"host": "h", "origin": "http://h"}, 403),
        ({"host": "h", "origin": "http://other", CONSOLE_HEADER: "1"}, 403),
        ({"host": "evil.example", "origin": "http://evil.example", CONSOLE_HEADER: "1"}, 403),
        ({"host": "gate.example", "origin": "http://gate.example", CONSOLE_HEADER: "1"}, 200),
    ],
)
async def test_a_reload_is_accepted_without_an_origin_or_from_the_console(
    harness: Harness, headers: dict[str, str], status: int
) -> None:
    triggers: list[str] = []

    async def reload(trigger: str) -> ReloadResult:
        triggers.append(trigger)
        return ReloadResult(trigger, 1.0)

    history = ConfigHistory()
    history.reload = reload
    running = gateway_with(history, actions=True, hosts=("gate.example",))
    enabled = Harness(running, history, harness.file)
    assert (await enabled.send("/reload", "POST", headers)).status == status
    assert len(triggers) == (status == 200)
    assert (await enabled.report("/console/state"))["actions"]["reload"] is True
    await running.stop(0)


async def test_data_ports_have_no_console(harness: Harness) -> None:
    app = harness.running._active.listeners["http"].app
    for path in ("/console", "/console/state"):
        response = await app.respond(HttpRequest("GET", path), RequestContext("test"))
        assert response.status == 404


def test_control_characters_are_escaped() -> None:
    fields = {"model": "a\u202eb\x7fc\ud800", "plain": "\u00e9"}
    for each in (fields, {"model": "a\u202eb\x7fc", "list": [{"\u2028": 1}]}):
        encoded = _encode(each).decode()
        assert encoded.isprintable()
        assert json.loads(encoded)["model"].startswith(r"a\u202eb\u007fc")
    assert json.loads(_encode({"plain": "\u00e9\n"})) == {"plain": "\u00e9\n"}


async def test_the_history_shows_requests_with_their_phases_and_inputs(harness: Harness) -> None:
    await harness.report("/console/history")
    assert await harness.infer("identity") == 200
    assert await harness.infer("gone") == 502
    history = await harness.report("/console/history", "route=gone&minutes=15")
    [failed] = history["failed"]
    assert failed["kind"] == "connect"
    assert failed["inputs"] == [{"name": "INPUT0", "datatype": "INT32", "shape": [1]}]
    assert [each["phase"] for each in failed["phases"]] == [
        "receive", "parse", "queue", "connect", "backend", "render",
    ]  # fmt: skip
    assert failed["phases"][3]["seconds"] > 0, "the connection was refused"
    assert history["slowest"] == []
    [slow] = (await harness.report("/console/history", "route=*"))["slowest"]
    assert slow["seconds"] > 0
    assert slow["inputs"][0]["name"] == "INPUT0"
    response = await harness.send("/console/history", query="minutes=x")
    assert response.status == 400


async def test_the_history_has_an_event_for_each_reload(harness: Harness) -> None:
    harness.history.record(ReloadResult("SIGHUP", 1.0), "def", "-old\n+new")
    harness.history.record(ReloadResult("SIGHUP", 2.0, "line 3: no such backend"))
    history = await harness.report("/console/history")
    kinds = [(each["kind"], each["diff"]) for each in history["events"]]
    assert kinds == [("reload_failed", ""), ("reload", "-old\n+new"), ("start", "")]
    assert "line 3" in history["events"][0]["text"]
