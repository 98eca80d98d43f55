"""``perform_on_all``: one operation on all endpoints, with the responses or one error."""

from __future__ import annotations

import asyncio
import time
import weakref
from typing import Any

import pytest
import remote_kit
from remote_kit import FakeCodec, FakeUpstream

from contexts import new_context
from gateway_errors import raises_kind
from infergate.backends.remote import RemoteBackend
from infergate.codecs.profiles import TRITON
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.memory import IN_FLIGHT_BYTES
from infergate.core.messages import (
    Acknowledgement,
    ModelLoadRequest,
    ModelMetadata,
    ModelMetadataRequest,
    ModelUnloadRequest,
    Operation,
    TraceSettingsRequest,
)
from infergate.core.wire import RpcRequest, RpcResponse
from infergate.transport.base import Endpoint
from reference_cycles import garbage_collector_disabled

ENDPOINTS = [Endpoint(name, 1) for name in "abc"]
LOAD = ModelLoadRequest("m")


class ScriptedUpstream(FakeUpstream):
    """Responds to concurrent requests as scripted for their endpoint, or with success."""

    def __init__(self, **responses: Any) -> None:
        super().__init__()
        self.responses = responses
        self.active = self.max_concurrent = 0

    async def exchange(self, wire: RpcRequest, endpoint: Endpoint, timeout: float) -> RpcResponse:
        self.active += 1
        self.max_concurrent = max(self.max_concurrent, self.active)
        await super().exchange(wire, endpoint, timeout)
        self.active -= 1
        response = self.responses.get(endpoint.host, RpcResponse())
        if isinstance(response, Exception):
            raise response
        return response

    @property
    def hosts(self) -> list[str]:
        return sorted(endpoint.host for _, endpoint, _ in self.sent)


def backend(upstream: ScriptedUpstream, count: int = 3) -> RemoteBackend[Any, Any]:
    responses: dict[type, Any] = {
        ModelLoadRequest: Acknowledgement(),
        ModelMetadataRequest: ModelMetadata("m", max_batch_size=0),
    }
    return remote_kit.backend(
        upstream,
        FakeCodec(responses),
        endpoints=ENDPOINTS[:count],
        profile=TRITON,
        forward_headers=("x-*",),
    )


async def test_every_endpoint_gets_the_operation_concurrently() -> None:
    upstream = ScriptedUpstream()
    remote = backend(upstream)
    context = new_context(headers={"x-request-id": "r", "other": "o"})
    assert await remote.perform_on_all(LOAD, context) == [Acknowledgement()] * 3
    assert upstream.hosts == ["a", "b", "c"]
    assert upstream.max_concurrent == 3
    assert all(wire.metadata == {"x-request-id": "r"} for wire, _, _ in upstream.sent)
    assert remote.codec.profiles == [TRITON]  # type: ignore[attr-defined]
    assert context.record.backend_seconds > 0


async def test_all_tasks_end_before_the_first_error_is_raised() -> None:
    upstream = ScriptedUpstream(b=RpcResponse(code=3, details="no such file"))
    with raises_kind(Kind.BAD_REQUEST) as caught:
        await backend(upstream).perform_on_all(LOAD, new_context())
    assert caught.value.origin is Origin.BACKEND
    assert caught.value.public == "1 of 3 endpoints of backend 'b1' failed: no such file"
    assert upstream.hosts == ["a", "b", "c"]
    upstream.responses["c"] = RpcResponse(code=3, details="another")
    with pytest.raises(GatewayError, match=r"^2 of 3 .*: no such file$") as caught:
        await backend(upstream).perform_on_all(LOAD, new_context())
    assert "another" in caught.value.detail


async def test_an_exhausted_memory_budget_is_named() -> None:
    exhausted = GatewayError(Kind.OVERLOADED, "no memory", retry_after=1.0, limit=IN_FLIGHT_BYTES)
    with raises_kind(Kind.OVERLOADED) as caught:
        await backend(ScriptedUpstream(b=exhausted)).perform_on_all(LOAD, new_context())
    error = caught.value
    assert (error.origin, error.limit, error.retry_after) == (Origin.GATEWAY, IN_FLIGHT_BYTES, 1.0)


async def test_the_error_of_a_single_endpoint_is_unchanged() -> None:
    upstream = ScriptedUpstream(a=RpcResponse(code=3, details="no such file"))
    with pytest.raises(GatewayError) as caught:
        await backend(upstream, 1).perform_on_all(LOAD, new_context())
    assert caught.value.public == "no such file"


@pytest.mark.parametrize("count", [1, 2])
async def test_a_failed_load_releases_its_files(count: int) -> None:
    upstream = ScriptedUpstream(a=RpcResponse(code=3, details="no such file"))
    remote = backend(upstream, count)
    files = memoryview(bytes(3))
    reference = weakref.ref(files)
    load = ModelLoadRequest("m", parameters={"file:1/a": files})
    with garbage_collector_disabled():
        with pytest.raises(GatewayError) as caught:
            await remote.perform_on_all(load, new_context())
        remote.codec.requests.clear()  # type: ignore[attr-defined]
        del caught, files, load
        await asyncio.sleep(0)
        assert reference() is None


async def test_a_failed_connection_is_retried_on_the_same_endpoint() -> None:
    unreachable = GatewayError(Kind.CONNECT, "cannot connect")
    upstream = ScriptedUpstream(b=unreachable)
    with raises_kind(Kind.CONNECT, match="1 of 3"):
        await backend(upstream).perform_on_all(LOAD, new_context())
    assert upstream.hosts == ["a", "b", "b", "c"]


async def test_the_deadline_applies_to_all_endpoints() -> None:
    with raises_kind(Kind.TIMEOUT, match="deadline has passed"):
        await backend(ScriptedUpstream()).perform_on_all(
            LOAD, new_context(deadline=time.monotonic() - 1)
        )


@pytest.mark.parametrize("operation", [LOAD, ModelUnloadRequest("m")])
@pytest.mark.parametrize("failing", [False, True])
async def test_a_changed_model_is_removed_from_the_cache(
    operation: Operation, failing: bool
) -> None:
    upstream = ScriptedUpstream()
    remote = backend(upstream, 1)

    async def count_requests(model: str, version: str) -> int:
        """Return the number of requests that ``describe`` sends."""
        before = len(upstream.sent)
        await remote.describe(model, version, new_context())
        return len(upstream.sent) - before

    for version in ("", "1"):
        assert [await count_requests("m", version) for _ in range(2)] == [1, 0]
    await count_requests("n", "")
    await remote.perform_on_all(TraceSettingsRequest("m"), new_context())
    assert await count_requests("m", "") == 0
    if failing:
        upstream.responses["a"] = RpcResponse(code=3, details="x")
        with pytest.raises(GatewayError):
            await remote.perform_on_all(operation, new_context())
        del upstream.responses["a"]
    else:
        await remote.perform_on_all(operation, new_context())
    models = (("m", ""), ("m", "1"), ("n", ""))
    assert [await count_requests(*each) for each in models] == [1, 1, 0]
