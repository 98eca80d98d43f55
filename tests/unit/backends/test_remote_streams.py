"""RemoteBackend's streams, with a scripted upstream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest
from tritonclient.grpc import service_pb2 as pb

from contexts import new_context
from gateway_errors import raises_kind
from infergate.backends import single_flight
from infergate.backends.backend_settings import BackendSettings
from infergate.backends.remote import RPC_MESSAGES, RemoteBackend
from infergate.codecs.base import Profile
from infergate.codecs.profiles import GENERIC, INFERGATE, TRITON
from infergate.codecs.v2_grpc.codec import V2Grpc
from infergate.codecs.v2_grpc.infer_response import write_raw
from infergate.codecs.v2_grpc.methods import INFER, STREAM
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.request_context import RequestContext
from infergate.core.wire import RpcRequest, RpcResponse
from infergate.transport.base import Endpoint

pytestmark = pytest.mark.usefixtures("virtual_time")

A, B = Endpoint("a", 1), Endpoint("b", 2)
REQUEST = InferRequest("m", id="i")
UNIMPLEMENTED = RpcResponse(code=12, details="no such method")


def response(response_id: str) -> RpcResponse:
    """Return a ModelInferResponse, which MLServer sends in streams without an envelope."""
    return RpcResponse(write_raw(InferResponse("m", "1", response_id)))


class Upstream:
    """Runs the next of ``scripts`` for each stream: yields responses, raises errors, and sleeps for
    numbers of seconds. Unary calls get the response in ``descriptions`` for their method."""

    def __init__(
        self, *scripts: list[Any], descriptions: dict[str, RpcResponse] | None = None
    ) -> None:
        self.scripts = list(scripts)
        self.descriptions = descriptions or {}
        self.sent: list[tuple[RpcRequest, Endpoint, float | None]] = []
        self.closed = 0

    async def exchange(self, wire: RpcRequest, endpoint: Endpoint, timeout: float) -> RpcResponse:
        self.sent.append((wire, endpoint, timeout))
        return self.descriptions.get(wire.method.rpartition("/")[2], response("unary"))

    async def stream(
        self, wire: RpcRequest, endpoint: Endpoint, timeout: float | None
    ) -> AsyncGenerator[RpcResponse, None]:
        self.sent.append((wire, endpoint, timeout))
        try:
            for step in self.scripts.pop(0):
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, float):
                    await asyncio.sleep(step)
                else:
                    yield step
        finally:
            self.closed += 1

    async def close(self) -> None:
        pass


class UnaryUpstream:
    """An upstream without streams."""

    async def exchange(self, wire: RpcRequest, endpoint: Endpoint, timeout: float) -> RpcResponse:
        return response("unary")

    async def close(self) -> None:
        pass


def backend(
    upstream: Any, timeout: float = 5, profile: Profile = GENERIC
) -> RemoteBackend[RpcRequest, RpcResponse]:
    server = BackendSettings("b", (A, B), timeout, profile, ("x-*",), ("x-*",))
    return RemoteBackend(server, V2Grpc(), upstream, RPC_MESSAGES, DEFAULT_LIMITS)


async def ids(
    upstream: Any, context: RequestContext | None = None, **settings: Any
) -> list[tuple[str, bool]]:
    responses = backend(upstream, **settings).stream(REQUEST, context or new_context())
    return [(each.id, each.is_last) async for each in responses]


async def test_one_call_yields_all_responses() -> None:
    upstream = Upstream([0.25, response("0"), 0.25, response("1")])
    context = new_context(headers={"x-a": "1", "y": "2"})
    assert await ids(upstream, context) == [("0", False), ("1", False)]
    ((wire, _, timeout),) = upstream.sent
    assert (wire.method, dict(wire.metadata), timeout) == (STREAM, {"x-a": "1"}, None)
    assert context.record.backend_seconds == pytest.approx(0.5)
    assert upstream.closed == 1


async def test_headers_are_returned_by_rule() -> None:
    first = replace(response("0"), metadata={"x-a": "1", "y": "2"})
    last = RpcResponse(metadata={"x-b": "3", "endpoint-load-metrics": "4"})
    context = new_context()
    upstream = Upstream([first, response("1"), last])
    assert await ids(upstream, context) == [("0", False), ("1", False)]
    assert context.response_headers == {"x-a": "1", "x-b": "3"}


async def test_a_stream_without_responses_is_empty() -> None:
    assert await ids(Upstream([])) == []


async def test_a_clients_deadline_is_sent_upstream() -> None:
    upstream = Upstream([response("0")])
    soon = time.monotonic() + 60
    await ids(upstream, new_context(deadline=soon, stream_deadline=soon))
    timeout = upstream.sent[0][2]
    assert timeout is not None
    assert 50 < timeout <= 60


async def test_an_unsent_stream_is_retried_on_another_endpoint() -> None:
    upstream = Upstream([GatewayError(Kind.CONNECT, "no")], [response("0")])
    assert await ids(upstream) == [("0", False)]
    assert {endpoint for _, endpoint, _ in upstream.sent} == {A, B}


async def test_no_retry_after_the_first_response() -> None:
    for kind in (Kind.CONNECT, Kind.BACKEND_GARBAGE):
        upstream = Upstream([response("0"), GatewayError(kind, "gone")])
        responses = backend(upstream).stream(REQUEST, new_context())
        assert (await anext(responses)).id == "0"
        with raises_kind(kind, match=r"^backend 'b': gone$"):
            await anext(responses)
        assert len(upstream.sent) == 1


async def test_errors_after_the_last_response_are_ignored() -> None:
    last = pb.ModelStreamInferResponse()
    last.infer_response.id = "0"
    last.infer_response.outputs.add(name="a", datatype="INT8", shape=[0])
    last.infer_response.raw_output_contents.append(b"")
    last.infer_response.parameters["triton_final_response"].bool_param = True
    broken = GatewayError(Kind.BACKEND_GARBAGE, "gone")
    upstream = Upstream([RpcResponse((last.SerializeToString(),)), broken])
    assert await ids(upstream) == [("0", True)]
    assert upstream.closed == 1


async def test_a_stream_without_a_reachable_endpoint_fails() -> None:
    unreachable = [GatewayError(Kind.CONNECT, "no")]
    with raises_kind(Kind.CONNECT, match="backend 'b': no"):
        await ids(Upstream(unreachable, unreachable))


async def test_a_server_without_the_stream_method_gets_a_unary_call() -> None:
    upstream = Upstream([UNIMPLEMENTED])
    assert await ids(upstream) == [("unary", True)]
    assert [wire.method for wire, _, _ in upstream.sent] == [STREAM, INFER]


def model_info(**policy: bool) -> dict[str, RpcResponse]:
    """Return the responses with the model's metadata and configuration."""
    config = pb.ModelConfigResponse()
    config.config.name = "m"
    if policy:
        config.config.model_transaction_policy.decoupled = policy["decoupled"]
    metadata = pb.ModelMetadataResponse(name="m")
    return {
        "ModelMetadata": RpcResponse((metadata.SerializeToString(),)),
        "ModelConfig": RpcResponse((config.SerializeToString(),)),
    }


