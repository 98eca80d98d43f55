"""RemoteBackend keeps each sequence on one endpoint, and reads priorities for its queue."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from contexts import new_context
from infergate.backends.backend_settings import BackendSettings
from infergate.backends.remote import RPC_MESSAGES, RemoteBackend
from infergate.codecs.profiles import GENERIC
from infergate.codecs.v2_grpc.codec import V2Grpc
from infergate.codecs.v2_grpc.infer_response import write_raw
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata
from infergate.core.route_policy import RoutePolicy
from infergate.core.sequences import SequenceKey
from infergate.core.wire import RpcRequest, RpcResponse
from infergate.transport.base import Endpoint

ENDPOINTS = [Endpoint("a", 1), Endpoint("b", 2), Endpoint("c", 3)]
RESPONSE = RpcResponse(write_raw(InferResponse("m", "1", "id")))


class Upstream:
    """Records the endpoint of each request. Endpoints in ``unreachable`` refuse the connection."""

    def __init__(self) -> None:
        self.endpoints: list[Endpoint] = []
        self.unreachable: set[Endpoint] = set()

    async def exchange(self, wire: RpcRequest, endpoint: Endpoint, timeout: float) -> RpcResponse:
        self.endpoints.append(endpoint)
        if endpoint in self.unreachable:
            raise GatewayError(
                Kind.CONNECT,
                "could not be reached",
                origin=Origin.BACKEND,
                detail=endpoint.authority,
                limit="connect_time",
            )
        return RESPONSE

    async def stream(
        self, wire: RpcRequest, endpoint: Endpoint, timeout: float | None
    ) -> AsyncGenerator[RpcResponse, None]:
        yield await self.exchange(wire, endpoint, 1)

    async def close(self) -> None:
        pass


def backend(upstream: Upstream, endpoints: list[Endpoint]) -> RemoteBackend[Any, Any]:
    server = BackendSettings("b", endpoints, profile=GENERIC)
    return RemoteBackend(server, V2Grpc(), upstream, RPC_MESSAGES, DEFAULT_LIMITS)


def request(number: object = None, model: str = "m") -> InferRequest:
    return InferRequest(model, parameters={} if number is None else {"sequence_id": number})


async def perform(remote: RemoteBackend[Any, Any], inference: InferRequest) -> None:
    await remote.perform(inference, new_context())


async def perform_with_declared_metadata(
    remote: RemoteBackend[Any, Any], inference: InferRequest
) -> None:
    remote.codec.needs_metadata = True
    context = new_context()
    context.policy = RoutePolicy(declared_metadata=ModelMetadata("m"))
    await remote.perform(inference, context)


async def stream(remote: RemoteBackend[Any, Any], inference: InferRequest) -> None:
    async for _ in remote.stream(inference, new_context()):
        pass


async def forward(remote: RemoteBackend[Any, Any], inference: InferRequest) -> None:
    number: Any = inference.parameters.get("sequence_id")
    key = None if number is None else SequenceKey(inference.model, number)
    await remote.infer(RpcRequest("/infer"), new_context(), key)


CALLS = [perform, perform_with_declared_metadata, stream, forward]
Call = Callable[[RemoteBackend[Any, Any], InferRequest], Any]


@pytest.mark.parametrize("call", CALLS)
async def test_a_sequence_stays_on_one_endpoint(call: Call) -> None:
    upstream = Upstream()
    remote = backend(upstream, ENDPOINTS)
    owners: dict[int, set[Endpoint]] = {}
    for _ in range(4):
        for number in range(1, 31):
            await call(remote, request(number))
            owners.setdefault(number, set()).add(upstream.endpoints[-1])
            await call(remote, request())
    assert all(len(endpoints) == 1 for endpoints in owners.values())
    assert set.union(*owners.values()) == set(ENDPOINTS)


async def test_all_kinds_of_calls_choose_the_same_endpoint() -> None:
    endpoints: list[list[Endpoint]] = []
    for call in CALLS:
        upstream = Upstream()
        remote = backend(upstream, ENDPOINTS[::-1])
        for number in range(1, 21):
            await call(remote, request(number))
        endpoints.append(upstream.endpoints)
    assert endpoints[0] == endpoints[1] == endpoints[2] == endpoints[3]


@pytest.mark.parametrize("call", CALLS)
async def test_a_sequence_fails_if_its_endpoint_is_unreachable(call: Call) -> None:
    upstream = Upstream()
    remote = backend(upstream, ENDPOINTS)
    await call(remote, request("mine"))
    owner = upstream.endpoints.pop()
    upstream.unreachable.add(owner)
    with pytest.raises(GatewayError) as caught:
        await call(remote, request("mine"))
    assert set(upstream.endpoints) == {owner}
    assert caught.value.kind is Kind.CONNECT
    position = ENDPOINTS.index(owner) + 1
    assert caught.value.public == (
        f"backend 'b': could not be reached (endpoint {position} of 3, which holds the state of "
        "sequence 'mine' of model 'm')"
    )
    assert caught.value.detail == owner.authority
    assert caught.value.limit == "connect_time"
    upstream.unreachable.clear()
    await call(remote, request("mine"))
    assert upstream.endpoints[-1] == owner


async def test_a_long_sequence_id_is_truncated_in_the_error() -> None:
    upstream = Upstream()
    upstream.unreachable = set(ENDPOINTS)
    with pytest.raises(GatewayError) as caught:
        await perform(backend(upstream, ENDPOINTS), request("x" * 10_000))
    assert len(caught.value.public) < 200


async def test_requests_without_a_sequence_are_spread_and_retried() -> None:
    upstream = Upstream()
    upstream.unreachable = {ENDPOINTS[0]}
    remote = backend(upstream, ENDPOINTS)
    for _ in range(50):
        await perform(remote, request(0))
        await perform(remote, request())
    assert set(upstream.endpoints) == set(ENDPOINTS)
    assert upstream.endpoints.count(ENDPOINTS[0]) == 5, "it is ejected after five failures"


async def test_a_single_endpoint_owns_all_sequences() -> None:
    upstream = Upstream()
    remote = backend(upstream, ENDPOINTS[:1])
    assert not remote.has_several_endpoints
    assert backend(upstream, ENDPOINTS).has_several_endpoints
    for number in range(1, 5):
        await perform(remote, request(number))
    upstream.unreachable = {ENDPOINTS[0]}
    with pytest.raises(GatewayError) as caught:
        await perform(remote, request(1))
    assert caught.value.public == "backend 'b': could not be reached"


@pytest.mark.parametrize("max_requests", [0, 1])
async def test_the_priority_of_an_inference_is_read_if_the_backend_has_a_queue(
    max_requests: int,
) -> None:
    settings = BackendSettings("b", ENDPOINTS, profile=GENERIC, max_requests=max_requests)
    remote = RemoteBackend(settings, V2Grpc(), Upstream(), RPC_MESSAGES, DEFAULT_LIMITS)
    urgent = InferRequest("m", parameters={"priority": 2})
    unary, streamed = new_context(), new_context()
    await remote.perform(urgent, unary)
    assert len([each async for each in remote.stream(urgent, streamed)]) == 1
    assert remote.has_queue == bool(max_requests)
    assert unary.priority == streamed.priority == 2 * max_requests
