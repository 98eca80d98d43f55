"""The gateway computes classes for backends that cannot compute them."""

import threading
from typing import Any

import numpy as np
import pytest
from fakes import Memory, perform

from gateway_errors import raises_kind
from infergate.backends.builtin import BuiltinBackend
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import (
    InferRequest,
    InferResponse,
    ModelMetadata,
    RequestedOutput,
    TensorMetadata,
)
from infergate.core.tensor import tensor_from_array
from infergate.gateway.classification import add_classes, requests_classes
from infergate.gateway.datatypes import MAX_INLINE_CLASSIFY_BYTES
from infergate.gateway.gateway import RoutingGateway
from infergate.routing.table import Rewrite, Route, RouteTable

SCORES = np.array([[1, 3, 2], [9, 7, 8]], np.float32)


def model(shape: tuple[int, ...], batch: int | None = None, output: str = "Y") -> ModelMetadata:
    return ModelMetadata(
        "m", ("1",), outputs=(TensorMetadata(output, "FP32", shape),), max_batch_size=batch
    )


def gateway_with_backend(
    metadata: ModelMetadata | GatewayError, declared: Any = None, **route: Any
) -> tuple[RoutingGateway, Memory]:
    memory = Memory("b")
    memory.has_classes = False
    memory.description = metadata
    memory.answer = InferResponse(
        "theirs",
        "7",
        outputs=(tensor_from_array("Y", Datatype.FP32, SCORES), tensor("Z", [[5], [6]])),
    )
    table = RouteTable([Route("m", "b", **route)])
    return RoutingGateway(table, {"b": memory}, declared or {}), memory


def tensor(name: str, values: Any) -> Any:
    return tensor_from_array(name, Datatype.INT8, np.array(values, np.int8))


def classes(count: int, name: str = "Y", **parameters: Any) -> RequestedOutput:
    return RequestedOutput(name, {"classification": count, **parameters})


async def output_values(gateway: RoutingGateway, *outputs: RequestedOutput) -> dict[str, Any]:
    response = await perform(gateway, InferRequest("m", outputs=outputs), InferResponse)
    return {t.name: t.numpy().tolist() for t in response.outputs}


@pytest.mark.parametrize(
    "outputs", [(), (RequestedOutput("Y"),), (RequestedOutput("Y", {"a": 1}),)]
)
async def test_outputs_without_classification_are_unchanged(
    outputs: tuple[RequestedOutput, ...],
) -> None:
    gateway, memory = gateway_with_backend(model((-1, 3)))
    assert not requests_classes(InferRequest("m", outputs=outputs))
    assert (await output_values(gateway, *outputs))["Y"] == SCORES.tolist()
    assert memory.described == []


async def test_a_backend_that_classifies_gets_the_classification_request() -> None:
    gateway, memory = gateway_with_backend(model((-1, 3)))
    memory.has_classes = True
    assert (await output_values(gateway, classes(2)))[
        "Y"
    ] == SCORES.tolist()  # as in the backend's response
    assert memory.requests == [InferRequest("m", outputs=(classes(2),))]


async def test_the_backend_gets_a_request_for_values() -> None:
    gateway, memory = gateway_with_backend(model((-1, 3)))
    outputs = await output_values(gateway, classes(2, other="kept"), RequestedOutput("Z"))
    assert memory.requests == [
        InferRequest("m", outputs=(RequestedOutput("Y", {"other": "kept"}), RequestedOutput("Z")))
    ]
    assert outputs == {
        "Y": [[b"3.000000:1", b"2.000000:2"], [b"9.000000:0", b"8.000000:2"]],
        "Z": [[5], [6]],
    }


@pytest.mark.parametrize(
    ("metadata", "batched"),
    [
        (model((-1, 3)), True),
        (model((-1, 3), 8), True),
        (model((-1, 3), 0), False),
        (model((2, 3), 8), True),
        (model((2, 3)), False),
        (model((-1,)), False),
        (model((-1, 3), output="other"), False),
        (ModelMetadata("m"), False),
    ],
)
async def test_metadata_determines_the_batch_dimension(
    metadata: ModelMetadata, batched: bool
) -> None:
    gateway, _ = gateway_with_backend(metadata)
    expected = [[b"3.000000:1"], [b"9.000000:0"]] if batched else [b"9.000000:3"]
    assert (await output_values(gateway, classes(1)))["Y"] == expected


async def test_declared_metadata_replaces_the_backends() -> None:
    gateway, memory = gateway_with_backend(model((2, 3)), {"m": model((2, 3), 8)})
    assert (await output_values(gateway, classes(1)))["Y"] == [[b"3.000000:1"], [b"9.000000:0"]]
    assert memory.described == []


async def test_labels_and_output_names_follow_the_rewrite() -> None:
    gateway, memory = gateway_with_backend(
        model((-1, 3)),
        rewrite=Rewrite("theirs", "7", outputs={"scores": "Y"}),
        labels={"scores": ("ant", "bee", "cat"), "Y": ("wrong",) * 3},
    )
    assert await output_values(gateway, classes(1, "scores")) == {
        "scores": [[b"3.000000:1:bee"], [b"9.000000:0:ant"]],
        "Z": [[5], [6]],
    }
    assert memory.described == [("theirs", "7", False)]
    assert memory.requests == [InferRequest("theirs", "7", outputs=(RequestedOutput("Y"),))]


async def test_classes_without_labels_have_only_an_index() -> None:
    gateway, _ = gateway_with_backend(model((-1, 3)), labels={"Y": ("ant", "")})
    assert (await output_values(gateway, classes(3)))["Y"][1] == [
        b"9.000000:0:ant",
        b"8.000000:2",
        b"7.000000:1",
    ]


async def test_no_classes_without_metadata() -> None:
    gateway, memory = gateway_with_backend(GatewayError(Kind.CONNECT, "down"))
    with pytest.raises(GatewayError, match="down"):
        await output_values(gateway, classes(1))
    assert memory.requests == []


async def test_an_output_with_an_unordered_datatype_is_rejected() -> None:
    gateway, memory = gateway_with_backend(ModelMetadata("m"))
    response = memory.answer = InferResponse(
        "m", outputs=(tensor_from_array("Y", Datatype.BOOL, np.array([True])),)
    )
    assert isinstance(response, InferResponse)
    with raises_kind(Kind.BAD_REQUEST, match="'Y': class result not available"):
        await output_values(gateway, classes(1))


async def test_embedded_models_classify_with_their_own_labels() -> None:
    gateway = RoutingGateway(RouteTable([Route("*", "b")]), {"b": BuiltinBackend("b")}, {})
    request = InferRequest(
        "identity", inputs=(tensor("INPUT0", [4, 9]),), outputs=(classes(1, "OUTPUT0"),)
    )
    response = await perform(gateway, request, InferResponse)
    assert response.outputs[0].numpy().tolist() == [b"9:1"]


async def test_long_outputs_are_classified_by_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def recording_add_classes(*arguments: Any) -> Any:
        threads.append(threading.get_ident())
        return add_classes(*arguments)

    monkeypatch.setattr("infergate.gateway.datatypes.add_classes", recording_add_classes)
    gateway, memory = gateway_with_backend(model((-1,)))
    for elements in (MAX_INLINE_CLASSIFY_BYTES // 4, MAX_INLINE_CLASSIFY_BYTES // 4 + 1):
        values = tensor_from_array("Y", Datatype.FP32, np.zeros(elements, np.float32))
        memory.answer = InferResponse("theirs", "7", outputs=(values,))
        await output_values(gateway, classes(1))
    assert [thread == threading.get_ident() for thread in threads] == [True, False]
