from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from infergate.core.errors import GatewayError, Kind
from infergate.core.request_context import RequestContext
from infergate.core.wire import HttpRequest, join_parts
from infergate.observe.metrics import Metrics
from infergate.runtime.admin import AdminApp, SubtreeApp
from infergate.runtime.config_history import ConfigHistory, ReloadResult


def admin(*, ready: bool = True, history: ConfigHistory | None = None, **options: Any) -> AdminApp:
    async def is_ready() -> bool:
        return ready

    return AdminApp(Metrics().scrape, is_ready, history or ConfigHistory(), **options)


async def response_for(
    app: AdminApp, path: str, method: str = "GET", headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    context = RequestContext("test")
    response = await app.respond(HttpRequest(method, path, headers=headers or {}), context)
    return response.status, bytes(join_parts(response.body))


async def test_metrics_are_prometheus_text() -> None:
    status, body = await response_for(admin(), "/metrics")
    assert status == 200
    assert b"# TYPE infergate_requests_total counter" in body


async def test_openmetrics_is_negotiated() -> None:
    accept = {"accept": "application/openmetrics-text;version=1.0.0,*/*"}
    request = HttpRequest("GET", "/metrics", headers=accept)
    response = await admin().respond(request, RequestContext("test"))
    content_type = response.headers["content-type"]
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    body = bytes(join_parts(response.body))
    assert body.endswith(b"# EOF\n")
    assert b"# UNIT infergate_request_seconds seconds" in body


@pytest.mark.parametrize(("ready", "status"), [(True, 200), (False, 503)])
async def test_liveness_does_not_depend_on_readiness(ready: bool, status: int) -> None:
    assert (await response_for(admin(ready=ready), "/readyz"))[0] == status
    assert (await response_for(admin(ready=ready), "/healthz"))[0] == 200


async def test_the_root_names_the_gateway() -> None:
    status, body = await response_for(admin(), "/")
    assert status == 200
    assert json.loads(body)["name"] == "infergate"


@pytest.mark.parametrize(
    ("path", "method", "status"), [("/nowhere", "GET", 404), ("/metrics", "POST", 405)]
)
async def test_unknown_paths_and_methods_are_rejected(path: str, method: str, status: int) -> None:
    assert (await response_for(admin(), path, method))[0] == status


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (Kind.BAD_REQUEST, 400), (Kind.METHOD_NOT_ALLOWED, 405), (Kind.TOO_LARGE, 413),
        (Kind.INTERNAL, 500), (Kind.OVERLOADED, 503),
    ],
)  # fmt: skip
def test_transport_rejections_are_plain_text_and_counted(kind: Kind, status: int) -> None:
    exceeded: list[str] = []
    app = admin(count_limit=exceeded.append)
    context = RequestContext("test")
    for limit in ("", "body"):
        error = GatewayError(kind, "too much", retry_after=1.0, limit=limit)
        response = app.refuse(error, HttpRequest("", ""), context)
        assert response.status == status
        assert response.headers["retry-after"] == "1"
        assert b"too much" in bytes(join_parts(response.body))
    assert exceeded == ["body"]


class FakeReloader:
    def __init__(self, error: str = "") -> None:
        self.history = ConfigHistory()
        self.history.reload = self
        self.error = error
        self.triggers: list[str] = []

    async def __call__(self, trigger: str) -> ReloadResult:
        self.triggers.append(trigger)
        outcome = ReloadResult(trigger, 1.0, self.error)
        self.history.record(outcome, "abc")
        return outcome


async def test_a_requested_reload_is_audited(caplog: pytest.LogCaptureFixture) -> None:
    reloader = FakeReloader()
    with caplog.at_level(logging.INFO, "infergate.audit"):
        status, body = await response_for(
            admin(history=reloader.history, allows_reload=True), "/reload", "POST"
        )
    assert (status, reloader.triggers) == (200, ["POST /reload"])
    document = json.loads(body)
    assert (document["number"], document["sha256"]) == (2, "abc")
    assert document["last_reload"] == {
        "when": "1970-01-01T00:00:01.000+00:00",
        "why": "POST /reload",
        "ok": True,
    }
    assert caplog.messages == ["reload peer=test outcome=ok"]


async def test_a_failed_reload_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    reloader = FakeReloader("routes.yaml:3: no")
    app = admin(history=reloader.history, allows_reload=True)
    with caplog.at_level(logging.INFO, "infergate.audit"):
        status, body = await response_for(app, "/reload", "POST")
    assert status == 500
    assert json.loads(body)["last_reload"]["error"] == "routes.yaml:3: no"
    assert json.loads(body)["number"] == 1
    assert caplog.messages == ["reload peer=test outcome=failed"]
    status, body = await response_for(app, "/")
    assert json.loads(body)["config"] == json.loads((await response_for(app, "/config"))[1])


@pytest.mark.parametrize(
    ("reload", "method", "headers", "status"),
    [
        (False, "POST", {}, 403),
        (True, "GET", {}, 405),
        (True, "POST", {"origin": "http://evil.example"}, 403),
    ],
)
async def test_forbidden_reloads_are_rejected(
    reload: bool, method: str, headers: dict[str, str], status: int
) -> None:
    reloader = FakeReloader()
    app = admin(history=reloader.history, allows_reload=reload)
    assert (await response_for(app, "/reload", method, headers))[0] == status
    assert reloader.triggers == []


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("path", "host", "status"),
    [
        ("/config", "evil.example:9090", 403),
        ("/", "evil.example", 403),
        ("/config", "ops.example:9090", 200),
        ("/config", "10.0.0.7:9090", 200),
        ("/config", "localhost:9090", 200),
        ("/config", "infergate.prod.svc.cluster.local:9090", 200),
        ("/config", "", 200),
        ("/metrics", "evil.example", 200),
        ("/healthz", "evil.example", 200),
        ("/readyz", "evil.example", 200),
    ],
)
async def test_the_configuration_is_not_shown_to_public_hosts(
    path: str, host: str, status: int, method: str
) -> None:
    app = admin(hosts=("ops.example",))
    actual, body = await response_for(app, path, method, {"host": host} if host else {})
    assert actual == status
    assert (b"listeners.admin.hosts" in body) == (status == 403)


@pytest.mark.parametrize("headers", [{"accept": "text/html"}, {}])
async def test_the_console_is_not_shown_to_public_hosts(headers: dict[str, str]) -> None:
    app = admin(apps={"/console": _no_console})
    assert (await response_for(app, "/", headers={"host": "evil.example", **headers}))[0] == 403


def _no_console() -> SubtreeApp:
    raise AssertionError
