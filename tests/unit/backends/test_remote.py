"""RemoteBackend with a scripted transport and codec."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import remote_kit
from remote_kit import FakeCodec, FakeUpstream

from contexts import new_context
from gateway_errors import raises_kind
from infergate.backends import profile_detection
from infergate.backends.remote import RemoteBackend
from infergate.codecs.profiles import GENERIC, KSERVE
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.messages import (
    HealthStatus,
    Response,
    ServerLiveRequest,
    ServerMetadata,
    ServerMetadataRequest,
)
from infergate.core.route_policy import RoutePolicy
from infergate.core.wire import RpcRequest, RpcResponse
from infergate.transport.base import Endpoint

pytestmark = pytest.mark.usefixtures("virtual_time")

A = Endpoint("a", 1)
B = Endpoint("b", 2)


class KServeCodec(FakeCodec):
    """The codec of a server that reports the metadata of KServe."""

    needs_profile = True

    def __init__(self) -> None:
        super().__init__({ServerMetadataRequest: ServerMetadata("kserve", "1")})


def backend(upstream: FakeUpstream, codec: Any = None, **server: Any) -> RemoteBackend[Any, Any]:
    settings: dict[str, Any] = {"endpoints": [A, B], "profile": GENERIC} | server
    return remote_kit.backend(upstream, codec or KServeCodec(), **settings)


def refuse(wire: RpcRequest, endpoint: Endpoint) -> RpcResponse:
    raise GatewayError(Kind.CONNECT, "cannot connect", detail=endpoint.authority)


async def test_the_less_busy_endpoint_is_chosen() -> None:
    upstream = FakeUpstream()
    remote = backend(upstream)
    await asyncio.gather(*(remote.perform(ServerLiveRequest(), new_context()) for _ in range(6)))
    endpoints = [endpoint for _, endpoint, _ in upstream.sent]
    assert endpoints.count(A) == endpoints.count(B) == 3


async def test_connection_errors_name_the_backend_but_no_address() -> None:
    upstream = FakeUpstream(refuse)
    with raises_kind(Kind.CONNECT) as caught:
        await backend(upstream).perform(ServerLiveRequest(), new_context())
    assert "b1" in caught.value.public
    assert "a:1" not in caught.value.public
    _, last, _ = upstream.sent[-1]
    assert caught.value.detail == str(last)
    assert {endpoint for _, endpoint, _ in upstream.sent} == {A, B}


async def test_requests_that_may_have_run_are_not_retried() -> None:
    def broken(wire: RpcRequest, endpoint: Endpoint) -> RpcResponse:
        raise GatewayError(Kind.BACKEND_GARBAGE, "closed the connection before it responded")

    upstream = FakeUpstream(broken)
    with pytest.raises(GatewayError, match="closed the connection"):
        await backend(upstream).perform(ServerLiveRequest(), new_context())
    assert len(upstream.sent) == 1


async def test_the_shorter_deadline_bounds_the_exchange() -> None:
    upstream = FakeUpstream()
    await backend(upstream, timeout=30.0).perform(ServerLiveRequest(), new_context())
    await backend(upstream, timeout=30.0).perform(
        ServerLiveRequest(), new_context(deadline=time.monotonic() + 5)
    )
    timeouts = [timeout for _, _, timeout in upstream.sent]
    assert 5 < timeouts[0] <= 30
    assert timeouts[1] <= 5


@pytest.mark.parametrize(("timeout", "expected"), [(None, 5), (2.0, 2), (20.0, 20)])
async def test_a_routes_timeout_replaces_the_backends(
    timeout: float | None, expected: float
) -> None:
    upstream = FakeUpstream()
    context = new_context(policy=RoutePolicy(timeout))
    await backend(upstream, timeout=5.0).perform(ServerLiveRequest(), context)
    assert expected - 1 < upstream.sent[0][2] <= expected


async def test_no_attempt_starts_after_the_deadline() -> None:
    upstream = FakeUpstream()
    with raises_kind(Kind.TIMEOUT):
        await backend(upstream).perform(
            ServerLiveRequest(), new_context(deadline=time.monotonic() - 1)
        )
    assert not upstream.sent


async def test_headers_are_forwarded_and_returned_by_rule() -> None:
    def respond(wire: RpcRequest, endpoint: Endpoint) -> RpcResponse:
        return RpcResponse(metadata={"endpoint-load-metrics": "cpu=1", "x-internal": "no"})

    upstream = FakeUpstream(respond)
    remote = backend(
        upstream, forward_headers=["traceparent"], return_headers=["endpoint-load-metrics"]
    )
    context = new_context(
        headers={"traceparent": f"00-{1:032x}-{1:016x}-01", "authorization": "secret"}
    )
    await remote.perform(ServerLiveRequest(), context)
    assert upstream.sent[0][0].metadata == {"traceparent": f"00-{1:032x}-{1:016x}-01"}
    assert context.response_headers == {"endpoint-load-metrics": "cpu=1"}


async def test_the_profile_is_detected_once_for_all_waiting_requests() -> None:
    codec = KServeCodec()
    upstream = FakeUpstream()
    remote = backend(upstream, codec, profile=None)
    await asyncio.gather(*(remote.perform(ServerLiveRequest(), new_context()) for _ in range(10)))
    assert [w.method for w, _, _ in upstream.sent].count("ServerMetadataRequest") == 1
    assert codec.profiles[1:] == [KSERVE] * 10


async def test_waiting_for_the_profile_ends_at_the_deadline() -> None:
    """Requests must not queue behind one another's timeouts if a server does not respond."""
    silent = asyncio.Event()

    class Silent(FakeUpstream):
        async def exchange(self, wire: Any, endpoint: Endpoint, timeout: float) -> RpcResponse:
            await silent.wait()
            return RpcResponse()

    remote = backend(Silent(), profile=None, timeout=0.05)
    first = asyncio.create_task(remote.request_profile(new_context()))
    await asyncio.sleep(0)
    for _ in range(2):
        context = new_context()
        with raises_kind(Kind.TIMEOUT, match="backend 'b1': the deadline has passed"):
            await remote.request_profile(context)
    silent.set()
    assert await first == KSERVE
    assert await remote.request_profile(new_context()) == KSERVE


