"""Casts of datatypes that the protocol of one side does not support."""

from typing import Any

import pytest
from fakes import Memory, perform

from contexts import new_context
from gateway_errors import raises_kind
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import (
    InferRequest,
    InferResponse,
    ModelMetadata,
    ModelMetadataRequest,
    TensorMetadata,
)
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Tensor
from infergate.gateway.gateway import RoutingGateway
from infergate.routing.table import Rewrite, Route, RouteTable
from memory_budget import Budget

UNSUPPORTED_DATATYPES = frozenset({Datatype.BOOL, Datatype.BF16})
CASTS = {Datatype.BOOL: Datatype.UINT8, Datatype.BF16: Datatype.FP32}
BOOL = Tensor("b", Datatype.BOOL, (2,), b"\1\0")
UINT8 = Tensor("b", Datatype.UINT8, (2,), b"\1\0")
BF16 = Tensor("f", Datatype.BF16, (1,), b"\x80\x3f")
FP32 = Tensor("f", Datatype.FP32, (1,), b"\0\0\x80\x3f")
MODEL = ModelMetadata(
    "m",
    inputs=(TensorMetadata("b", "BOOL", (-1,)), TensorMetadata("f", "BF16", (-1,))),
    outputs=(TensorMetadata("b", "BOOL", (-1,)), TensorMetadata("odd", "TYPE_X", (1,))),
)


class LimitedBackend(Memory):
    """A backend whose protocol supports neither BOOL nor BF16."""

    datatypes = frozenset(Datatype) - UNSUPPORTED_DATATYPES


def gateway_for(
    backend: Memory, casts: Any = CASTS, declared: Any = None, **rewrite: Any
) -> RoutingGateway:
    route = Route("m", "b", cast=casts, rewrite=Rewrite(**rewrite))
    return RoutingGateway(RouteTable([route]), {"b": backend}, declared or {})


def limited_client_context() -> RequestContext:
    """Return a context of a client whose protocol supports neither BOOL nor BF16."""
    created = new_context()
    created.unsupported_datatypes, created.record.protocol = UNSUPPORTED_DATATYPES, "pipe"
    return created


async def infer(gateway: RoutingGateway, context: RequestContext, *inputs: Tensor) -> InferResponse:
    return await perform(gateway, InferRequest("m", inputs=inputs), InferResponse, context)


def received_inputs(backend: Memory) -> tuple[Tensor, ...]:
    request = backend.requests[-1]
    assert isinstance(request, InferRequest)
    return request.inputs


async def test_inputs_are_cast_for_a_backend_without_their_datatype() -> None:
    backend = LimitedBackend("b")
    response = await infer(gateway_for(backend), new_context(), BOOL, BF16)
    assert received_inputs(backend) == (UINT8, FP32)
    assert response.outputs == (UINT8, FP32)  # not cast back
    assert backend.described == []


async def test_outputs_are_cast_for_a_client_without_their_datatype() -> None:
    backend = Memory("b", InferResponse("m", outputs=(BOOL, BF16)))
    assert (await infer(gateway_for(backend), limited_client_context())).outputs == (UINT8, FP32)


async def test_inputs_are_cast_back_if_the_client_cannot_send_the_models_datatype() -> None:
    backend = Memory("b")
    backend.description = MODEL
    response = await infer(gateway_for(backend), limited_client_context(), UINT8, FP32)
    assert received_inputs(backend) == (BOOL, BF16)
    assert response.outputs == (UINT8, FP32)
    assert backend.described == [("m", "", False)]


async def test_inputs_of_the_models_datatype_are_not_cast_back() -> None:
    backend = Memory("b")
    backend.description = ModelMetadata("m", inputs=(TensorMetadata("b", "UINT8", (-1,)),))
    await infer(gateway_for(backend), limited_client_context(), UINT8, FP32)
    assert received_inputs(backend) == (UINT8, FP32)


async def test_memory_of_casts_is_counted() -> None:
    elements = 100_000
    bf16 = Tensor("f", Datatype.BF16, (elements,), bytes(2 * elements))
    fp32 = Tensor("f", Datatype.FP32, (elements,), bytes(4 * elements))
    to_backend, to_client, cast_back = LimitedBackend("b"), Memory("b"), Memory("b")
    to_client.answer = InferResponse("m", outputs=(bf16,))
    cast_back.description = MODEL
    cast_back.answer = InferResponse("m")
    for backend, context, tensor, cast_bytes in (
        (to_backend, new_context(), bf16, 4 * elements),
        (to_client, limited_client_context(), UINT8, 4 * elements),
        (cast_back, limited_client_context(), fp32, 2 * elements),
    ):
        context.memory = memory = Budget(cast_bytes)
        await infer(gateway_for(backend), context, tensor)
        assert memory.held == cast_bytes
        context.memory = Budget(cast_bytes - 1)
        with pytest.raises(GatewayError, match="full"):
            await infer(gateway_for(backend), context, tensor)


