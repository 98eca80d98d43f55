"""The console's actions: test requests between all protocols, examples, code and the demo."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from infergate.codecs.registry import plugins
from infergate.core.request_context import RequestContext
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.runtime.console.browser_checks import CONSOLE_HEADER
from infergate.runtime.running import ADMIN, RunningGateway
from running_gateways import FREE, quiet_config, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")  # all tests share the gateways
PROTOCOLS = sorted(plugins())
DECLARED = {
    side: ({"name": name, "datatype": "FP32", "shape": (-1,)},)
    for side, name in (("inputs", "INPUT0"), ("outputs", "OUTPUT0"))
}
"""The metadata of ``identity``, for servers without metadata."""
TENSOR = {"name": "INPUT0", "datatype": "FP32", "shape": [3], "data": [1, 2.5, -3]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[RunningGateway]:
    async with AsyncExitStack() as stack:
        additional = {"kserve": FREE | {"protocols": ("kserve-v1",)}}
        listeners = {"http": FREE, "grpc": FREE, "admin": None, "additional": additional}
        other = await stack.enter_async_context(serving(quiet_config(listeners=listeners)))
        ports = {name: each.address for name, each in other.listeners.items()}
        backends: dict[str, Any] = {"embedded": {"protocol": "builtin"}}
        for name in PROTOCOLS:
            transport = plugins()[name].transport_kind.value
            listener = "additional.kserve" if name == "kserve-v1" else transport
            path = "/graphpipe/identity" if plugins()[name].supports_framing else ""
            url = f"{transport}://{ports[listener]}{path}"
            backends[name] = {"protocol": name, "endpoints": (url,)}
        backends["gone"] = {"protocol": "v2-grpc", "endpoints": ("grpc://127.0.0.1:9",)}
        routes = [
            {"model": f"to-{name}", "backend": name, "rewrite": {"model": "identity"}}
            for name in backends
        ]
        routes += [
            {"model": "saved", "backend": "gone", "fallback": "embedded",
             "rewrite": {"model": "identity"}},
            {"model": "chosen", "backend": "embedded", "headers": {"x-stage": "canary"},
             "rewrite": {"model": "identity"}},
            {"model": "transformed", "backend": "v2-grpc", "rewrite": {"model": "identity"},
             "transforms": {"outputs": ({"rename": {"OUTPUT0": "y"}},)}},
        ]  # fmt: skip
        config = quiet_config(
            listeners={"http": FREE, "grpc": FREE, "admin": FREE | {"actions": True}},
            backends=backends,
            routes=tuple(routes),
            models={"to-kserve-v1": DECLARED},
        )
        yield await stack.enter_async_context(serving(config))


async def post(
    running: RunningGateway, path: str, body: Any, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    app = running._active.listeners[ADMIN].app
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    wire = HttpRequest(
        "POST", f"/console/{path}", headers=headers or {CONSOLE_HEADER: "1"}, body=[data]
    )
    context = RequestContext("test", headers=wire.headers)
    response: HttpResponse = await app.respond(wire, context)
    text = b"".join(map(bytes, response.body))
    is_json = response.headers["content-type"] == "application/json"
    return response.status, json.loads(text) if is_json else text.decode()


async def try_request(running: RunningGateway, **fields: Any) -> Any:
    status, response = await post(running, "try", {"inputs": [TENSOR]} | fields)
    assert status == 200, response
    return response


@pytest.mark.parametrize("backend", PROTOCOLS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_client_and_backend_messages_are_shown(
    gateway: RunningGateway, protocol: str, backend: str
) -> None:
    response = await try_request(gateway, protocol=protocol, model=f"to-{backend}")
    fields = response["outcome"], response["protocol"], response["backend_protocol"]
    assert fields == ("ok", protocol, backend)
    assert json.loads(response["result"])["outputs"][0]["data"] == [1, 2.5, -3]
    assert response["request"]["size"] > 12 or response["request"]["headers"]
    exchange = response["exchanges"][-1]
    assert exchange["backend"] == backend
    assert exchange["answer"]["size"] > 0
    assert exchange["request"]["start"].partition(" ")[0] in {"POST", "gRPC"}
    assert response["answer"]["start"] in {"HTTP/1.1 200", "HTTP/1.1 200 OK", "gRPC status 0"}


@pytest.mark.parametrize("protocol", ["graphpipe", "v2-rest"])
async def test_model_names_are_not_decoded(gateway: RunningGateway, protocol: str) -> None:
    for name in ("a%41", "a/b", "a?b", "größe", "a%"):
        response = await try_request(gateway, protocol=protocol, model=name, operation="metadata")
        is_valid = name in {"größe", "a%"}
        assert response["outcome"] == ("not_found" if is_valid else "bad_request")
        reason = f"no route for model '{name}'" if is_valid else "the model name "
        assert reason in response["error"]


async def test_a_builtin_backend_has_no_exchanges(gateway: RunningGateway) -> None:
    response = await try_request(gateway, protocol="v2-rest", model="to-embedded", binary=True)
    assert response["exchanges"] == []
    assert dict(response["request"]["headers"])["inference-header-content-length"]


async def test_an_unreachable_backend_fails_or_uses_the_fallback(gateway: RunningGateway) -> None:
    response = await try_request(gateway, protocol="v2-grpc", model="to-gone")
    assert response["outcome"] == "connect"
    assert "down" in response["meaning"]
    assert {each["error"].partition(":")[0] for each in response["exchanges"]} == {"connect"}
    assert (await try_request(gateway, protocol="v2-grpc", model="saved"))["outcome"] == "ok"


async def test_transforms_of_the_route_apply(gateway: RunningGateway) -> None:
    response = await try_request(gateway, protocol="v2-rest", model="transformed")
    (output,) = json.loads(response["result"])["outputs"]
    assert (output["name"], output["data"]) == ("y", [1, 2.5, -3])


async def test_headers_select_a_route(gateway: RunningGateway) -> None:
    request = {"protocol": "v2-rest", "model": "chosen"}
    assert (await try_request(gateway, **request))["outcome"] == "not_found"
    response = await try_request(gateway, **request, headers={"X-Stage": "canary"})
    assert (response["outcome"], response["route"]) == ("ok", "chosen")


@pytest.mark.parametrize(
    "operation", ["metadata", "ready", "server live", "server ready", "server metadata"]
)
async def test_operations_without_inputs_succeed(gateway: RunningGateway, operation: str) -> None:
    for protocol in ("v2-rest", "v2-grpc"):
        fields = {"protocol": protocol, "model": "to-v2-grpc", "operation": operation}
        response = await try_request(gateway, **fields)
        assert response["outcome"] == "ok", operation
        assert json.loads(response["result"])


async def test_an_example_can_be_sent(gateway: RunningGateway) -> None:
    status, response = await post(gateway, "try/example", {"model": "to-v2-rest"})
    assert status == 200
    result = await try_request(
        gateway, protocol="v2-grpc", model="to-v2-rest", inputs=response["inputs"]
    )
    assert result["outcome"] == "ok"
    status, response = await post(gateway, "try/example", {"model": "nowhere"})
    assert (status, response["kind"]) == (400, "not_found")


@pytest.mark.parametrize(
    "fields",
    [
        b"{",
        [],
        {"protocol": "nope"},
        {"protocol": 7},
        {"protocol": "v2-rest", "operation": "load"},
        {"protocol": "v2-rest", "inputs": 7},
        {"protocol": "v2-rest", "inputs": [7]},
        {"protocol": "v2-rest", "inputs": [], "headers": {"a": 1}},
        {"protocol": "v2-rest", "model": "to-embedded", "inputs": [TENSOR],
         "headers": {"x-a": "1\r\nx-evil: 1"}},
        {"protocol": "v2-rest", "model": "to-embedded", "inputs": [TENSOR],
         "headers": {"x-a: 1\r\nx-evil": "1"}},
        {"protocol": "v2-rest", "model": "to-embedded", "inputs": [TENSOR],
         "headers": {f"x-{n}": "" for n in range(101)}},
        {"protocol": "v2-rest", "model": "to-embedded",
         "inputs": [{"name": "a", "datatype": "UINT8", "shape": [9 << 20], "data": 1}] * 2},
        {"protocol": "graphpipe", "model": "to-v2-rest",
         "inputs": [{"name": "a", "datatype": "BF16", "shape": [1], "data": 1}]},
        {"protocol": "trtis-grpc", "model": "nowhere", "inputs": [TENSOR]},
    ],
)  # fmt: skip
async def test_an_invalid_test_request_is_rejected(gateway: RunningGateway, fields: Any) -> None:
    status, response = await post(gateway, "try", fields)
    assert status == 400
    assert response["error"]


async def test_forbidden_and_oversized_test_requests_are_rejected(gateway: RunningGateway) -> None:
    assert (await post(gateway, "try", {}, {"x": "y"}))[0] == 403
    origin = {CONSOLE_HEADER: "1", "host": "127.0.0.1", "origin": "http://evil.example"}
    assert (await post(gateway, "try", {}, origin))[0] == 403
    assert (await post(gateway, "try", b"x" * (1 << 20) + b"x"))[0] == 413


async def test_concurrent_test_requests_are_limited(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    proceed = asyncio.Event()

    async def run_action(*_: object) -> dict[str, Any]:
        await proceed.wait()
        return {}

    monkeypatch.setattr("infergate.runtime.console.sources.SingleProcess.run_action", run_action)
    pending = [asyncio.create_task(post(gateway, "try", {})) for _ in range(9)]
    done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED, timeout=60)
    assert [task.result()[0] for task in done] == [503]
    proceed.set()
    assert sorted(status for status, _ in await asyncio.gather(*pending)) == [200] * 8 + [503]
    assert (await post(gateway, "try", {}))[0] == 200


async def test_a_test_request_is_audited_and_not_counted(
    gateway: RunningGateway, caplog: pytest.LogCaptureFixture
) -> None:
    before = await flows(gateway)
    with caplog.at_level(logging.INFO, "infergate.audit"):
        await try_request(gateway, protocol="v2-rest", model="to-v2-grpc")
    assert caplog.messages == [
        "console try protocol='v2-rest' model='to-v2-grpc' peer=test outcome=ok"
    ]
    assert await flows(gateway) == before


async def flows(running: RunningGateway) -> Any:
    app = running._active.listeners[ADMIN].app
    response = await app.respond(HttpRequest("GET", "/console/state"), RequestContext("t"))
    return json.loads(bytes(response.body[0]))["flows"]


async def test_test_requests_are_disabled_by_default() -> None:
    listeners = {"http": FREE, "grpc": None, "admin": FREE}
    async with serving(quiet_config(listeners=listeners)) as running:
        status, response = await post(running, "try", {"protocol": "v2-rest", "inputs": []})
        assert (status, "listeners.admin.actions" in response) == (403, True)


async def test_an_operators_key_bypasses_access() -> None:
    key = "opensesame"
    digest = hashlib.sha256(key.encode()).hexdigest()
    admin = FREE | {"actions": True, "keys": ({"name": "ops", "sha256": digest},)}
    access = {
        "keys": ({"name": "ci", "sha256": digest},),
        "rules": ({"who": ("key:ci",), "models": ("none",), "operations": ("infer",)},),
    }
    listeners = {"http": FREE, "grpc": None, "admin": admin}
    async with serving(quiet_config(listeners=listeners, access=access)) as running:
        fields = {"protocol": "v2-rest", "model": "identity", "inputs": [TENSOR]}
        assert (await post(running, "try", fields))[0] == 401
        status, response = await post(
            running, "try", fields, {CONSOLE_HEADER: "1", "x-api-key": key}
        )
        assert status == 200, response
        assert response["outcome"] == "ok"


async def test_an_inference_is_written_as_code(gateway: RunningGateway) -> None:
    inference = {"protocol": "v2-rest", "model": "to-v2-rest", "inputs": [TENSOR]}
    status, response = await post(gateway, "try/code", inference)
    assert status == 200
    code = response["code"]
    assert {"curl", "tritonclient", "kserve", "tensorflow-serving-api", "graphpipe"} <= set(code)
    assert "/v2/models/to-v2-rest/infer" in code["curl"]
    compile(code["tritonclient"], "tritonclient.py", "exec")
    status, _ = await post(gateway, "try/code", inference | {"operation": "ready"})
    assert status == 400


async def test_the_demo_needs_its_configuration(
    gateway: RunningGateway, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "infergate.audit"):
        status, response = await post(gateway, "demo", {"action": "start"})
    reason = "this action needs the configuration of the demo, which is not active"
    assert (status, response["error"]) == (400, reason)
    assert caplog.messages == ["console demo action='start' peer=test outcome=refused"]
