"""``Gateway`` inside the program of its caller: calls, start and stop, and configurations."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import signal
import socket
import threading
import urllib.request
from collections.abc import AsyncGenerator
from contextlib import aclosing
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway_errors import raises_kind
from infergate import (
    Config,
    ConfigError,
    ConfigRejectedError,
    Gateway,
    GatewayError,
    InferRequest,
    Kind,
    RequestedOutput,
    Tensor,
    tensor,
)
from infergate.backends.builtin import BuiltinBackend
from infergate.core.datatypes import Datatype
from infergate.core.messages import Operation, Response
from infergate.core.request_context import RequestContext
from infergate.runtime.assemble import assemble
from infergate.runtime.running import RunningGateway

ANY_PORT = {"address": "127.0.0.1:0"}
LISTENERS: dict[str, Any] = {"http": ANY_PORT, "grpc": ANY_PORT, "admin": None}
NO_LISTENERS = {"http": None, "grpc": None, "admin": None}
SIGNALS = (signal.SIGINT, signal.SIGTERM)
ONES = InferRequest("identity", id="7", inputs=(tensor("INPUT0", np.ones((2, 3), np.float32)),))


def config(listeners: dict[str, Any] = LISTENERS, **sections: Any) -> dict[str, Any]:
    return {
        "listeners": listeners,
        "backends": {"demo": {"protocol": "builtin"}},
        "routes": [{"model": "*", "backend": "demo"}],
        **sections,
    }


def identity(*inputs: Any, **fields: Any) -> InferRequest:
    return InferRequest("identity", inputs=inputs, **fields)


def repeat(*delays: int) -> InferRequest:
    """Return a request for a response after each of ``delays`` milliseconds."""
    values = np.arange(len(delays), dtype=np.int32)
    inputs = tensor("IN", values), tensor("DELAY", np.array(delays, np.uint32))
    return InferRequest("repeat", inputs=inputs)


def descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def children() -> set[str]:
    """Return the ids of this process's child processes."""
    tasks = Path("/proc/self/task").iterdir()
    return {child for task in tasks for child in (task / "children").read_text().split()}


def post_json(url: str, elements: int) -> int:
    """Send an inference request with ``elements`` elements, and return the status."""
    entry = {"name": "INPUT0", "datatype": "FP64", "shape": [elements], "data": [0.5] * elements}
    with urllib.request.urlopen(url, json.dumps({"inputs": [entry]}).encode()) as response:
        return int(response.status)


@pytest.fixture
async def gateway() -> AsyncGenerator[Gateway, None]:
    async with Gateway.from_dict(config(NO_LISTENERS)) as running:
        yield running


# ---- calls


async def test_an_inference_uses_the_route_of_its_model() -> None:
    routes = [
        {"model": "mine", "backend": "demo", "rewrite": {"model": "identity"}},
        {"model": "*", "backend": "demo"},
    ]
    async with Gateway.from_dict(config(NO_LISTENERS, routes=routes)) as gateway:
        request = InferRequest("mine", id="7", inputs=ONES.inputs)
        response = await gateway.infer(request)
    assert (response.model, response.id) == ("mine", "7")
    np.testing.assert_array_equal(response.outputs[0].numpy(), np.ones((2, 3)))


async def test_a_stream_yields_each_response(gateway: Gateway) -> None:
    responses = [each async for each in gateway.stream(repeat(0, 0, 0))]
    assert [int(each.outputs[0].numpy()[0]) for each in responses] == [0, 1, 2]


async def test_metadata_is_returned_and_draining_ends_readiness(gateway: Gateway) -> None:
    metadata = await gateway.metadata("simple")
    assert [each.name for each in metadata.inputs] == ["INPUT0", "INPUT1"]
    assert await gateway.is_ready()
    assert await gateway.is_ready("simple")
    gateway.drain()
    assert not await gateway.is_ready()
    await gateway.infer(ONES)  # a draining gateway still serves


@pytest.mark.parametrize(
    ("request_", "kind", "text"),
    [
        (InferRequest("missing"), Kind.NOT_FOUND, "unknown model 'missing'"),
        (InferRequest("a/b"), Kind.BAD_REQUEST, "model name contains '/'"),
        (
            identity(Tensor("INPUT0", Datatype.FP32, (3,), b"1234")),
            Kind.BAD_REQUEST,
            r"shape \[3\] of FP32 needs 12 bytes",
        ),
        (
            identity(Tensor("INPUT0", Datatype.BYTES, (1,), b"\\9\0\0\0")),
            Kind.BAD_REQUEST,
            "element 0",
        ),
        (
            identity(Tensor("INPUT0", Datatype.FP32, (2,), memoryview(np.ones(2, np.float32)))),
            Kind.BAD_REQUEST,
            "must be a view of bytes",
        ),
        (
            identity(Tensor("\n", Datatype.UINT8, (1,), b"1")),
            Kind.BAD_REQUEST,
            "control character",
        ),
        (
            identity(outputs=(RequestedOutput("x"),) * 1025),
            Kind.BAD_REQUEST,
            "there are 1025 inputs or outputs",
        ),
        (repeat(0, 0), Kind.UNSUPPORTED, "use a stream"),
    ],
)
async def test_invalid_calls_have_the_errors_of_a_frontend(
    request_: InferRequest, kind: Kind, text: str, gateway: Gateway
) -> None:
    with raises_kind(kind, text):
        await gateway.infer(request_)


