"""RemoteBackend's streams over V2 REST: streaming or unary calls, by server and model."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from infergate.backends.backend_settings import BackendSettings
from infergate.backends.remote import HTTP_MESSAGES, RemoteBackend
from infergate.codecs.base import Profile
from infergate.codecs.profiles import KSERVE, MLSERVER, TRITON
from infergate.codecs.v2_rest.codec import V2RestCodec
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.request_context import RequestContext
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.transport.base import Endpoint

EVENT = {"content-type": "text/event-stream; charset=utf-8"}
REQUEST = InferRequest("m", id="i")
METADATA = {"name": "m", "inputs": [], "outputs": [{"name": "O", "datatype": "INT8", "shape": [1]}]}
INFERRED = {
    "model_name": "m",
    "outputs": [{"name": "O", "datatype": "INT8", "shape": [1], "data": [9]}],
}


class Upstream:
    """A server with a scripted stream. ``decoupled`` is the transaction policy of its model."""

    def __init__(self, *steps: Any, decoupled: bool = True) -> None:
        self.steps = steps
        self.decoupled = decoupled
        self.paths: list[str] = []
        self.closed = 0

    async def exchange(self, wire: HttpRequest, endpoint: Endpoint, timeout: float) -> HttpResponse:
        self.paths.append(wire.path)
        policy = {"model_transaction_policy": {"decoupled": self.decoupled}}
        fields = {
            "/v2/models/m": METADATA,
            "/v2/models/m/config": {"name": "m", "max_batch_size": 0, **policy},
            "/v2/models/m/infer": INFERRED,
        }[wire.path]
        return HttpResponse(200, {}, (json.dumps(fields).encode(),))

    async def stream(
        self, wire: HttpRequest, endpoint: Endpoint, timeout: float | None
    ) -> AsyncGenerator[HttpResponse, None]:
        self.paths.append(wire.path)
        try:
            for step in self.steps:
                if isinstance(step, Exception):
                    raise step
                yield step if isinstance(step, HttpResponse) else HttpResponse(200, EVENT, (step,))
        finally:
            self.closed += 1

    async def close(self) -> None:
        pass


async def stream_responses(upstream: Upstream, profile: Profile = TRITON) -> list[InferResponse]:
    server = BackendSettings("b", (Endpoint("a", 1), Endpoint("b", 2)), 5, profile)
    backend = RemoteBackend(server, V2RestCodec(), upstream, HTTP_MESSAGES, DEFAULT_LIMITS)
    return [each async for each in backend.stream(REQUEST, RequestContext("test"))]


def values(responses: list[InferResponse]) -> list[tuple[list[int], bool]]:
    return [(each.outputs[0].numpy().tolist(), each.is_last) for each in responses]


async def test_a_decoupled_model_sends_all_responses() -> None:
    upstream = Upstream(b'{"model_name":"m","O":1}', b'{"model_name":"m","O":2}')
    assert values(await stream_responses(upstream)) == [([1], False), ([2], False)]
    assert upstream.paths[-1] == "/v2/models/m/generate_stream"
    assert upstream.closed == 1


async def test_a_model_that_is_not_decoupled_gets_a_unary_call() -> None:
    upstream = Upstream(decoupled=False)
    assert values(await stream_responses(upstream)) == [([9], True)]
    assert upstream.paths[-1] == "/v2/models/m/infer"


@pytest.mark.parametrize("status", [404, 405])
@pytest.mark.parametrize("profile", [TRITON, MLSERVER])
async def test_a_server_too_old_for_streams_gets_a_unary_call(
    status: int, profile: Profile
) -> None:
    upstream = Upstream(HttpResponse(status, {}, (b'{"detail":"Not Found"}',)))
    assert values(await stream_responses(upstream, profile)) == [([9], True)]
    assert upstream.paths[-1] == "/v2/models/m/infer"


async def test_mlserver_gets_no_metadata_request() -> None:
    upstream = Upstream(json.dumps(INFERRED).encode(), json.dumps(INFERRED).encode())
    assert values(await stream_responses(upstream, MLSERVER)) == [([9], False)] * 2
    assert upstream.paths == ["/v2/models/m/infer_stream"]


async def test_a_server_without_streams_gets_a_unary_call() -> None:
    upstream = Upstream()
    assert values(await stream_responses(upstream, KSERVE)) == [([9], True)]
    assert upstream.paths == ["/v2/models/m/infer"]


@pytest.mark.parametrize("before", [(), (b'{"model_name":"m","O":1}',)])
@pytest.mark.parametrize(
    ("step", "kind", "text"),
    [
        (b'{"error":"no more"}', Kind.BACKEND_ERROR, "no more"),
        (b"nonsense", Kind.BACKEND_GARBAGE, "backend 'b': "),
        (GatewayError(Kind.BACKEND_GARBAGE, "it broke off"), Kind.BACKEND_GARBAGE, "backend 'b': "),
        (HttpResponse(400, {}, (b'{"error":"wrong"}',)), Kind.BAD_REQUEST, "wrong"),
    ],
)
async def test_stream_errors_are_reported_without_a_retry(
    before: tuple[bytes, ...], step: Any, kind: Kind, text: str
) -> None:
    upstream = Upstream(*before, step)
    with pytest.raises(GatewayError, match=text) as caught:
        await stream_responses(upstream)
    assert caught.value.kind is kind
    assert upstream.paths.count("/v2/models/m/generate_stream") == 1
    assert "/v2/models/m/infer" not in upstream.paths
    assert upstream.closed == 1
