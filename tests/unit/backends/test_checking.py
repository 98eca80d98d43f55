"""How health checks interpret a server's responses, in each backend protocol."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from infergate.backends.endpoints import ConfiguredEndpoint, EndpointHandle, Endpoints
from infergate.backends.health_check import check_health
from infergate.codecs.registry import plugins
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.wire import HttpRequest, HttpResponse, RpcRequest, RpcResponse
from infergate.transport.base import Endpoint

pytestmark = pytest.mark.usefixtures("virtual_time")

ENDPOINT = Endpoint("10.0.0.1", 1)
Answer = Callable[[Any], Any]


class Upstream:
    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[Any] = []
        self.held: list[int] = []
        self.endpoint: EndpointHandle

    async def exchange(self, wire: Any, endpoint: Endpoint, timeout: float) -> Any:
        assert endpoint == ENDPOINT
        assert 0 < timeout <= 2.0
        self.requests.append(wire)
        self.held.append(self.endpoint.active)
        return self.answer(wire)

    async def close(self) -> None:
        pass


async def check(protocol: str, answer: Answer) -> tuple[bool, Upstream]:
    upstream = Upstream(answer)
    (endpoint,) = Endpoints("b", [ConfiguredEndpoint(ENDPOINT)]).all_handles()
    upstream.endpoint = endpoint
    codec = plugins()[protocol].create({})
    well = await check_health(codec, upstream, DEFAULT_LIMITS, endpoint, 2.0)
    assert set(upstream.held) == {1}, "the endpoint counts as in use during the check"
    assert (endpoint.active, endpoint.successes, endpoint.failures) == (0, 0, 0), (
        "the check is not counted as a request"
    )
    return well, upstream


def raising(kind: Kind) -> Answer:
    def answer(wire: object) -> object:
        raise GatewayError(kind, "no", origin=Origin.BACKEND)

    return answer


def http(status: int, body: bytes = b"") -> Answer:
    return lambda _: HttpResponse(status, {}, (body,))


def rpc(code: int = 0, message: bytes = b"\x08\x01") -> Answer:
    return lambda _: RpcResponse((message,), code)


@pytest.mark.parametrize(
    ("protocol", "answer", "well"),
    [
        ("v2-rest", http(200), True),
        ("v2-rest", http(400), False),
        ("v2-rest", http(404), False),
        ("v2-rest", http(401), False),
        ("v2-rest", http(500), False),
        ("v2-rest", http(503), False),
        ("v2-grpc", rpc(), True),
        ("v2-grpc", rpc(0, b""), False),
        ("v2-grpc", rpc(12, b""), True),
        ("v2-grpc", rpc(7, b""), True),
        ("v2-grpc", rpc(14, b""), False),
        ("v2-grpc", rpc(0, b"\xff"), False),
        ("trtis-http", http(200), True),
        ("trtis-http", http(503), False),
        ("trtis-grpc", rpc(14, b""), False),
        ("graphpipe", http(200), True),
        ("graphpipe", http(404), True),
        ("graphpipe", http(501), True),
        ("graphpipe", http(500), False),
    ],
)
async def test_healthy_responses(protocol: str, answer: Answer, well: bool) -> None:
    assert (await check(protocol, answer))[0] is well


@pytest.mark.parametrize("kind", [Kind.CONNECT, Kind.TIMEOUT, Kind.BACKEND_GARBAGE])
@pytest.mark.parametrize("protocol", ["v2-rest", "v2-grpc", "trtis-http", "trtis-grpc"])
async def test_unresponsive_servers_are_unhealthy(protocol: str, kind: Kind) -> None:
    well, upstream = await check(protocol, raising(kind))
    assert not well
    assert len(upstream.requests) == 1


async def test_each_protocol_has_its_own_check() -> None:
    _, rest = await check("v2-rest", http(200))
    assert (rest.requests[0].method, rest.requests[0].path) == ("GET", "/v2/health/ready")
    _, grpc = await check("v2-grpc", rpc())
    assert isinstance(grpc.requests[0], RpcRequest)
    assert grpc.requests[0].method == "/inference.GRPCInferenceService/ServerReady"
    _, legacy = await check("trtis-http", http(200))
    assert (legacy.requests[0].method, legacy.requests[0].path) == ("GET", "/api/health/ready")
    _, old = await check("trtis-grpc", rpc(14))
    assert old.requests[0].method == "/nvidia.inferenceserver.GRPCService/Health"


async def test_a_graphpipe_server_that_drops_the_check_gets_a_get_request() -> None:
    def drops(wire: HttpRequest) -> HttpResponse:
        if wire.method == "POST":
            raise GatewayError(Kind.BACKEND_GARBAGE, "closed", origin=Origin.BACKEND)
        return HttpResponse(501)

    well, upstream = await check("graphpipe", drops)
    assert well
    assert [wire.method for wire in upstream.requests] == ["POST", "GET"]


@pytest.mark.parametrize(
    ("response", "well"),
    [
        (rpc(0, b"\x08\x01"), True),  # SERVING
        (rpc(0, b"\x08\x02"), False),  # NOT_SERVING
        (rpc(0, b""), False),  # UNKNOWN
        (rpc(14, b""), False),
        (rpc(12, b""), True),  # no health service
    ],
)
async def test_a_grpc_server_without_server_ready_gets_a_health_check(
    response: Answer, well: bool
) -> None:
    def answer(wire: RpcRequest) -> Any:
        return response(wire) if wire.method.startswith("/grpc.health.v1.") else rpc(12, b"")(wire)

    found, upstream = await check("v2-grpc", answer)
    assert found is well
    assert [wire.method for wire in upstream.requests] == [
        "/inference.GRPCInferenceService/ServerReady",
        "/grpc.health.v1.Health/Check",
    ]
    assert bytes(upstream.requests[1].message[0]) == b"", "the check is about the complete server"


@pytest.mark.parametrize("code", [7, 13, 14])
async def test_health_is_not_checked_where_readiness_is_supported(code: int) -> None:
    _, upstream = await check("v2-grpc", rpc(code, b""))
    assert len(upstream.requests) == 1


async def test_both_checks_share_one_timeout() -> None:
    class Slow(Upstream):
        async def exchange(self, wire: Any, endpoint: Endpoint, timeout: float) -> Any:
            self.requests.append(wire)
            await asyncio.sleep(timeout)
            raise GatewayError(Kind.BACKEND_GARBAGE, "closed", origin=Origin.BACKEND)

    upstream = Slow(http(200))
    (handle,) = Endpoints("b", [ConfiguredEndpoint(ENDPOINT)]).all_handles()
    codec = plugins()["graphpipe"].create({})
    began = time.monotonic()
    assert not await check_health(codec, upstream, DEFAULT_LIMITS, handle, 0.1)
    assert time.monotonic() - began < 5.0
    assert len(upstream.requests) == 1
