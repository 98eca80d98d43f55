"""Health checks: their requests, how responses decide health, and the timeout."""

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
Respond = Callable[[Any], Any]


class Upstream:
    def __init__(self, respond: Respond) -> None:
        self.respond = respond
        self.requests: list[Any] = []
        self.active_counts: list[int] = []
        self.endpoint: EndpointHandle

    async def exchange(self, wire: Any, endpoint: Endpoint, timeout: float) -> Any:
        assert endpoint == ENDPOINT
        assert 0 < timeout <= 2.0
        self.requests.append(wire)
        self.active_counts.append(self.endpoint.active)
        return self.respond(wire)

    async def close(self) -> None:
        pass


async def check(protocol: str, respond: Respond) -> tuple[bool, Upstream]:
    upstream = Upstream(respond)
    (endpoint,) = Endpoints("b", [ConfiguredEndpoint(ENDPOINT)]).all_handles()
    upstream.endpoint = endpoint
    codec = plugins()[protocol].create({})
    is_healthy = await check_health(codec, upstream, DEFAULT_LIMITS, endpoint, 2.0)
    assert set(upstream.active_counts) == {1}, "the endpoint counts as in use during the check"
    assert (endpoint.active, endpoint.successes, endpoint.failures) == (0, 0, 0), (
        "the check is not counted as a request"
    )
    return is_healthy, upstream


def raising(kind: Kind) -> Respond:
    def respond(wire: object) -> object:
        raise GatewayError(kind, "no", origin=Origin.BACKEND)

    return respond


def http(status: int, body: bytes = b"") -> Respond:
    return lambda _: HttpResponse(status, {}, (body,))


def rpc(code: int = 0, message: bytes = b"\x08\x01") -> Respond:
    return lambda _: RpcResponse((message,), code)


@pytest.mark.parametrize(
    ("protocol", "respond", "is_healthy"),
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
async def test_responses_decide_health(protocol: str, respond: Respond, is_healthy: bool) -> None:
    assert (await check(protocol, respond))[0] is is_healthy


@pytest.mark.parametrize("kind", [Kind.CONNECT, Kind.TIMEOUT, Kind.BACKEND_GARBAGE])
@pytest.mark.parametrize("protocol", ["v2-rest", "v2-grpc", "trtis-http", "trtis-grpc"])
async def test_servers_without_a_response_are_unhealthy(protocol: str, kind: Kind) -> None:
    is_healthy, upstream = await check(protocol, raising(kind))
    assert not is_healthy
    assert len(upstream.requests) == 1


async def test_each_protocol_has_its_own_check() -> None:
    _, rest = await check("v2-rest", http(200))
    assert (rest.requests[0].method, rest.requests[0].path) == ("GET", "/v2/health/ready")
    _, grpc = await check("v2-grpc", rpc())
    assert isinstance(grpc.requests[0], RpcRequest)
    assert grpc.requests[0].method == "/inference.GRPCInferenceService/ServerReady"
    _, legacy = await check("trtis-http", http(200))
    assert (legacy.requests[0].method, legacy.requests[0].path) == ("GET", "/api/health/ready")
    _, legacy_grpc = await check("trtis-grpc", rpc(14))
    assert legacy_grpc.requests[0].method == "/nvidia.inferenceserver.GRPCService/Health"


async def test_a_graphpipe_server_that_drops_the_check_gets_a_get_request() -> None:
    def drop_the_check(wire: HttpRequest) -> HttpResponse:
        if wire.method == "POST":
            raise GatewayError(Kind.BACKEND_GARBAGE, "closed", origin=Origin.BACKEND)
        return HttpResponse(501)

    is_healthy, upstream = await check("graphpipe", drop_the_check)
    assert is_healthy
    assert [wire.method for wire in upstream.requests] == ["POST", "GET"]


@pytest.mark.parametrize(
    ("response", "is_healthy"),
    [
        (rpc(0, b"\x08\x01"), True),  # SERVING
        (rpc(0, b"\x08\x02"), False),  # NOT_SERVING
        (rpc(0, b""), False),  # UNKNOWN
        (rpc(14, b""), False),
        (rpc(12, b""), True),  # no health service
    ],
)
async def test_a_grpc_server_without_server_ready_gets_a_health_check(
    response: Respond, is_healthy: bool
) -> None:
    def respond(wire: RpcRequest) -> Any:
        return response(wire) if wire.method.startswith("/grpc.health.v1.") else rpc(12, b"")(wire)

    result, upstream = await check("v2-grpc", respond)
    assert result is is_healthy
    assert [wire.method for wire in upstream.requests] == [
        "/inference.GRPCInferenceService/ServerReady",
        "/grpc.health.v1.Health/Check",
    ]
    assert bytes(upstream.requests[1].message[0]) == b"", "the check names no service"


@pytest.mark.parametrize("code", [7, 13, 14])
async def test_a_server_with_server_ready_gets_no_second_check(code: int) -> None:
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
