from __future__ import annotations

import json
import time

import pytest

from infergate.core.call import Call
from infergate.core.errors import GatewayError, Kind
from infergate.core.wire import HttpRequest
from infergate.observe.metrics import Metrics
from infergate.runtime.admin import Admin


def admin(*, ready: bool = True) -> Admin:
    async def is_ready() -> bool:
        return ready

    return Admin(Metrics(), is_ready)


async def told(served: Admin, path: str, method: str = "GET") -> tuple[int, bytes]:
    call = Call(peer="test", started=time.monotonic())
    answer = await served.respond(HttpRequest(method, path), call)
    return answer.status, b"".join(bytes(part) for part in answer.body)


async def test_metrics_are_prometheus_text() -> None:
    status, body = await told(admin(), "/metrics")
    assert status == 200
    assert b"# TYPE infergate_requests_total counter" in body


@pytest.mark.parametrize(("ready", "status"), [(True, 200), (False, 503)])
async def test_readiness_is_the_gateways(ready: bool, status: int) -> None:
    assert (await told(admin(ready=ready), "/readyz"))[0] == status
    assert (await told(admin(ready=ready), "/healthz"))[0] == 200


async def test_the_root_tells_what_is_there() -> None:
    status, body = await told(admin(), "/")
    assert status == 200
    assert json.loads(body)["name"] == "infergate"


@pytest.mark.parametrize(
    ("path", "method", "status"), [("/nowhere", "GET", 404), ("/metrics", "POST", 405)]
)
async def test_anything_else_is_refused(path: str, method: str, status: int) -> None:
    assert (await told(admin(), path, method))[0] == status


def test_what_the_transport_turns_away_is_plain_text() -> None:
    call = Call(peer="test", started=time.monotonic())
    answer = admin().refuse(GatewayError(Kind.TOO_LARGE, "too large"), HttpRequest("", ""), call)
    assert answer.status == 400
    assert b"too large" in b"".join(bytes(part) for part in answer.body)
