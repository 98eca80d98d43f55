"""Test requests of the console, from every protocol to every protocol, in one process."""

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
from infergate.config import Config
from infergate.core.request_context import RequestContext
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.runtime.assemble import assemble
from infergate.runtime.console.browser_checks import CONSOLE_HEADER
from infergate.runtime.running import ADMIN, RunningGateway

QUIET: dict[str, Any] = {"log": {"access": False}, "helpers": 0}
FREE = {"address": "127.0.0.1:0"}
PROTOCOLS = sorted(plugins())
TENSOR = {"name": "INPUT0", "datatype": "FP32", "shape": [3], "data": [1, 2.5, -3]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front() -> AsyncIterator[RunningGateway]:
    async with AsyncExitStack() as stack:
        demo: dict[str, Any] = {
            "listeners": {"http": FREE, "grpc": FREE, "admin": None},
            "backends": {"demo": {"protocol": "builtin"}},
            "routes": ({"model": "*", "backend": "demo"},),
        }
        behind = await started(demo, stack)
        ports = {name: each.address for name, each in behind.listeners.items()}
        backends: dict[str, Any] = {"embedded": {"protocol": "builtin"}}
        for name in PROTOCOLS:
            carrier = plugins()[name].transport_kind.value
            path = "/graphpipe/identity" if plugins()[name].supports_framing else ""
            backends[name] = {
                "protocol": name,
                "endpoints": (f"{carrier}://{ports[carrier]}{path}",),
            }
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
        ]  # fmt: skip
        admin = FREE | {"actions": True}
        yield await started(
            {
                "listeners": {"http": FREE, "grpc": FREE, "admin": admin},
                "backends": backends,
                "routes": tuple(routes),
            },
            stack,
        )


async def started(config: dict[str, Any], stack: AsyncExitStack) -> RunningGateway:
    running = assemble(Config.model_validate(QUIET | config))
    await running.start()
    stack.push_async_callback(running.stop, 0)
    return running


