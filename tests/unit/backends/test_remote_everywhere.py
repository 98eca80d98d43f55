"""One operation on every endpoint, with one combined response."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from typing import Any

import pytest

from contexts import new_context
from gateway_errors import raises_kind
from infergate.backends.backend_settings import BackendSettings
from infergate.backends.remote import RPC_MESSAGES, RemoteBackend
from infergate.codecs.base import Capabilities, Profile
from infergate.codecs.profiles import TRITON
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.limits import DEFAULT_LIMITS, Limits
from infergate.core.memory import IN_FLIGHT_BYTES
from infergate.core.messages import (
    Acknowledgement,
    ModelLoadRequest,
    ModelMetadata,
    ModelMetadataRequest,
    ModelUnloadRequest,
    Operation,
    Response,
    Settings,
    TraceSettingsRequest,
)
from infergate.core.wire import RpcRequest, RpcResponse
from infergate.transport.base import Endpoint

ENDPOINTS = [Endpoint(name, 1) for name in "abc"]
LOAD = ModelLoadRequest("m")


class FakeCodec:
    name = "fake"
    needs_profile = False
    needs_metadata = False
    capabilities = Capabilities(frozenset())
    streaming_methods: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.profiles: list[Profile] = []

    def build_request(
        self, operation: Operation, profile: Profile, model: ModelMetadata | None = None
    ) -> RpcRequest:
        self.profiles.append(profile)
        return RpcRequest(type(operation).__name__)

    def parse_response(
        self,
        wire: RpcResponse,
        operation: Operation,
        limits: Limits,
        model: ModelMetadata | None = None,
    ) -> Response:
        if wire.code:
            raise GatewayError(Kind.BAD_REQUEST, wire.details, origin=Origin.BACKEND)
        if isinstance(operation, ModelMetadataRequest):
            return ModelMetadata("m", max_batch_size=0)
        return Acknowledgement() if not isinstance(operation, TraceSettingsRequest) else Settings()


class FakeUpstream:
    """Responds to concurrent requests as scripted for their endpoint, or with success."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.sent: list[str] = []
        self.metadata: list[RpcRequest] = []
        self.at_once = self.max_concurrent = 0

    async def exchange(self, wire: RpcRequest, endpoint: Endpoint, timeout: float) -> RpcResponse:
        self.sent.append(endpoint.host)
        self.metadata.append(wire)
        self.at_once += 1
        self.max_concurrent = max(self.max_concurrent, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        answer = self.answers.get(endpoint.host, RpcResponse())
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        pass


def backend(upstream: FakeUpstream, count: int = 3) -> RemoteBackend[Any, Any]:
    server = BackendSettings("b1", ENDPOINTS[:count], profile=TRITON, forward_headers=("x-*",))
    codec: Any = FakeCodec()
    return RemoteBackend(server, codec, upstream, RPC_MESSAGES, DEFAULT_LIMITS)


async def test_every_endpoint_is_checked_concurrently() -> None:
    upstream = FakeUpstream()
    created = backend(upstream)
    context = new_context(headers={"x-request-id": "r", "other": "o"})
    assert await created.perform_on_all(LOAD, context) == [Acknowledgement()] * 3
    assert sorted(upstream.sent) == ["a", "b", "c"]
    assert upstream.max_concurrent == 3
    assert all(wire.metadata == {"x-request-id": "r"} for wire in upstream.metadata)
    assert created.codec.profiles == [TRITON]  # type: ignore[attr-defined]
    assert context.record.backend_seconds > 0


async def test_all_tasks_end_before_the_first_error_is_raised() -> None:
    upstream = FakeUpstream(b=RpcResponse(code=3, details="no such file"))
    with raises_kind(Kind.BAD_REQUEST) as caught:
        await backend(upstream).perform_on_all(LOAD, new_context())
    assert caught.value.origin is Origin.BACKEND
    assert caught.value.public == "1 of 3 endpoints of backend 'b1' failed: no such file"
    assert sorted(upstream.sent) == ["a", "b", "c"]
    upstream.answers["c"] = RpcResponse(code=3, details="another")
    with pytest.raises(GatewayError, match=r"^2 of 3 .*: no such file$") as caught:
        await backend(upstream).perform_on_all(LOAD, new_context())
    assert "another" in caught.value.detail


async def test_the_memory_budget_is_named_whichever_endpoint_exceeded_it() -> None:
    spent = GatewayError(Kind.OVERLOADED, "no memory", retry_after=1.0, limit=IN_FLIGHT_BYTES)
    with pytest.raises(GatewayError) as caught:
        await backend(FakeUpstream(b=spent)).perform_on_all(LOAD, new_context())
    error = caught.value
    assert (error.kind, error.origin) == (Kind.OVERLOADED, Origin.GATEWAY)
    assert (error.limit, error.retry_after) == (IN_FLIGHT_BYTES, 1.0)


async def test_the_error_of_a_single_endpoint_is_unchanged() -> None:
    upstream = FakeUpstream(a=RpcResponse(code=3, details="no such file"))
    with pytest.raises(GatewayError) as caught:
        await backend(upstream, 1).perform_on_all(LOAD, new_context())
    assert caught.value.public == "no such file"


@pytest.mark.parametrize("count", [1, 2])
async def test_a_failed_load_releases_its_files(count: int) -> None:
    upstream = FakeUpstream(a=RpcResponse(code=3, details="no such file"))
    created = backend(upstream, count)
    files = memoryview(bytes(3))
    kept = weakref.ref(files)
    load = ModelLoadRequest("m", parameters={"file:1/a": files})
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(GatewayError) as caught:
            await created.perform_on_all(load, new_context())
        del caught, files, load
        await asyncio.sleep(0)
        assert kept() is None
    finally:
        gc.enable()


async def test_a_failed_endpoint_is_retried_itself() -> None:
    unreachable = GatewayError(Kind.CONNECT, "cannot connect")
    upstream = FakeUpstream(b=unreachable)
    with raises_kind(Kind.CONNECT, match="1 of 3"):
        await backend(upstream).perform_on_all(LOAD, new_context())
    assert sorted(upstream.sent) == ["a", "b", "b", "c"]


async def test_the_deadline_applies_to_all_endpoints() -> None:
    with raises_kind(Kind.TIMEOUT, match="deadline has passed"):
        await backend(FakeUpstream()).perform_on_all(
            LOAD, new_context(deadline=time.monotonic() - 1)
        )


@pytest.mark.parametrize("operation", [LOAD, ModelUnloadRequest("m")])
@pytest.mark.parametrize("failing", [False, True])
async def test_a_changed_model_is_removed_from_the_cache(
    operation: Operation, failing: bool
) -> None:
    upstream = FakeUpstream()
    created = backend(upstream, 1)

    async def described(model: str, version: str) -> int:
        """Return the number of requests."""
        before = len(upstream.sent)
        await created.describe(model, version, new_context())
        return len(upstream.sent) - before

    for version in ("", "1"):
        assert [await described("m", version) for _ in range(2)] == [1, 0]
    await described("n", "")
    await created.perform_on_all(TraceSettingsRequest("m"), new_context())
    assert await described("m", "") == 0
    if failing:
        upstream.answers["a"] = RpcResponse(code=3, details="x")
        with pytest.raises(GatewayError):
            await created.perform_on_all(operation, new_context())
        del upstream.answers["a"]
    else:
        await created.perform_on_all(operation, new_context())
    assert [await described("m", ""), await described("m", "1"), await described("n", "")] == [
        1,
        1,
        0,
    ]
