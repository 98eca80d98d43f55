"""Sequence ids and opaque parameters for backends whose protocol may not support them."""

import pytest
from fakes import Memory

from contexts import new_context
from gateway_errors import raises_kind
from infergate.core.errors import Kind
from infergate.core.messages import InferRequest
from infergate.core.tensor import OpaqueParameters
from infergate.gateway.gateway import RoutingGateway
from infergate.routing.table import Route, RouteTable


async def perform(tested_gateway: RoutingGateway, request: InferRequest) -> None:
    await tested_gateway.perform(request, new_context())


async def stream(tested_gateway: RoutingGateway, request: InferRequest) -> None:
    context = new_context()
    async for _ in tested_gateway.stream(
        request, tested_gateway.bind(request.model, "", context), context
    ):
        pass


@pytest.mark.parametrize("call", [perform, stream])
async def test_a_protocol_without_sequences_rejects_a_sequence_id(call: object) -> None:
    assert callable(call)
    backend = Memory("b")
    gateway = RoutingGateway(RouteTable([Route("*", "b")]), {"b": backend}, {})
    request = InferRequest("m", parameters={"sequence_id": 7})
    await call(gateway, request)
    backend.supports_sequences = False
    gateway = RoutingGateway(RouteTable([Route("*", "b")]), {"b": backend}, {})
    await call(gateway, InferRequest("m", parameters={"sequence_id": 0}))
    assert len(backend.requests) == 2
    with raises_kind(Kind.UNSUPPORTED) as caught:
        await call(gateway, request)
    assert caught.value.public == (
        "parameter 'sequence_id': backend 'b' speaks memory, which has no sequences"
    )
    assert len(backend.requests) == 2


@pytest.mark.parametrize("call", [perform, stream])
async def test_a_graphpipe_config_is_passed_only_to_graphpipe_servers(call: object) -> None:
    """A GraphPipe server gets parameters that other protocols refuse or read as a sequence."""
    assert callable(call)
    backend = Memory("b")
    backend.supports_sequences = False
    gateway = RoutingGateway(RouteTable([Route("*", "b")]), {"b": backend}, {})
    sequence = OpaqueParameters({"sequence_id": 7}, ("graphpipe",), b'{"sequence_id": 7}')
    rejected = OpaqueParameters({}, ("graphpipe",), b"\xff", (Kind.BAD_REQUEST, "not UTF-8"))
    for parameters, kind in ((sequence, Kind.UNSUPPORTED), (rejected, Kind.BAD_REQUEST)):
        request = InferRequest("m", parameters=parameters)
        backend.protocol = "v2-rest"
        with raises_kind(kind):
            await call(gateway, request)
        backend.protocol = "graphpipe"
        await call(gateway, request)
        operation = backend.requests.pop()
        assert isinstance(operation, InferRequest)
        assert operation.parameters is parameters
    assert not backend.requests