def methods(upstream: Upstream) -> list[str]:
    return [wire.method.rpartition("/")[2] for wire, _, _ in upstream.sent]


@pytest.mark.parametrize("policy", [{}, {"decoupled": False}])
async def test_a_model_with_one_response_gets_a_unary_call(policy: dict[str, bool]) -> None:
    upstream = Upstream(descriptions=model_info(**policy))
    assert await ids(upstream, profile=TRITON) == [("unary", True)]
    assert methods(upstream) == ["ModelMetadata", "ModelConfig", "ModelInfer"]


async def test_a_decoupled_model_is_called_with_a_stream() -> None:
    upstream = Upstream([response("0"), response("1")], descriptions=model_info(decoupled=True))
    assert await ids(upstream, profile=TRITON) == [("0", False), ("1", False)]
    assert methods(upstream) == ["ModelMetadata", "ModelConfig", "ModelStreamInfer"]


async def test_a_model_with_unknown_policy_is_called_with_a_stream() -> None:
    descriptions = {**model_info(), "ModelConfig": RpcResponse(code=14, details="not now")}
    upstream = Upstream([response("0")], descriptions=descriptions)
    assert await ids(upstream, profile=TRITON) == [("0", False)]
    assert methods(upstream) == ["ModelMetadata", "ModelConfig", "ModelStreamInfer"]


async def test_a_generated_configuration_is_not_trusted() -> None:
    upstream = Upstream([response("0")], descriptions=model_info())
    assert await ids(upstream, profile=replace(INFERGATE, reports_config=True)) == [("0", False)]
    assert methods(upstream) == ["ModelStreamInfer"]


async def test_an_unknown_model_is_reported() -> None:
    upstream = Upstream(descriptions={"ModelMetadata": RpcResponse(code=5, details="no model 'm'")})
    with raises_kind(Kind.NOT_FOUND, match="no model 'm'"):
        await ids(upstream, profile=TRITON)


async def test_a_model_that_became_decoupled_is_called_again_with_a_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(single_flight, "STALE_SECONDS", 0.0)
    descriptions = {**model_info(), "ModelInfer": RpcResponse(code=12, details="it is decoupled")}
    upstream = Upstream([response("0")], descriptions=descriptions)
    remote = backend(upstream, profile=TRITON)
    with pytest.raises(GatewayError, match="it is decoupled"):
        await anext(remote.stream(REQUEST, new_context()))
    upstream.descriptions |= model_info(decoupled=True)
    assert [each.id async for each in remote.stream(REQUEST, new_context())] == ["0"]


async def test_a_rejection_after_a_response_is_reported() -> None:
    with raises_kind(Kind.UNSUPPORTED):
        await ids(Upstream([response("0"), UNIMPLEMENTED]))


async def test_a_transport_without_streams_yields_one_response() -> None:
    assert await ids(UnaryUpstream()) == [("unary", True)]


async def test_the_timeout_bounds_the_wait_for_each_response() -> None:
    steps = [0.1, response("0"), 0.1, response("1"), 0.1, response("2")]
    responses = backend(Upstream(steps), timeout=0.2).stream(REQUEST, context := new_context())
    for number in "012":
        assert (await anext(responses)).id == number
        context.renew_deadline()
    assert await anext(responses, None) is None


async def test_a_response_that_does_not_arrive_in_time_ends_the_stream() -> None:
    upstream = Upstream([response("0"), 5.0])
    responses = backend(upstream, timeout=0.1).stream(REQUEST, new_context())
    await anext(responses)
    with raises_kind(Kind.TIMEOUT, match=r"backend 'b': .* in time"):
        await anext(responses)
    assert upstream.closed == 1


async def test_garbage_names_the_backend_once() -> None:
    with raises_kind(Kind.BACKEND_GARBAGE) as caught:
        await ids(Upstream([RpcResponse((b"",))]))
    assert caught.value.public.count("backend 'b'") == 1


async def test_closing_the_stream_closes_the_call() -> None:
    upstream = Upstream([response("0"), response("1")])
    responses = backend(upstream).stream(REQUEST, new_context())
    await anext(responses)
    await responses.aclose()
    assert upstream.closed == 1
