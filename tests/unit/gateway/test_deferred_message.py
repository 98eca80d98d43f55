"""A compressed gRPC message is authorized by its first fields before it is inflated."""

import pytest
from fakes import Memory
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from contexts import new_context
from infergate.codecs.base import RequestSummary
from infergate.codecs.registry import plugins
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.memory import MemoryAccount
from infergate.core.messages import InferRequest
from infergate.core.request_context import RequestContext
from infergate.core.wire import RpcRequest, RpcResponse
from infergate.gateway.deferred_message import PREFIX_BYTES, leading_fields
from infergate.gateway.dispatch import RpcDispatch
from infergate.gateway.frontend import Frontend
from infergate.gateway.gateway import RoutingGateway
from infergate.routing.table import Route, RouteTable

METHOD = "/inference.GRPCInferenceService/ModelInfer"


class _Deferred:
    def __init__(self, message: bytes) -> None:
        self.message = message
        self.prefix = message[: 2 * PREFIX_BYTES]
        self.inflated = 0

    async def inflate(self, memory: MemoryAccount) -> bytes:
        memory.grow(len(self.message))
        self.inflated += 1
        return self.message


class _Authorizer:
    def __init__(self, error: GatewayError | None = None) -> None:
        self.error = error
        self.requests: list[RequestSummary] = []

    async def authorize(self, summary: RequestSummary, context: RequestContext) -> RequestSummary:
        self.requests.append(summary)
        if self.error is not None:
            raise self.error
        return summary

    async def authenticate(self, context: RequestContext) -> None:
        raise NotImplementedError


def _message(model: str = "m") -> bytes:
    message = pb.ModelInferRequest(model_name=model, model_version="1")
    message.inputs.add(name="INPUT0", datatype="UINT8", shape=[100_000])
    message.raw_input_contents.append(bytes(100_000))
    return bytes(message.SerializeToString())


def _dispatch(memory: Memory, authorizer: _Authorizer) -> RpcDispatch:
    gateway = RoutingGateway(RouteTable([Route("*", "b")]), {"b": memory}, {})
    codec = plugins()["v2-grpc"].create({})
    frontend = Frontend(codec, gateway, DEFAULT_LIMITS, authorizer=authorizer)
    return RpcDispatch({"": frontend}, {"/own/Method": _own_method}, {}, lambda _: None)


async def _respond(
    message: bytes, authorizer: _Authorizer
) -> tuple[RpcResponse, _Deferred, Memory, RequestContext]:
    memory, deferred, context = Memory("b"), _Deferred(message), new_context()
    wire = RpcRequest(METHOD, deferred=deferred)
    response = await _dispatch(memory, authorizer).respond(wire, context)
    return response, deferred, memory, context


async def _own_method(wire: RpcRequest, context: RequestContext) -> RpcResponse:
    raise NotImplementedError


async def test_a_rejected_client_causes_no_inflation() -> None:
    authorizer = _Authorizer(GatewayError(Kind.FORBIDDEN, "no"))
    response, deferred, memory, context = await _respond(_message(), authorizer)
    assert (response.code, context.record.model, context.record.outcome) == (7, "m", "forbidden")
    assert authorizer.requests == [RequestSummary(InferRequest, "m", "1")]
    assert (deferred.inflated, memory.requests) == (0, [])


async def test_an_admitted_clients_message_is_inflated() -> None:
    authorizer = _Authorizer()
    response, deferred, memory, context = await _respond(_message(), authorizer)
    assert (response.code, response.details) == (0, "")
    assert (deferred.inflated, len(memory.requests), len(authorizer.requests)) == (1, 1, 1)
    assert context.record.bytes_in == len(_message())


@pytest.mark.parametrize(
    "message",
    [
        _message() + pb.ModelInferRequest(model_name="another").SerializeToString(),
        pb.ModelInferRequest(id="x" * PREFIX_BYTES).SerializeToString() + _message(),
    ],
    ids=["two model names", "name after the prefix"],
)
async def test_a_model_name_that_differs_from_the_summary_is_rejected(message: bytes) -> None:
    response, _, memory, context = await _respond(message, _Authorizer())
    assert context.record.outcome == "bad_request"
    assert response.code == 3
    assert memory.requests == []


async def test_the_gateways_own_methods_reject_deferred_messages() -> None:
    dispatch, context = _dispatch(Memory("b"), _Authorizer()), new_context()
    response = await dispatch.respond(RpcRequest("/own/Method", deferred=_Deferred(b"")), context)
    assert (response.code, context.record.outcome) == (8, "too_large")


@given(st.binary(max_size=200))
def test_leading_fields_are_a_prefix_of_any_bytes(data: bytes) -> None:
    assert data.startswith(leading_fields(data))


@given(st.text(max_size=20), st.binary(max_size=3 * PREFIX_BYTES), st.integers(0, 3 * PREFIX_BYTES))
def test_complete_fields_are_kept(model: str, raw: bytes, end: int) -> None:
    message = pb.ModelInferRequest(model_name=model, id="i")
    message.raw_input_contents.append(raw)
    packed = bytes(message.SerializeToString())
    fields = leading_fields(packed[:end])
    parsed = pb.ModelInferRequest.FromString(fields)
    assert fields == b"" or parsed.model_name == model
    if len(packed) <= min(end, PREFIX_BYTES):
        assert fields == packed
