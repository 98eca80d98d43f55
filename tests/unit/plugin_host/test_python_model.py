"""Python models as backends: their results, their failures, and their limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import plugin_kit
from gateway_errors import raises_kind
from infergate.backends.builtin.model import Signature
from infergate.config.schema import Config
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.limits import DEFAULT_LIMITS, Limits
from infergate.core.messages import (
    InferRequest,
    InferResponse,
    ModelIndexRequest,
    ModelMetadata,
    ModelReadyRequest,
    RequestedOutput,
)
from infergate.core.request_context import RequestContext
from infergate.core.tensor import tensor_from_array
from infergate.gateway.gateway import RoutingGateway
from infergate.plugin_host import runner
from infergate.plugin_host.loading import PluginError
from infergate.runtime.assemble import assemble
from infergate.transport.server.admission import Admission, RequestAccount
from waiting import until

EXPECTED_DATATYPE = "expected a V2 datatype such as 'FP32'"


@pytest.fixture(autouse=True)
def release_plugins() -> Iterator[None]:
    plugin_kit.RELEASE.clear()
    yield
    plugin_kit.RELEASE.set()


@asynccontextmanager
async def serving(model: str = "Double", **changes: Any) -> AsyncIterator[RoutingGateway]:
    """Serve ``model`` of ``plugin_kit``; ``changes`` are keys of the backend and of its options."""
    options = {key: changes.pop(key) for key in ("factor", "outcome") if key in changes}
    backend = {"protocol": "python", "model": f"plugin_kit:{model}", "options": options, **changes}
    config = {
        "log": {"access": False},
        "helpers": 0,
        "backends": {"py": backend},
        "routes": ({"model": "*", "backend": "py"},),
    }
    running = assemble(Config.model_validate(config))
    try:
        yield running.gateway
    finally:
        await running.gateway.backends[0].close()


def request(rows: int = 1, **fields: Any) -> InferRequest:
    x = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
    return InferRequest(
        "double", inputs=(tensor_from_array("X", Datatype.FP32, x),), id="7", **fields
    )


async def infer(
    gateway: RoutingGateway, request: InferRequest, context: RequestContext | None = None
) -> InferResponse:
    context = context or RequestContext("test")
    return await gateway.infer(request, gateway.bind(request.model, "", context), context)


async def stream(gateway: RoutingGateway, request: InferRequest) -> list[InferResponse]:
    context = RequestContext("test")
    responses = gateway.stream(request, gateway.bind(request.model, "", context), context)
    return [response async for response in responses]


@pytest.mark.parametrize("model", ["Double", "AsyncDouble"])
async def test_a_model_serves_inferences(model: str) -> None:
    async with serving(model, factor=3) as gateway:
        response = await infer(gateway, request(2, outputs=(RequestedOutput("Y"),)))
        assert (response.model, response.version, response.id) == ("double", "1", "7")
        assert response.outputs[0].numpy().tolist() == [[0, 3], [6, 9]]


async def test_a_model_has_metadata_and_is_listed() -> None:
    async with serving() as gateway:
        context = RequestContext("test")
        metadata = await gateway.describe("double", "", context)
        assert metadata.inputs[0].shape == (-1, 2)
        index = await gateway.perform(ModelIndexRequest(), context)
        assert index.models[0].name == "double"  # type: ignore[union-attr]
        ready = await gateway.perform(ModelReadyRequest("double"), context)
        assert ready.ok  # type: ignore[union-attr]
        with pytest.raises(GatewayError, match="unknown model 'other'"):
            await infer(gateway, InferRequest("other"))


async def test_a_request_that_does_not_fit_the_metadata_does_not_reach_the_model() -> None:
    async with serving(outcome="raises") as gateway:
        for invalid, expected in (
            (InferRequest("double"), "missing required input"),
            (request(9), "batch-size must be <= 8"),
            (request(outputs=(RequestedOutput("Z"),)), "unexpected inference output 'Z'"),
        ):
            with raises_kind(Kind.BAD_REQUEST, expected):
                await infer(gateway, invalid)


@pytest.mark.parametrize("model", ["Double", "AsyncDouble"])
@pytest.mark.parametrize(
    ("outcome", "kind", "expected"),
    [
        ("raises", Kind.BACKEND_ERROR, "failed with RuntimeError"),
        ("exits", Kind.BACKEND_ERROR, "failed with SystemExit"),
        ("dtype", Kind.BACKEND_GARBAGE, "output 'Y' is an array of float64; FP32 needs float32"),
        ("shape", Kind.BACKEND_GARBAGE, r"has the shape \[2\]; its metadata says \[-1, 2\]"),
        ("missing", Kind.BACKEND_GARBAGE, "output 'Y' is missing"),
        ("broadcast", Kind.BACKEND_GARBAGE, "output 'Y' has 8796093022208 bytes; limits.body is"),
        ("type", Kind.BACKEND_GARBAGE, "list; expected a mapping"),
        ("list", Kind.BACKEND_GARBAGE, "output 'Y' is list; expected a numpy array"),
        ("tensor", Kind.BACKEND_GARBAGE, "needs 8 bytes, but the data holds 3"),
    ],
)
async def test_a_failure_names_the_backend(
    model: str, outcome: str, kind: Kind, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(model, outcome=outcome) as gateway:
        with raises_kind(kind, f"backend 'py' .*{expected}") as caught:
            await infer(gateway, request())
        assert caught.value.origin is Origin.BACKEND
        assert "hunter2" not in caught.value.public, "the client gets no text of an exception"
        assert ("hunter2" in caplog.text) == (outcome == "raises")


async def test_a_model_may_reject_a_request() -> None:
    async with serving(outcome="rejects") as gateway:
        with raises_kind(Kind.RATE_LIMITED, "try later") as caught:
            await infer(gateway, request())
        assert caught.value.retry_after == 2.0


async def test_a_response_larger_than_the_limit_is_refused() -> None:
    async with serving(outcome="huge") as gateway:
        backend: Any = gateway.backends[0]
        object.__setattr__(backend, "_limits", Limits(body=1000))
        with pytest.raises(GatewayError, match=r"40000 bytes; limits\.body is 1000"):
            await infer(gateway, request())


async def test_the_memory_of_a_response_is_charged() -> None:
    admission = Admission(DEFAULT_LIMITS)
    account = RequestAccount(admission)
    account.admit(100)
    async with serving() as gateway:
        allow_large_batches(gateway.backends[0])
        await infer(gateway, request(40_000), RequestContext("test", memory=account))
    assert admission.bytes == 100 + 40_000 * 8
    account.release()
    assert admission.bytes == 0


def allow_large_batches(backend: Any) -> None:
    metadata: ModelMetadata = backend._metadata
    signature = Signature(metadata.name, metadata.inputs, metadata.outputs, 1 << 20)
    object.__setattr__(backend, "_signature", signature)


async def test_a_call_that_hangs_is_abandoned_and_keeps_its_slot_and_its_memory() -> None:
    admission = Admission(DEFAULT_LIMITS)
    account = RequestAccount(admission)
    account.admit(320_000)
    async with serving(outcome="hangs", timeout="100ms", limits={"max_requests": 1}) as gateway:
        backend: Any = gateway.backends[0]
        allow_large_batches(backend)
        with raises_kind(Kind.TIMEOUT, "'py' did not respond within"):
            await infer(gateway, request(40_000), RequestContext("test", memory=account))
        account.release()
        assert admission.bytes == 320_000, "the thread's tensors stay charged"
        assert backend.concurrency_stats.in_use == 1
        expected = "the deadline passed while the request waited in the queue"
        with pytest.raises(GatewayError, match=expected):
            await infer(gateway, request())
        plugin_kit.RELEASE.set()
        await until(lambda: not backend.concurrency_stats.in_use)
        assert admission.bytes == 0
        backend._model.options.outcome = ""
        await infer(gateway, request())


@pytest.mark.parametrize(
    ("headers", "parameters"), [({"x-urgency": "9"}, {}), ({}, {"priority": 9})]
)
async def test_a_full_queue_drops_the_request_of_lowest_priority(
    headers: dict[str, str], parameters: dict[str, Any]
) -> None:
    limits = {"max_requests": 1, "max_queue": 1, "priority_header": "X-Urgency"}
    async with serving(outcome="hangs", limits=limits) as gateway:
        first = asyncio.create_task(infer(gateway, request()))
        low = request(parameters=parameters)
        second = asyncio.create_task(infer(gateway, low, RequestContext("test", headers=headers)))
        await asyncio.sleep(0)
        third = asyncio.create_task(infer(gateway, request()))
        with pytest.raises(GatewayError, match="its queue of 1 is full"):
            await asyncio.wait_for(second, 5)
        plugin_kit.RELEASE.set()
        await asyncio.gather(first, third)


async def test_a_cancelled_asynchronous_call_frees_its_slot() -> None:
    async with serving("AsyncDouble", outcome="waits", timeout="50ms") as gateway:
        backend: Any = gateway.backends[0]
        with pytest.raises(GatewayError, match="did not respond"):
            await infer(gateway, request())
        call = asyncio.create_task(infer(gateway, request()))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await until(lambda: not backend.concurrency_stats.in_use)


async def test_a_model_with_too_many_hanging_calls_is_not_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "MAX_HANGING", 2)
    monkeypatch.setattr(runner, "HANGING_GRACE", 0.0)
    async with serving(outcome="hangs", timeout="20ms") as gateway:
        for _ in range(2):
            with pytest.raises(GatewayError, match="did not respond"):
                await infer(gateway, request())
        with pytest.raises(GatewayError, match="backend 'py' does not respond: 2 calls hang"):
            await infer(gateway, request())
        ready = await gateway.perform(ModelReadyRequest("double"), RequestContext("test"))
        assert not ready.ok  # type: ignore[union-attr]


async def test_calls_in_threads_run_at_the_same_time() -> None:
    async with serving(outcome="hangs", limits={"max_requests": 3}) as gateway:
        calls = [asyncio.create_task(infer(gateway, request())) for _ in range(3)]
        backend: Any = gateway.backends[0]
        await until(lambda: backend.concurrency_stats.in_use == 3)
        plugin_kit.RELEASE.set()
        assert len(await asyncio.gather(*calls)) == 3


@pytest.mark.parametrize("model", ["Count", "AsyncCount"])
async def test_a_generator_is_a_stream(model: str) -> None:
    async with serving(model, factor=1) as gateway:
        responses = await stream(gateway, request(3))
        values = [each.outputs[0].numpy().tolist() for each in responses]
        assert values == [[[0, 1]], [[2, 3]], [[4, 5]]]


async def test_a_model_without_a_stream_yields_its_only_response() -> None:
    async with serving() as gateway:
        (response,) = await stream(gateway, request())
        assert response.is_last


@pytest.mark.parametrize(
    ("model", "outcome"), [("Count", "raises"), ("Count", "dtype"), ("AsyncCount", "waits")]
)
async def test_a_stream_that_fails_names_the_backend(model: str, outcome: str) -> None:
    async with serving(model, outcome=outcome, timeout="300ms") as gateway:
        with pytest.raises(GatewayError, match="backend 'py'"):
            await stream(gateway, request(3))


async def test_an_abandoned_stream_is_closed() -> None:
    async with serving("AsyncCount") as gateway:
        context = RequestContext("test")
        responses = gateway.stream(request(3), gateway.bind("double", "", context), context)
        await anext(responses)
        await responses.aclose()
        backend: Any = gateway.backends[0]
        await until(lambda: backend._model.closed)


async def test_a_model_is_started_and_later_closed() -> None:
    async with serving() as gateway:
        backend: Any = gateway.backends[0]
        model = backend._model
        assert (model.started, model.closed) == (True, False)
    assert model.closed


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("UnhashableMetadata", f"tensor 'X' has the datatype ['FP32']; {EXPECTED_DATATYPE}"),
        ("BadVersions", "metadata.versions is not a tuple of strings"),
        ("BadMetadata", f"tensor 'X' has the datatype 'FLOAT'; {EXPECTED_DATATYPE}"),
        ("FailsToStart", "start failed: OSError: no connection"),
        (
            "FailsInConstructor",
            "creating 'plugin_kit:FailsInConstructor' failed: ValueError: no weights",
        ),
    ],
)
async def test_the_error_names_the_backend_of_an_invalid_model(model: str, expected: str) -> None:
    with pytest.raises(PluginError) as caught:
        async with serving(model):
            pass
    assert str(caught.value) == f"backend 'py': {expected}"


async def test_a_process_without_threads_refuses_the_call_and_frees_its_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(limits={"max_requests": 1}) as gateway:
        backend: Any = gateway.backends[0]
        fail = Mock(side_effect=RuntimeError("can't start new thread"))
        with monkeypatch.context() as patch:
            patch.setattr(backend._runner._threads, "submit", fail)
            with pytest.raises(GatewayError, match="backend 'py' cannot be called"):
                await infer(gateway, request())
        await infer(gateway, request())