NO_REQUEST: Any = None
INPUT0 = tensor("INPUT0", np.zeros(3, np.float32))


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (NO_REQUEST, "request must be InferRequest, not NoneType"),
        (identity(INPUT0, version=1), "request.version must be str, not int"),
        (identity("x"), r"request.inputs\[0\] must be Tensor, not str"),
        (
            identity(INPUT0, Tensor("x", "FP32", (3,), bytes(12))),  # type: ignore[arg-type]
            r"request.inputs\[1\].datatype must be Datatype, not str",
        ),
        (identity(outputs=("x",)), r"request.outputs\[0\] must be RequestedOutput, not str"),
    ],
)
async def test_a_field_of_another_type_is_named(
    request_: InferRequest, text: str, gateway: Gateway
) -> None:
    with pytest.raises(TypeError, match=text):
        await gateway.infer(request_)
    with pytest.raises(TypeError, match=text):
        await anext(gateway.stream(request_))


async def test_a_bytes_tensor_of_many_elements_is_checked_in_a_thread(gateway: Gateway) -> None:
    elements = np.array([b"x"] * 40_000, np.object_)
    response = await gateway.infer(identity(tensor("INPUT0", elements)))
    assert response.outputs[0].shape == (40_000,)


async def test_a_timeout_ends_a_call(gateway: Gateway) -> None:
    with raises_kind(Kind.TIMEOUT, "deadline"):
        async for _ in gateway.stream(repeat(60_000), timeout=0.01):
            pytest.fail("a response arrived")


async def test_limits_apply_to_calls() -> None:
    limits = {"in_flight": 1, "body": "1KiB"}
    async with Gateway.from_dict(config(NO_LISTENERS, limits=limits)) as gateway:
        large = identity(tensor("INPUT0", np.ones(1000)))
        with raises_kind(Kind.TOO_LARGE, "limits.body"):
            await gateway.infer(large)
        async with aclosing(gateway.stream(repeat(0, 0))) as responses:
            await anext(responses)
            with raises_kind(Kind.OVERLOADED, "1 requests"):
                await gateway.infer(ONES)
        await gateway.infer(ONES)  # closing the stream released its slot


async def test_access_rules_apply_to_calls() -> None:
    key = "ig_" + "a" * 43
    keys = [{"name": "ci", "sha256": hashlib.sha256(key.encode()).hexdigest()}]
    access = {"keys": keys, "rules": [{"who": ["key:ci"], "models": ["identity"]}]}
    async with Gateway.from_dict(config(NO_LISTENERS, access=access)) as gateway:
        with raises_kind(Kind.UNAUTHENTICATED):
            await gateway.infer(ONES)
        headers = {"Authorization": f"Bearer {key}"}
        await gateway.infer(ONES, headers=headers)
        with raises_kind(Kind.FORBIDDEN):
            await gateway.metadata("simple", headers=headers)


