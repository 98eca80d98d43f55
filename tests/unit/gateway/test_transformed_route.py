"""Routes whose requests, responses and metadata are transformed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes import Memory, perform

from contexts import new_context
from gateway_errors import raises_kind
from infergate.codecs.profiles import TRITON
from infergate.core import messages
from infergate.core.datatypes import Datatype
from infergate.core.errors import Kind
from infergate.core.limits import Limits
from infergate.core.messages import (
    InferRequest,
    InferResponse,
    ModelMetadata,
    RequestedOutput,
    TensorMetadata,
)
from infergate.core.region_ref import RegionRef
from infergate.core.request_context import RequestContext
from infergate.core.tensor import OpaqueParameters, Tensor, pack_bytes, tensor_from_array
from infergate.gateway.gateway import GatewayOptions, RoutingGateway
from infergate.gateway.transformed_route import TransformLayer
from infergate.routing.table import Rewrite, Route, RouteTable
from infergate.transforms.images import DecodeImage
from infergate.transforms.numeric import Cast
from infergate.transforms.route_transforms import RouteTransforms
from infergate.transforms.scores import TopK
from infergate.transforms.step import Step
from infergate.transforms.structure import Constant, Rename
from infergate.transforms.text import Base64Decode
from inline_offload import InlineOffload
from memory_budget import Budget

CAST = Cast(tensor="x", from_=Datatype.UINT8, to=Datatype.FP32)
TOP = TopK(tensor="probs", k=2, values="scores", indices="classes")
SCORES = tensor_from_array("probs", Datatype.FP32, np.array([[0.1, 0.7, 0.2]], np.float32))
MODEL = ModelMetadata(
    "m",
    inputs=(TensorMetadata("x", "FP32", (-1, 3)),),
    outputs=(TensorMetadata("probs", "FP32", (-1, 3)),),
)


class Harness:
    """A gateway with one route, whose backend returns its inputs or ``answer``."""

    def __init__(
        self,
        inputs: Sequence[Step] = (),
        outputs: Sequence[Step] = (),
        answer: tuple[Tensor, ...] | None = None,
        *,
        rewrite: Rewrite | None = None,
        labels: Mapping[str, Sequence[str]] | None = None,
        casts: Mapping[Datatype, Datatype] | None = None,
        body: int = 1 << 26,
    ) -> None:
        self.helpers = InlineOffload()
        layer = TransformLayer(
            RouteTransforms(inputs, outputs, batch=True),
            Limits(body=body),
            self.helpers,
            labels or {},
            casts or {},
        )
        response = None if answer is None else InferResponse("m", "1", "id", {"p": 1}, answer)
        self.backend = Memory("own", response)
        self.backend.description = MODEL
        route = Route("m", "own", has_layers=True, rewrite=rewrite or Rewrite(), cast=casts or {})
        self.gateway = RoutingGateway(
            RouteTable([route]), {"own": self.backend}, {}, GatewayOptions(layers={0: [layer]})
        )

    async def infer(
        self, *inputs: Tensor, outputs: Sequence[str | RequestedOutput] = (), **fields: Any
    ) -> InferResponse:
        names = tuple(RequestedOutput(each) if isinstance(each, str) else each for each in outputs)
        request = InferRequest("m", "", "id", inputs=inputs, outputs=names)
        return await perform(self.gateway, request, InferResponse, new_context(**fields))

    @property
    def sent(self) -> InferRequest:
        """The last inference that the backend received."""
        request = self.backend.requests[-1]
        assert isinstance(request, InferRequest)
        return request


def uint8(*values: int, name: str = "x") -> Tensor:
    return Tensor(name, Datatype.UINT8, (1, len(values)), bytes(values))


async def test_the_backend_and_the_client_see_transformed_tensors() -> None:
    harness = Harness([CAST], [TOP], (SCORES,), rewrite=Rewrite(model="n", inputs={"x": "data"}))
    response = await harness.infer(uint8(1, 2, 3))
    (sent,) = harness.sent.inputs
    assert (sent.name, sent.datatype, sent.numpy().tolist()) == ("data", Datatype.FP32, [[1, 2, 3]])
    assert [tensor.name for tensor in response.outputs] == ["scores", "classes"]
    assert response.outputs[1].numpy().tolist() == [[1, 2]]
    assert (response.model, response.id, response.parameters) == ("m", "id", {"p": 1})
    assert harness.helpers.jobs == []


async def test_requested_outputs_are_computed_and_others_are_not_returned() -> None:
    harness = Harness([], [TOP, Rename(names={"classes": "top"})], (SCORES,))
    response = await harness.infer(uint8(1), outputs=["top"])
    assert harness.sent.outputs == (RequestedOutput("probs"),)
    assert [tensor.name for tensor in response.outputs] == ["top"]
    with raises_kind(Kind.BAD_REQUEST, "output 'probs': the model has no such output"):
        await harness.infer(uint8(1), outputs=["probs"])


async def test_classes_are_computed_from_transformed_outputs() -> None:
    harness = Harness([], [Rename(names={"probs": "p"})], (SCORES,), labels={"p": ["a", "b", "c"]})
    response = await harness.infer(uint8(1), outputs=[RequestedOutput("p", {"classification": 1})])
    assert response.outputs[0].numpy().tolist() == [[b"0.700000:1:b"]]
    assert harness.sent.outputs == (RequestedOutput("probs"),)


async def test_each_response_of_a_stream_is_transformed() -> None:
    harness = Harness([CAST], [TOP], (SCORES,))
    context = new_context()
    request = InferRequest("m", inputs=(uint8(1, 2, 3),))
    binding = harness.gateway.bind("m", "", context)
    async with aclosing(harness.gateway.stream(request, binding, context)) as responses:
        transformed = [response async for response in responses]
    assert [len(response.outputs) for response in transformed] == [2]
    harness.backend.answer = InferResponse("m")  # the last response of a stream may be empty
    async with aclosing(harness.gateway.stream(request, binding, context)) as responses:
        assert [response.outputs async for response in responses] == [()]


async def test_metadata_and_configuration_describe_the_transformed_model() -> None:
    harness = Harness([CAST], [TOP])
    expected_inputs = (TensorMetadata("x", "UINT8", (-1, 3)),)
    harness.backend.answer = MODEL
    metadata = await harness.gateway.perform(messages.ModelMetadataRequest("m"), new_context())
    description = await harness.gateway.describe("m", "", new_context())
    known_metadata = harness.gateway.known_metadata(
        "m", "", harness.gateway.bindings[0], new_context(), lambda *_: MODEL
    )
    for model in (metadata, description, known_metadata):
        assert isinstance(model, ModelMetadata)
        assert model.inputs == expected_inputs
        assert [tensor.name for tensor in model.outputs] == ["scores", "classes"]
    config = await perform(harness.gateway, messages.ModelConfigRequest("m"), messages.ModelConfig)
    assert config.settings["input"] == [{"name": "x", "data_type": "TYPE_UINT8", "dims": [-1, 3]}]


async def test_a_servers_configuration_keeps_its_other_settings() -> None:
    harness = Harness([CAST], [TOP])
    harness.backend.profile_of_all = TRITON
    settings = {"name": "m", "max_batch_size": 8, "input": [], "dynamic_batching": {"a": 1}}
    harness.backend.answer = messages.ModelConfig("m", settings, b"protobuf")
    config = await perform(harness.gateway, messages.ModelConfigRequest("m"), messages.ModelConfig)
    assert config.message == b""
    assert config.settings["dynamic_batching"] == {"a": 1}
    assert config.settings["input"] == [{"name": "x", "data_type": "TYPE_UINT8", "dims": [3]}]
    assert config.settings["output"][1]["data_type"] == "TYPE_INT64"


async def test_errors_name_the_tensor_and_blame_the_client_or_the_backend() -> None:
    harness = Harness([CAST], [TOP], (replace(SCORES, name="other"),))
    with raises_kind(Kind.BAD_REQUEST, "input 'x': expected UINT8, got FP32"):
        await harness.infer(replace(SCORES, name="x"))
    assert harness.backend.requests == []
    with raises_kind(Kind.BACKEND_GARBAGE, "output 'probs': there is no such tensor"):
        await harness.infer(uint8(1))


async def test_shared_memory_and_bodies_for_one_protocol_are_refused() -> None:
    harness = Harness([CAST])
    with raises_kind(Kind.UNSUPPORTED, "shared memory"):
        await harness.infer(replace(uint8(1), data=b"", shared_memory=RegionRef("r", 0, 1)))
    body = OpaqueParameters({}, ("tfs-grpc",), b"text")
    with raises_kind(Kind.UNSUPPORTED, "not decoded to tensors"):
        await harness.gateway.perform(InferRequest("m", parameters=body), new_context())


async def test_python_work_on_large_tensors_runs_in_helpers_and_numpy_in_threads() -> None:
    harness = Harness([CAST, Base64Decode(tensor="t")])
    text = Tensor("t", Datatype.BYTES, (1,), pack_bytes([b"QUJD" * 50_000]))
    response = await harness.infer(uint8(1), text)
    assert response.outputs[1].numpy()[0] == b"ABC" * 50_000
    (job,) = harness.helpers.jobs
    assert job.cost == job.size > 0
    harness = Harness([CAST])
    await harness.infer(uint8(*bytes(500_000)))
    assert harness.helpers.jobs == []
    assert len(harness.sent.inputs[0].data) == 2_000_000


async def test_memory_is_charged_before_a_transform_and_held_for_its_result() -> None:
    budget = Budget(100 << 20)
    await Harness([CAST]).infer(uint8(*bytes(500_000)), memory=budget)
    assert budget.held == 2_000_000
    with raises_kind(Kind.OVERLOADED, "full"):
        await Harness([CAST]).infer(uint8(*bytes(500_000)), memory=Budget(4_000_000))


async def test_images_in_base64_are_charged_while_their_headers_are_read() -> None:
    noise = Tensor("x", Datatype.BYTES, (1,), pack_bytes([b"/9j/" * 100_000]))
    budget = Budget(1 << 30)
    with raises_kind(Kind.BAD_REQUEST, "input 'x': element 0"):
        await Harness([DecodeImage(tensor="x")]).infer(noise, memory=budget)
    assert (budget.held, budget.peak) == (0, 400_004)


async def test_results_over_the_limit_are_refused_without_allocating() -> None:
    step = Constant(tensor="t", datatype=Datatype.FP64, value=(1,))
    harness = Harness([step], body=1000)
    empty = Tensor("x", Datatype.FP32, (2**40, 0), b"")
    with raises_kind(Kind.TOO_LARGE, "limit is 1000"):
        await harness.infer(empty)


async def test_a_thread_that_outlives_its_request_keeps_its_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cancelled request releases the memory of the thread's work only when the thread ends."""
    release, started = threading.Event(), threading.Event()
    closed = asyncio.Event()

    class Watched(Budget):
        def detach(self, size: int) -> Budget:
            self.held -= size
            return Watched(self.limit)

        def close(self) -> None:
            closed.set()

    def wait(self: Cast, *tensors: Tensor) -> Sequence[Tensor]:
        started.set()
        release.wait(10)
        return tensors

    monkeypatch.setattr(Cast, "apply_tensors", wait)
    task = asyncio.create_task(
        Harness([CAST]).infer(uint8(*bytes(500_000)), memory=Watched(1 << 30))
    )
    await asyncio.to_thread(started.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not closed.is_set()
    release.set()
    await asyncio.wait_for(closed.wait(), 10)


async def test_the_deadline_applies_to_threads() -> None:
    context = RequestContext("test", deadline=0.0)
    request = InferRequest("m", inputs=(uint8(*bytes(500_000)),))
    with raises_kind(Kind.TIMEOUT, "before the tensors were transformed"):
        await Harness([CAST]).gateway.perform(request, context)


async def test_casts_of_the_route_apply_after_its_steps_as_the_metadata_says() -> None:
    bf16 = tensor_from_array("y", Datatype.BF16, np.ones((1, 1), np.float32))
    to_fp64 = Cast(tensor="y", from_=Datatype.BF16, to=Datatype.FP64)
    harness = Harness([], [to_fp64], (bf16,), casts={Datatype.BF16: Datatype.FP32})
    harness.backend.description = replace(MODEL, outputs=(TensorMetadata("y", "BF16", (-1, 1)),))
    for unsupported in (frozenset[Datatype](), frozenset({Datatype.BF16})):
        response = await harness.infer(uint8(1), unsupported_datatypes=unsupported)
        assert response.outputs[0].datatype is Datatype.FP64


async def test_a_step_may_cast_a_datatype_that_the_clients_protocol_does_not_have() -> None:
    bf16 = tensor_from_array("y", Datatype.BF16, np.ones((1, 1), np.float32))
    unsupported = frozenset({Datatype.BF16})
    to_fp32 = Cast(tensor="y", to=Datatype.FP32)
    response = await Harness([], [to_fp32], (bf16,)).infer(
        uint8(1), unsupported_datatypes=unsupported
    )
    assert response.outputs[0].datatype is Datatype.FP32
    with raises_kind(Kind.UNSUPPORTED, "output 'y' is BF16"):
        await Harness([], [], (bf16,)).infer(uint8(1), unsupported_datatypes=unsupported)
    cast_by_route = Harness([], [], (bf16,), casts={Datatype.BF16: Datatype.FP64})
    response = await cast_by_route.infer(uint8(1), unsupported_datatypes=unsupported)
    assert response.outputs[0].datatype is Datatype.FP64
