"""The gateway's operations: routes, renaming, metadata, readiness and the index."""

from typing import Any

import pytest
from fakes import Memory, build_gateway, perform

from contexts import new_context
from gateway_errors import raises_kind
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import (
    HealthStatus,
    InferRequest,
    InferResponse,
    ModelIndex,
    ModelIndexEntry,
    ModelIndexRequest,
    ModelMetadata,
    ModelMetadataRequest,
    ModelReadyRequest,
    RequestedOutput,
    ServerLiveRequest,
    ServerMetadata,
    ServerMetadataRequest,
    ServerReadyRequest,
    TensorMetadata,
)
from infergate.core.tensor import Tensor
from infergate.gateway.gateway import RoutingGateway
from infergate.routing.table import Rewrite, Route


def serve(rewrite: Rewrite | None = None, **route: Any) -> tuple[RoutingGateway, Memory]:
    memory = Memory("b")
    added_route = Route(route.pop("pattern", "m"), "b", rewrite=rewrite or Rewrite(), **route)
    return build_gateway(added_route, backends=[memory]), memory


TENSOR = Tensor("x", Datatype.INT8, (2,), b"\x01\x02")


async def test_server_metadata_is_the_gateways_own() -> None:
    gateway, memory = serve()
    assert await gateway.perform(ServerLiveRequest(), new_context()) == HealthStatus(ok=True)
    metadata = await perform(gateway, ServerMetadataRequest(), ServerMetadata)
    assert metadata.name == "infergate"
    assert not memory.requests


async def test_an_operation_reaches_its_routes_backend_and_is_recorded() -> None:
    gateway, memory = serve()
    context = new_context()
    assert await gateway.perform(ModelReadyRequest("m"), context) == HealthStatus(ok=True)
    assert memory.requests == [ModelReadyRequest("m")]
    assert (context.record.route, context.record.backend) == ("m", "b")
    assert context.record.backend_protocol == "memory"


@pytest.mark.parametrize("model", ["", "M", "m2", "../m"])
async def test_a_model_without_route_is_not_found(model: str) -> None:
    gateway, memory = serve()
    with raises_kind(Kind.NOT_FOUND, match="no route"):
        await gateway.perform(InferRequest(model), new_context())
    assert not memory.requests


async def test_responses_have_the_clients_names_and_id() -> None:
    gateway, memory = serve(Rewrite("real", "1", {"image": "data"}, {"probs": "data"}), version="2")
    image = Tensor("image", Datatype.INT8, (2,), b"\x01\x02")
    response = await gateway.perform(
        InferRequest("m", "2", "mine", {}, (image,), (RequestedOutput("probs"),)), new_context()
    )
    sent = memory.requests[0]
    assert isinstance(sent, InferRequest)
    assert (sent.model, sent.version, sent.id) == ("real", "1", "mine")
    assert [t.name for t in sent.inputs] == ["data"]
    assert [t.name for t in sent.outputs] == ["data"]
    assert isinstance(response, InferResponse)
    assert (response.model, response.version, response.id) == ("m", "2", "mine")
    assert [t.name for t in response.outputs] == ["probs"]


async def test_an_id_generated_by_the_server_is_not_returned() -> None:
    gateway, _ = serve()
    response = await perform(gateway, InferRequest("m", inputs=(TENSOR,)), InferResponse)
    assert response.id == ""
    assert response.version == "7"


async def test_a_route_that_renames_nothing_copies_nothing() -> None:
    gateway, memory = serve()
    request = InferRequest("m", inputs=(TENSOR,))
    await gateway.perform(request, new_context())
    assert memory.requests[0] is request


async def test_renaming_two_tensors_to_one_is_refused() -> None:
    gateway, memory = serve(Rewrite(inputs={"x": "y"}))
    tensors = (TENSOR, Tensor("y", Datatype.INT8, (2,), b"\x01\x02"))
    with pytest.raises(GatewayError, match="rewrite"):
        await gateway.perform(InferRequest("m", inputs=tensors), new_context())
    assert not memory.requests


async def test_metadata_has_the_clients_names() -> None:
    gateway, memory = serve(Rewrite("real", "1", {"image": "data"}, {"probs": "prob"}), version="2")
    memory.answer = ModelMetadata(
        "real",
        ("1", "2", "3"),
        "onnx_onnxv1",
        (TensorMetadata("data", "FP32", (-1, 3)),),
        (TensorMetadata("prob", "FP32", (-1,)), TensorMetadata("other", "FP32", (1,))),
    )
    metadata = await perform(gateway, ModelMetadataRequest("m", "2"), ModelMetadata)
    assert (metadata.name, metadata.versions) == ("m", ("2",))
    assert [t.name for t in metadata.inputs] == ["image"]
    assert [t.name for t in metadata.outputs] == ["probs", "other"]