async def test_calls_are_counted_and_logged_like_requests(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    listeners = {**NO_LISTENERS, "admin": ANY_PORT}
    async with Gateway.from_dict(config(listeners), access_log=True) as gateway:
        await gateway.infer(ONES)
        with pytest.raises(GatewayError):
            await gateway.infer(InferRequest("missing"))
        url = f"{gateway.addresses['admin'].url}/metrics"
        text = (await asyncio.to_thread(urllib.request.urlopen, url)).read().decode()
    lines = [line for line in text.splitlines() if line.startswith("infergate_requests_total{")]
    in_process = [line for line in lines if 'protocol="in-process"' in line]
    assert {("ok" in line, "not_found" in line) for line in in_process} == {(1, 0), (0, 1)}
    assert capfdbinary.readouterr().out.count(b"protocol=in-process") == 2


# ---- start and stop


async def test_addresses_have_the_actual_ports(tmp_path: Path) -> None:
    listeners = {
        **LISTENERS,
        "graphpipe": [
            {"address": f"unix:{tmp_path}/socket", "model": "identity", "framing": "size-prefixed"}
        ],
    }
    async with Gateway.from_dict(config(listeners)) as gateway:
        addresses = gateway.addresses
        assert addresses.keys() == {"http", "grpc", "graphpipe[0]"}
        http, grpc, unix = addresses.values()
        assert http.port != 0
        assert http.url == f"http://{http}" == f"http://127.0.0.1:{http.port}"
        assert grpc.url == f"grpc://127.0.0.1:{grpc.port}"
        assert (unix.unix, unix.url) == (f"{tmp_path}/socket", f"unix:{tmp_path}/socket")
        ready = await asyncio.to_thread(urllib.request.urlopen, f"{http.url}/v2/health/ready")
        assert ready.status == 200


async def test_a_gateway_is_a_backend_of_another_one() -> None:
    async with Gateway.from_dict(config()) as inner:
        backends = {
            name: {"protocol": f"v2-{protocol}", "endpoints": [inner.addresses[name].url]}
            for name, protocol in (("http", "rest"), ("grpc", "grpc"))
        }
        routes = [
            {"model": f"{name}-identity", "backend": name, "rewrite": {"model": "identity"}}
            for name in backends
        ]
        async with Gateway.from_dict(
            config(NO_LISTENERS, backends=backends, routes=routes)
        ) as outer:
            for name in backends:
                request = InferRequest(f"{name}-identity", inputs=ONES.inputs)
                response = await outer.infer(request)
                assert bytes(response.outputs[0].data) == bytes(ONES.inputs[0].data)


async def test_a_gateway_leaves_nothing_behind() -> None:
    loop = asyncio.get_running_loop()
    handlers = list(map(signal.getsignal, SIGNALS))
    exception_handler, root = loop.get_exception_handler(), logging.getLogger()
    logging_state = root.level, list(root.handlers), logging.getLogger("infergate").level
    await asyncio.to_thread(int)  # starts the thread of the loop's executor
    tasks, threads, processes = asyncio.all_tasks(), set(threading.enumerate()), children()
    before = descriptors()
    async with Gateway.from_dict(config(helpers=1)) as gateway:
        await gateway.infer(ONES)
        url = f"{gateway.addresses['http'].url}/v2/models/identity/infer"
        assert await asyncio.to_thread(post_json, url, 100_000) == 200
        assert len(children() - processes) == 1
        await gateway.reload(config())
        async for _response in gateway.stream(repeat(0)):
            pass
        assert list(map(signal.getsignal, SIGNALS)) == handlers
        assert (root.level, root.handlers, logging.getLogger("infergate").level) == (logging_state)
        assert loop.get_exception_handler() is exception_handler
    assert (asyncio.all_tasks(), children()) == (tasks, processes)
    assert {each for each in threading.enumerate() if "asyncio" not in each.name} <= threads
    assert descriptors() == before


async def test_several_gateways_run_in_one_process(capfd: pytest.CaptureFixture[str]) -> None:
    async with Gateway.from_dict(config()) as first, Gateway.from_dict(config()) as second:
        assert first.addresses["http"].port != second.addresses["http"].port
        await asyncio.gather(first.infer(ONES), second.infer(ONES))
        await first.stop()
        await second.infer(ONES)
    assert capfd.readouterr() == ("", "")


async def test_a_gateway_can_start_again() -> None:
    gateway = Gateway.from_dict(config())
    for _ in range(2):
        async with gateway:
            await gateway.infer(ONES)
            with pytest.raises(RuntimeError, match="already running"):
                await gateway.start()
        with pytest.raises(RuntimeError, match="not running"):
            await gateway.infer(ONES)
        with pytest.raises(RuntimeError, match="not running"):
            assert gateway.addresses


async def test_a_port_in_use_is_named_and_nothing_stays_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        listeners = {**LISTENERS, "grpc": {"address": f"127.0.0.1:{port}"}}
        gateway = Gateway.from_dict(config(listeners))
        before = descriptors()
        with pytest.raises(OSError, match=rf"listeners\.grpc: cannot listen on 127.0.0.1:{port}"):
            await gateway.start()
        assert descriptors() == before
    async with gateway:  # the port is free now
        await gateway.infer(ONES)


async def test_the_exit_waits_for_calls_in_progress() -> None:
    async with Gateway.from_dict(config(NO_LISTENERS)) as gateway:
        call = asyncio.create_task(_collect(gateway, repeat(50, 0)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert len(await call) == 2


async def test_a_stop_without_grace_ends_calls_with_an_error() -> None:
    gateway = Gateway.from_dict(config(NO_LISTENERS))
    await gateway.start()
    waiting = asyncio.create_task(_collect(gateway, repeat(60_000)))
    idle = gateway.stream(repeat(0, 0))
    await anext(idle)
    await gateway.stop(0)
    with raises_kind(Kind.OVERLOADED, "shutting down"):
        await waiting
    with raises_kind(Kind.OVERLOADED, "shutting down"):
        await anext(idle)


async def test_a_cancelled_caller_is_cancelled() -> None:
    async with Gateway.from_dict(config(NO_LISTENERS, limits={"in_flight": 1})) as gateway:
        call = asyncio.create_task(_collect(gateway, repeat(60_000)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await gateway.infer(ONES)  # the slot of the call is free


async def test_an_abandoned_stream_is_released() -> None:
    async with Gateway.from_dict(config(NO_LISTENERS, limits={"in_flight": 1})) as gateway:
        async for _ in gateway.stream(repeat(0, 60_000)):
            break
        async with asyncio.timeout(60):
            await _infer_when_admitted(gateway)


async def _infer_when_admitted(gateway: Gateway) -> None:
    try:
        await gateway.infer(ONES)
    except GatewayError:
        await asyncio.sleep(0)
        await _infer_when_admitted(gateway)


async def test_the_callers_context_variables_are_visible_and_unchanged() -> None:
    variable: ContextVar[int] = ContextVar("variable", default=0)

    class ObservedGateway(Gateway):
        def _assemble(self, config: Config) -> RunningGateway:
            return assemble(config, lambda name, _: Backend(name))

    class Backend(BuiltinBackend):
        async def perform(self, operation: Operation, context: RequestContext) -> Response:
            assert variable.get() == 1
            variable.set(2)
            return await super().perform(operation, context)

    async with ObservedGateway(Gateway.from_dict(config(NO_LISTENERS)).config) as gateway:
        variable.set(1)
        await gateway.infer(ONES)
        assert variable.get() == 1


async def _collect(gateway: Gateway, request: InferRequest) -> list[Any]:
    return [each async for each in gateway.stream(request)]


# ---- configurations


async def test_a_reload_replaces_the_routes_and_keeps_calls_in_progress() -> None:
    gateway = Gateway.from_dict(config())
    async with gateway:
        addresses = gateway.addresses
        async with aclosing(gateway.stream(repeat(0, 0))) as responses:
            await anext(responses)
            await gateway.reload(config(routes=[{"model": "identity", "backend": "demo"}]))
            with raises_kind(Kind.NOT_FOUND, "no route"):
                await gateway.metadata("repeat")
            await anext(responses)
        assert gateway.addresses == addresses
        with pytest.raises(ConfigError, match="rutes: unknown key"):
            await gateway.reload({**config(), "rutes": []})
        await gateway.infer(ONES)
        with pytest.raises(ConfigRejectedError, match="engine"):
            await gateway.reload(config(engine="compat"))
        with pytest.raises(ValueError, match="was not started from a file"):
            await gateway.reload()
        assert [route.model for route in gateway.config.routes] == ["identity"]


async def test_a_reload_reads_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL", "identity")
    file = tmp_path / "routes.yaml"
    text = (
        'listeners: {http: {address: "127.0.0.1:0"}, grpc: null, admin: null}\n'
        "backends: {demo: {protocol: builtin}}\n"
        'routes: [{model: "${MODEL}", backend: demo}]\nworkers: 4\n'
    )
    file.write_text(text)
    async with Gateway.from_file(file) as gateway:
        assert gateway.config.workers == 1
        await gateway.infer(ONES)
        file.write_text(text.replace("${MODEL}", "simple"))
        await gateway.reload()
        assert await gateway.metadata("simple")
        file.write_text("routes: 3")
        with pytest.raises(ConfigError, match=r"routes\.yaml:1: routes"):
            await gateway.reload()


async def test_typed_configurations_are_checked() -> None:
    async with Gateway(Config.model_validate(_lists_to_tuples(config(NO_LISTENERS)))) as gateway:
        await gateway.infer(ONES)
    wrong = config(NO_LISTENERS, routes=[{"model": "*", "backend": "other"}])
    with pytest.raises(ConfigError, match=r"configuration: routes\[0\].backend: .*'other'"):
        Gateway(Config.model_validate(_lists_to_tuples(wrong)))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"rutes": []}, "configuration: rutes: unknown key"),
        (
            {"routes": [{"model": "*", "backend": "other"}]},
            r"configuration: routes\[0\].backend: ",
        ),
        ({"limits": {"body": "1 parsec"}}, "configuration: limits.body: "),
    ],
)
def test_mistakes_in_a_mapping_are_named(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Gateway.from_dict(config(**sections))


def test_variables_of_a_mapping_are_not_substituted() -> None:
    data = config(routes=[{"model": "${HOME}", "backend": "demo"}])
    assert Gateway.from_dict(data).config.routes[0].model == "${HOME}"


def test_a_mapping_that_contains_itself_is_refused() -> None:
    data = config()
    data["models"] = {"x": data}
    with pytest.raises(ConfigError, match="nested too deeply"):
        Gateway.from_dict(data)


def _lists_to_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lists_to_tuples(item) for key, item in value.items()}
    return tuple(map(_lists_to_tuples, value)) if isinstance(value, list) else value