@pytest.mark.parametrize("kind", [Kind.BACKEND_GARBAGE, Kind.BACKEND_ERROR])
async def test_only_errors_of_invalid_responses_name_the_backend(kind: Kind) -> None:

    class FailingCodec(KServeCodec):
        def parse_response(self, *_: object) -> Response:
            raise GatewayError(kind, "bad data", origin=Origin.BACKEND, detail="d", retry_after=2.0)

    with pytest.raises(GatewayError) as caught:
        await backend(FakeUpstream(), FailingCodec()).perform(ServerLiveRequest(), new_context())
    expected = "backend 'b1': bad data" if kind is Kind.BACKEND_GARBAGE else "bad data"
    assert (caught.value.public, caught.value.kind) == (expected, kind)
    assert (caught.value.detail, caught.value.retry_after) == ("d", 2.0)


async def test_a_declared_profile_is_not_detected() -> None:
    codec = KServeCodec()
    upstream = FakeUpstream()
    await backend(upstream, codec, profile=KSERVE).perform(ServerLiveRequest(), new_context())
    assert [w.method for w, _, _ in upstream.sent] == ["ServerLiveRequest"]
    assert codec.profiles == [KSERVE]


async def test_a_server_without_metadata_is_generic() -> None:
    codec = KServeCodec()
    codec.responses[ServerMetadataRequest] = GatewayError(
        Kind.NOT_FOUND, "no such path", origin=Origin.BACKEND
    )
    await backend(FakeUpstream(), codec, profile=None).perform(ServerLiveRequest(), new_context())
    assert codec.profiles == [GENERIC, GENERIC]


async def test_detection_is_repeated_after_a_connection_failure() -> None:
    codec = KServeCodec()
    upstream = FakeUpstream(refuse)
    remote = backend(upstream, codec, profile=None)
    with pytest.raises(GatewayError):
        await remote.perform(ServerLiveRequest(), new_context())
    upstream.respond = lambda wire, endpoint: RpcResponse()
    assert await remote.perform(ServerLiveRequest(), new_context()) == HealthStatus(ok=True)
    assert codec.profiles[-1] == KSERVE


async def test_a_known_profile_survives_a_failed_detection(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = KServeCodec()
    remote = backend(FakeUpstream(), codec, profile=None)
    # each request detects the profile again
    monkeypatch.setattr(profile_detection, "_LIFETIME_SECONDS", 0.0)
    await remote.perform(ServerLiveRequest(), new_context())
    codec.responses[ServerMetadataRequest] = GatewayError(
        Kind.TIMEOUT, "no response", origin=Origin.BACKEND
    )
    assert await remote.perform(ServerLiveRequest(), new_context()) == HealthStatus(ok=True)
    assert codec.profiles[-1] == KSERVE


@pytest.mark.parametrize(
    ("kind", "request_count"),
    [(Kind.BAD_REQUEST, 2), (Kind.TIMEOUT, 2), (Kind.BACKEND_ERROR, 2), (Kind.NOT_FOUND, 1)],
)
async def test_only_a_permanent_error_is_cached(
    monkeypatch: pytest.MonkeyPatch, kind: Kind, request_count: int
) -> None:
    codec = KServeCodec()
    codec.responses[ServerMetadataRequest] = GatewayError(kind, "not now", origin=Origin.BACKEND)
    upstream = FakeUpstream()
    remote = backend(upstream, codec, profile=None)
    monkeypatch.setattr(profile_detection, "STALE_SECONDS", 0.0)
    await remote.perform(ServerLiveRequest(), new_context())
    codec.responses[ServerMetadataRequest] = ServerMetadata("kserve", "1")
    await remote.perform(ServerLiveRequest(), new_context())
    assert [w.method for w, _, _ in upstream.sent].count("ServerMetadataRequest") == request_count
    assert (codec.profiles[-1] == KSERVE) is (request_count == 2)


async def test_a_callers_deadline_ends_its_wait_for_another_callers_fetch() -> None:
    class Silent(FakeUpstream):
        async def exchange(
            self, wire: RpcRequest, endpoint: Endpoint, timeout: float
        ) -> RpcResponse:
            await asyncio.sleep(timeout)
            raise GatewayError(Kind.TIMEOUT, "no response")

    remote = backend(Silent(), KServeCodec(), profile=None, timeout=0.2)
    results = await asyncio.gather(
        *(remote.perform(ServerLiveRequest(), new_context()) for _ in range(5)),
        return_exceptions=True,
    )
    assert [a.kind for a in results if isinstance(a, GatewayError)] == [Kind.TIMEOUT] * 5


async def test_close_closes_the_connections() -> None:
    upstream = FakeUpstream()
    await backend(upstream).close()
    assert upstream.closed