async def test_renamed_inputs_are_cast_back() -> None:
    backend = Memory("b")
    backend.description = ModelMetadata("m", inputs=(TensorMetadata("theirs", "BOOL", (-1,)),))
    await infer(gateway_for(backend, inputs={"b": "theirs"}), limited_client_context(), UINT8)
    assert [(each.name, each.datatype) for each in received_inputs(backend)] == [
        ("theirs", Datatype.BOOL)
    ]


async def test_inputs_are_cast_back_with_declared_metadata() -> None:
    backend = Memory("b")
    await infer(gateway_for(backend, declared={"m": MODEL}), limited_client_context(), UINT8)
    assert received_inputs(backend) == (BOOL,)
    assert backend.described == []


@pytest.mark.parametrize(
    ("context", "backend"),
    [(new_context(), Memory("b")), (limited_client_context(), LimitedBackend("b"))],
)
async def test_no_cast_and_no_metadata_request_if_both_sides_support_the_same_datatypes(
    context: RequestContext, backend: Memory
) -> None:
    backend.description = MODEL
    await infer(gateway_for(backend), context, UINT8, FP32)
    assert received_inputs(backend) == (UINT8, FP32)
    assert backend.described == []


async def test_no_metadata_request_if_no_input_is_a_substitute() -> None:
    backend = Memory("b")
    await infer(
        gateway_for(backend), limited_client_context(), Tensor("i", Datatype.INT8, (1,), b"\1")
    )
    assert backend.described == []


@pytest.mark.parametrize("casts", [{}, {Datatype.BF16: Datatype.FP32}])
async def test_without_a_cast_an_input_is_unsupported(casts: Any) -> None:
    backend = LimitedBackend("b")
    with raises_kind(Kind.UNSUPPORTED) as caught:
        await infer(gateway_for(backend, casts), new_context(), BOOL)
    assert caught.value.public == (
        "input 'b' is BOOL, which the protocol memory does not support; "
        "configure 'cast' on the route"
    )
    assert not backend.requests


async def test_without_a_cast_an_output_is_unsupported() -> None:
    backend = Memory("b", InferResponse("m", outputs=(FP32, BF16)))
    with raises_kind(Kind.UNSUPPORTED) as caught:
        await infer(gateway_for(backend, {}), limited_client_context())
    assert caught.value.public == (
        "output 'f' is BF16, which the protocol pipe does not support; "
        "configure 'cast' on the route"
    )


async def test_metadata_reports_the_datatypes_after_casting() -> None:
    backend = Memory("b", MODEL)
    backend.description = MODEL
    gateway = gateway_for(backend)
    for metadata in (
        await gateway.perform(ModelMetadataRequest("m"), limited_client_context()),
        await gateway.describe("m", "", limited_client_context()),
        await gateway_for(backend, declared={"m": MODEL}).perform(
            ModelMetadataRequest("m"), limited_client_context()
        ),
    ):
        assert isinstance(metadata, ModelMetadata)
        assert [each.datatype for each in metadata.inputs] == ["UINT8", "FP32"]
        assert [each.datatype for each in metadata.outputs] == ["UINT8", "TYPE_X"]
    assert await gateway.perform(ModelMetadataRequest("m"), new_context()) == MODEL
    assert (
        await gateway_for(backend, {}).perform(ModelMetadataRequest("m"), limited_client_context())
        == MODEL
    )


async def test_a_declared_model_has_the_backends_names() -> None:
    backend = Memory("b")
    gateway = gateway_for(
        backend,
        declared={"m": MODEL},
        model="theirs",
        inputs={"b": "flags"},
        outputs={"odd": "even"},
    )
    context = new_context()
    await infer(gateway, context, BOOL)
    assert context.policy.declared_metadata == ModelMetadata(
        "theirs",
        inputs=(TensorMetadata("flags", "BOOL", (-1,)), TensorMetadata("f", "BF16", (-1,))),
        outputs=(TensorMetadata("b", "BOOL", (-1,)), TensorMetadata("even", "TYPE_X", (1,))),
    )


async def test_declared_metadata_applies_to_its_model_only() -> None:
    context = new_context()
    created = RoutingGateway(RouteTable([Route("*", "b")]), {"b": Memory("b")}, {"other": MODEL})
    await created.perform(InferRequest("other"), context)
    assert context.policy.declared_metadata is not None
    await infer(created, context, BOOL)
    assert context.policy.declared_metadata is None
