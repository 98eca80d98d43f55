"""The assembled objects get the values of the configuration."""

from __future__ import annotations

import numpy as np
import pytest

from infergate.config.schema import Config
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import KIB
from infergate.core.messages import InferRequest
from infergate.core.request_context import RequestContext
from infergate.core.tensor import tensor_from_array
from infergate.core.wire import HttpRequest
from infergate.gateway.canonical_frontend import IN_PROCESS
from infergate.observe import access_log
from infergate.runtime.assemble import assemble
from infergate.runtime.worker_group import WorkerGroup
from running_gateways import FREE, quiet_config, serving
from waiting import until


async def test_the_timeout_of_a_builtin_backend_applies() -> None:
    config = quiet_config(backends={"demo": {"protocol": "builtin", "timeout": "50ms"}})
    gateway = assemble(config).gateway
    inputs = (
        tensor_from_array("IN", Datatype.INT32, np.array([1])),
        tensor_from_array("DELAY", Datatype.UINT32, np.array([4_000_000_000])),
    )
    context = RequestContext("test")
    responses = gateway.stream(
        InferRequest("repeat", inputs=inputs), gateway.bind("repeat", "", context), context
    )
    with pytest.raises(GatewayError) as caught:
        await anext(responses)
    assert caught.value.kind is Kind.TIMEOUT


@pytest.mark.parametrize(("readiness", "ready"), [("strict", False), ("lenient", True)])
async def test_strict_readiness_requires_every_backend(readiness: str, ready: bool) -> None:
    unreachable = {"protocol": "v2-rest", "endpoints": ("http://127.0.0.1:1",)}
    config = quiet_config(
        backends={"demo": {"protocol": "builtin"}, "unreachable": unreachable},
        routes=({"model": "a", "backend": "unreachable"}, {"model": "*", "backend": "demo"}),
        readiness=readiness,
    )
    assert await assemble(config).gateway.readiness.is_ready() is ready


def config_with_backend(backend: str, maximum: int) -> Config:
    server = {
        "protocol": "v2-rest",
        "endpoints": ("http://127.0.0.1:1",),
        "limits": {"max_requests": maximum},
    }
    return quiet_config(
        backends={backend: server},
        routes=({"model": f"{backend}*", "backend": backend},),
        limits={"in_flight": 77},
    )


async def test_metrics_have_the_names_and_limits_of_the_active_configuration() -> None:
    group = WorkerGroup()
    metrics = group.metrics
    async with serving(config_with_backend("old", 5), group=group) as running:
        metrics.backends.backend_counters("old").queue_rejected += 1
        text = metrics.text()
        assert b'infergate_queue_refusals_total{backend="old",reason="full"} 1.0' in text
        assert b'infergate_backend_places{backend="old",state="free"} 5.0' in text
        assert b'infergate_limits{limit="in_flight"} 77.0' in text
        change = await running.prepare(config_with_backend("new", 0))
        metrics.backends.backend_counters("new").queue_rejected += 1
        text = metrics.text()
        assert b'reason="full"} 1.0' in text
        assert b'infergate_queue_refusals_total{backend="new",reason="full"} 1.0' in text
        change.apply()
        await until(lambda: running.generation_count <= 1)
        text = metrics.text()
        assert b'"old"' not in text
        assert b'infergate_queue_refusals_total{backend="new",reason="full"} 1.0' in text
        assert b"infergate_backend_places{" not in text
        assert b"infergate_draining 0.0" in text
    assert b"infergate_draining 1.0" in metrics.text()


@pytest.mark.parametrize(
    ("limits", "http", "others"),
    [({}, 64 * KIB, 16 * KIB), ({"headers": "20KiB"}, 20 * KIB, 20 * KIB)],
)
def test_header_limits_depend_on_the_listeners_protocols(
    limits: dict[str, str], http: int, others: int
) -> None:
    listeners = {
        **dict.fromkeys(("http", "grpc", "admin"), FREE),
        "graphpipe": ({**FREE, "model": "m"},),
    }
    (parts,) = assemble(quiet_config(listeners=listeners, limits=limits)).all_parts
    assert {name: each.limits.headers for name, each in parts.listeners.items()} == {
        "http": http,
        "grpc": others,
        "admin": others,
        "graphpipe[0]": others,
        IN_PROCESS: others,
    }


@pytest.mark.parametrize("sampling", [None, {"first": 1, "thereafter": 1}])
async def test_dropped_access_log_lines_are_counted(
    monkeypatch: pytest.MonkeyPatch, sampling: dict[str, int] | None
) -> None:
    monkeypatch.setattr(access_log, "_MAX_WAITING", 0)  # as if the log's reader were slow
    group = WorkerGroup()
    async with serving(quiet_config(log={"sampling": sampling}), group=group) as running:
        (parts,) = running.all_parts
        request = HttpRequest("GET", "/v2/health/live")
        await parts.listeners["http"].app.respond(request, RequestContext("test"))
    assert b"infergate_access_log_dropped_lines_total 1.0" in group.metrics.text()