async def ask(
    running: RunningGateway, path: str, body: Any, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    app = running._active.listeners[ADMIN].app
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    wire = HttpRequest(
        "POST", f"/console/{path}", headers=headers or {CONSOLE_HEADER: "1"}, body=[data]
    )
    context = RequestContext("test", headers=wire.headers)
    answer: HttpResponse = await app.respond(wire, context)
    text = b"".join(map(bytes, answer.body))
    is_json = answer.headers["content-type"] == "application/json"
    return answer.status, json.loads(text) if is_json else text.decode()


async def tried(running: RunningGateway, **fields: Any) -> Any:
    status, response = await ask(running, "try", {"inputs": [TENSOR]} | fields)
    assert status == 200, response
    return response


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("backend", PROTOCOLS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_both_sides_are_shown(front: RunningGateway, protocol: str, backend: str) -> None:
    response = await tried(front, protocol=protocol, model=f"to-{backend}")
    assert (response["outcome"], response["protocol"], response["backend_protocol"]) == (
        "ok",
        protocol,
        backend,
    )
    assert json.loads(response["result"])["outputs"][0]["data"] == [1, 2.5, -3]
    assert response["request"]["size"] > 12 or response["request"]["headers"]
    exchange = response["exchanges"][-1]
    assert exchange["backend"] == backend
    assert exchange["answer"]["size"] > 0
    assert exchange["request"]["start"].partition(" ")[0] in {"POST", "gRPC"}
    assert response["answer"]["start"] in {"HTTP/1.1 200", "HTTP/1.1 200 OK", "gRPC status 0"}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("protocol", ["graphpipe", "v2-rest"])
async def test_the_model_name_is_used_unchanged(front: RunningGateway, protocol: str) -> None:
    for name in ("a%41", "a/b", "a?b", "größe", "a%"):
        metadata = await tried(front, protocol=protocol, model=name, operation="metadata")
        is_name = name in {"größe", "a%"}
        assert metadata["outcome"] == ("not_found" if is_name else "bad_request")
        assert (f"no route for model '{name}'" if is_name else "the model name ") in metadata[
            "error"
        ]


@pytest.mark.asyncio(loop_scope="module")
async def test_embedded_models_have_one_side(front: RunningGateway) -> None:
    response = await tried(front, protocol="v2-rest", model="to-embedded", binary=True)
    assert response["exchanges"] == []
    assert dict(response["request"]["headers"])["inference-header-content-length"]


@pytest.mark.asyncio(loop_scope="module")
async def test_an_unreachable_backend_and_its_fallback(front: RunningGateway) -> None:
    response = await tried(front, protocol="v2-grpc", model="to-gone")
    assert response["outcome"] == "connect"
    assert "down" in response["meaning"]
    assert {each["error"].partition(":")[0] for each in response["exchanges"]} == {"connect"}
    assert (await tried(front, protocol="v2-grpc", model="saved"))["outcome"] == "ok"


@pytest.mark.asyncio(loop_scope="module")
async def test_headers_choose_a_route(front: RunningGateway) -> None:
    assert (await tried(front, protocol="v2-rest", model="chosen"))["outcome"] == "not_found"
    headers = await tried(front, protocol="v2-rest", model="chosen", headers={"X-Stage": "canary"})
    assert (headers["outcome"], headers["route"]) == ("ok", "chosen")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "operation", ["metadata", "ready", "server live", "server ready", "server metadata"]
)
async def test_other_operations(front: RunningGateway, operation: str) -> None:
    for protocol in ("v2-rest", "v2-grpc"):
        response = await tried(front, protocol=protocol, model="to-v2-grpc", operation=operation)
        assert response["outcome"] == "ok", operation
        assert json.loads(response["result"])


@pytest.mark.asyncio(loop_scope="module")
async def test_an_example_can_be_sent(front: RunningGateway) -> None:
    status, response = await ask(front, "try/example", {"model": "to-v2-rest"})
    assert status == 200
    again = await tried(front, protocol="v2-grpc", model="to-v2-rest", inputs=response["inputs"])
    assert again["outcome"] == "ok"
    status, response = await ask(front, "try/example", {"model": "nowhere"})
    assert (status, response["kind"]) == (400, "not_found")


@pytest.mark.asyncio(loop_scope="module")
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
async def test_an_unsendable_request_is_reported(front: RunningGateway, fields: Any) -> None:
    status, response = await ask(front, "try", fields)
    assert status == 400
    assert response["error"]


@pytest.mark.asyncio(loop_scope="module")
async def test_clients_without_permission(front: RunningGateway) -> None:
    assert (await ask(front, "try", {}, {"x": "y"}))[0] == 403
    origin = {CONSOLE_HEADER: "1", "host": "127.0.0.1", "origin": "http://evil.example"}
    assert (await ask(front, "try", {}, origin))[0] == 403
    assert (await ask(front, "try", b"x" * (1 << 20) + b"x"))[0] == 413


@pytest.mark.asyncio(loop_scope="module")
async def test_concurrent_test_requests_are_bounded(
    front: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = asyncio.Event()

    async def waits(*_: object) -> dict[str, Any]:
        await goes_on.wait()
        return {}

    monkeypatch.setattr("infergate.runtime.console.sources.SingleProcess.run_action", waits)
    pending = [asyncio.create_task(ask(front, "try", {})) for _ in range(9)]
    done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED, timeout=60)
    assert [task.result()[0] for task in done] == [503]
    goes_on.set()
    assert sorted(status for status, _ in await asyncio.gather(*pending)) == [200] * 8 + [503]
    assert (await ask(front, "try", {}))[0] == 200


@pytest.mark.asyncio(loop_scope="module")
async def test_test_requests_are_audited_and_not_counted_as_client_requests(
    front: RunningGateway, caplog: pytest.LogCaptureFixture
) -> None:
    before = await flows(front)
    with caplog.at_level(logging.INFO, "infergate.audit"):
        await tried(front, protocol="v2-rest", model="to-v2-grpc")
    assert caplog.messages == [
        "console try protocol='v2-rest' model='to-v2-grpc' peer=test outcome=ok"
    ]
    assert await flows(front) == before


async def flows(running: RunningGateway) -> Any:
    app = running._active.listeners[ADMIN].app
    answer = await app.respond(HttpRequest("GET", "/console/state"), RequestContext("t"))
    return json.loads(bytes(answer.body[0]))["flows"]


async def test_test_requests_are_off_by_default() -> None:
    async with AsyncExitStack() as stack:
        running = await started(
            {
                "listeners": {"http": FREE, "grpc": None, "admin": FREE},
                "backends": {"demo": {"protocol": "builtin"}},
                "routes": ({"model": "*", "backend": "demo"},),
            },
            stack,
        )
        status, response = await ask(running, "try", {"protocol": "v2-rest", "inputs": []})
        assert (status, "listeners.admin.actions" in response) == (403, True)


async def test_test_requests_bypass_access_control() -> None:
    key = "opensesame"
    digest = hashlib.sha256(key.encode()).hexdigest()
    async with AsyncExitStack() as stack:
        running = await started(
            {
                "listeners": {
                    "http": FREE,
                    "grpc": None,
                    "admin": FREE | {"actions": True, "keys": ({"name": "ops", "sha256": digest},)},
                },
                "backends": {"demo": {"protocol": "builtin"}},
                "routes": ({"model": "*", "backend": "demo"},),
                "access": {
                    "keys": ({"name": "ci", "sha256": digest},),
                    "rules": ({"who": ("key:ci",), "models": ("none",), "operations": ("infer",)},),
                },
            },
            stack,
        )
        fields = {"protocol": "v2-rest", "model": "identity", "inputs": [TENSOR]}
        assert (await ask(running, "try", fields))[0] == 401
        status, response = await ask(
            running, "try", fields, {CONSOLE_HEADER: "1", "x-api-key": key}
        )
        assert status == 200, response
        assert response["outcome"] == "ok"