async def test_declared_metadata_replaces_the_backends() -> None:
    memory = Memory("b")
    gateway = build_gateway(
        Route("*", "b"), backends=[memory], declared={"m": ModelMetadata("x", ("1",))}
    )
    assert await gateway.perform(ModelMetadataRequest("m"), new_context()) == ModelMetadata(
        "m", ("1",)
    )
    assert not memory.requests


async def test_a_model_is_described_in_the_clients_names() -> None:
    gateway, memory = serve(Rewrite("real", "1", {"image": "data"}), version="2", timeout=5.0)
    memory.description = ModelMetadata(
        "real", ("1",), inputs=(TensorMetadata("data", "FP32", (-1, 3)),), max_batch_size=4
    )
    context = new_context()
    assert await gateway.describe("m", "2", context) == ModelMetadata(
        "m", ("2",), inputs=(TensorMetadata("image", "FP32", (-1, 3)),), max_batch_size=4
    )
    record = context.record
    assert (record.route, record.backend, context.policy.timeout) == ("m@2", "b", 5.0)
    await gateway.describe("m", "2", new_context(), newer=True)
    assert memory.described == [("real", "1", False), ("real", "1", True)]
    assert not memory.requests
    with pytest.raises(GatewayError, match="no route"):
        await gateway.describe("n", "", new_context())


async def test_a_declared_model_is_described_as_declared() -> None:
    memory = Memory("b")
    declared = {"m": ModelMetadata("x", ("1",), max_batch_size=0)}
    gateway = build_gateway(Route("*", "b"), backends=[memory], declared=declared)
    context = new_context()
    assert await gateway.describe("m", "", context, newer=True) == ModelMetadata(
        "m", ("1",), max_batch_size=0
    )
    assert context.record.route == "*"
    assert not memory.described


async def test_a_description_that_two_names_make_ambiguous_is_refused() -> None:
    gateway, memory = serve(Rewrite(inputs={"x": "y"}))
    memory.description = ModelMetadata(
        "m", inputs=tuple(TensorMetadata(name, "INT8", (1,)) for name in ("x", "y"))
    )
    with pytest.raises(GatewayError, match="rewrite"):
        await gateway.describe("m", "", new_context())


@pytest.mark.parametrize(("combine", "expected"), [(all, False), (any, True)])
async def test_readiness_of_the_gateway_is_strict_or_lenient(combine: Any, expected: bool) -> None:
    down = Memory("down", GatewayError(Kind.CONNECT, "refused"))
    gateway = build_gateway(
        Route("a", "up"),
        Route("b", "down"),
        backends=[Memory("up"), down],
        combine_readiness=combine,
    )
    assert await gateway.perform(ServerReadyRequest(), new_context()) == HealthStatus(ok=expected)


class WatchedMemory(Memory):
    """A backend with periodic health checks."""

    def __init__(self, name: str, ready: bool | None) -> None:
        super().__init__(name)
        self.is_ready = ready

    def start(self) -> None:
        pass

    def endpoint_stats(self) -> list[Any]:
        return []


@pytest.mark.parametrize(
    ("are_ready", "combine", "expected"),
    [
        ((True, True), all, True),
        ((True, False), all, False),
        ((True, False), any, True),
        ((False, False), any, False),
        ((True, None), all, True),
        ((False, None), any, True),
    ],
)
async def test_readiness_uses_health_checks_or_else_sends_a_request(
    are_ready: tuple[bool | None, ...], combine: Any, expected: bool
) -> None:
    backends = [WatchedMemory(str(i), each) for i, each in enumerate(are_ready)]
    routes = [Route(each.name, each.name) for each in backends]
    gateway = build_gateway(*routes, backends=backends, combine_readiness=combine)
    assert await gateway.perform(ServerReadyRequest(), new_context()) == HealthStatus(ok=expected)
    assert [len(each.requests) for each in backends] == [int(each is None) for each in are_ready]


async def test_the_index_lists_exact_routes_and_models_behind_patterns() -> None:
    listed = ModelIndex(
        (
            ModelIndexEntry("bert-a", "1", "READY"),
            ModelIndexEntry("m", "1", "READY"),
            ModelIndexEntry("hidden", "1", "READY"),
        )
    )
    broken = Memory("broken", GatewayError(Kind.UNSUPPORTED, "no index"))
    gateway = build_gateway(
        Route("m", "other", "2"),
        Route("bert-*", "lists"),
        Route("gpt-*", "broken"),
        backends=[Memory("other"), Memory("lists", listed), broken],
    )
    index = await perform(gateway, ModelIndexRequest(), ModelIndex)
    assert [entry.name for entry in index.models] == ["m", "bert-a"]


async def test_a_routes_timeout_shortens_the_deadline() -> None:
    gateway, _ = serve(timeout=5.0)
    context = new_context()
    await gateway.perform(ModelReadyRequest("m"), context)
    assert context.deadline is not None
    assert context.deadline - context.record.started_at <= 5.5
