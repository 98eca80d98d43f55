"""Responses in each client protocol are equal with the cache on and off, but for ids and times."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import Memory
from hypothesis import given, settings
from hypothesis import strategies as st

from contexts import new_context
from infergate.caching.local_store import LocalStore
from infergate.caching.response_cache import ResponseCache
from infergate.codecs.profiles import GENERIC
from infergate.codecs.registry import plugins
from infergate.codecs.trtis import messages as legacy
from infergate.core.counters import RouteCounters
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import (
    InferRequest,
    InferResponse,
    ModelMetadata,
    Operation,
    RequestedOutput,
    Response,
    TensorMetadata,
)
from infergate.core.name_rules import NameRule
from infergate.core.request_context import RequestContext
from infergate.core.sequences import sequence_key
from infergate.core.tensor import Tensor
from infergate.core.wire import HttpResponse, join_parts
from infergate.gateway.cached_route import CachedRoute, CachePolicy
from infergate.gateway.frontend import Frontend
from infergate.gateway.gateway import GatewayOptions, RoutingGateway
from infergate.gateway.shared_memory import uses_shared_memory
from infergate.routing.table import Route, RouteTable
from infergate.testing import strategies
from infergate.testing.vectors import load

VECTORS = Path(__file__).parents[2] / "vectors"
PROTOCOLS = sorted(folder.name for folder in VECTORS.iterdir() if folder.name in plugins())


class Echo(Memory):
    """Returns the inputs under the names of the requested outputs, with three parameters."""

    def __init__(self) -> None:
        super().__init__("own")
        self.inferences = 0

    async def perform(self, operation: Operation, context: RequestContext) -> Response:
        if not isinstance(operation, InferRequest):
            return await super().perform(operation, context)
        self.inferences += 1
        names = [output.name for output in operation.outputs]
        outputs = [
            replace(tensor, name=names[index] if index < len(names) else tensor.name)
            for index, tensor in enumerate(operation.inputs)
        ]
        parameters = {"count": len(outputs), "ratio": 0.1, "text": "é"}
        return InferResponse(operation.model, "7", "invented", parameters, tuple(outputs))


class Harness:
    """A frontend of ``protocol`` for a gateway with or without a cache."""

    def __init__(
        self, protocol: str, options: Any, model: ModelMetadata | None, *, cached: bool
    ) -> None:
        self.backend, self.counters = Echo(), RouteCounters()
        store = LocalStore()
        store.set_max_bytes(1 << 24)
        policy = CachePolicy(b"", "own", 60.0)

        def cached_route(inner: Any) -> CachedRoute:
            return CachedRoute(inner, ResponseCache(store, 1 << 24), policy, self.counters)

        gateway = RoutingGateway(
            RouteTable([Route("*", "own", has_layers=cached)], NameRule(allow_slash=True)),
            {"own": self.backend},
            {} if model is None else {model.name: model},
            GatewayOptions(layers={0: [cached_route]} if cached else {}),
        )
        if model is not None:
            self.backend.description = model
        codec = plugins()[protocol].create(options)
        self.frontend: Frontend[Any, Any] = Frontend(codec, gateway, DEFAULT_LIMITS)

    async def send(self, wire: Any) -> Any:
        """Send ``wire``, and return the response in a comparable form."""
        return comparable(await self.frontend.respond(replace(wire), new_context()))


def comparable(response: Any) -> Any:
    """Return ``response`` without the ids and times that differ between requests."""
    if not isinstance(response, HttpResponse):
        return replace(response, message=bytes(join_parts(response.message)))
    assert response.body_stream is None
    headers = dict(response.headers)
    if "NV-Status" in headers:
        headers["NV-Status"] = headers["NV-Status"].partition("request_id")[0]
    for name in ("ce-id", "ce-time"):  # of CloudEvents
        if name in headers:
            headers[name] = ""
    return replace(response, headers=headers, body=bytes(join_parts(response.body)))


def without_request_id(protocol: str, response: Any) -> Any:
    """Return ``response`` without the id that the legacy gRPC API gives each request."""
    if protocol != "trtis-grpc":
        return response
    message = legacy.InferResponse.FromString(response.message)
    message.request_status.ClearField("request_id")
    return replace(response, message=message.SerializeToString(deterministic=True))


async def responses(harness: Harness, protocol: str, wire: Any, count: int) -> list[Any]:
    return [without_request_id(protocol, await harness.send(wire)) for _ in range(count)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_responses_to_the_vectors_are_identical(protocol: str) -> None:
    hits = 0
    for vector in load(VECTORS / protocol):
        request = vector.canonical
        if not isinstance(request, InferRequest):
            continue
        plain, cached = (
            Harness(protocol, vector.options, vector.model, cached=on) for on in (False, True)
        )
        (expected,) = await responses(plain, protocol, vector.wire, 1)
        assert await responses(cached, protocol, vector.wire, 2) == [expected] * 2, vector
        if plain.backend.inferences and not (uses_shared_memory(request) or sequence_key(request)):
            assert cached.counters.cache == {"miss": 1, "hit": 1}, vector
            assert cached.backend.inferences == 1
            hits += 1
    assert hits


@st.composite
def inferences(draw: st.DrawFn, datatypes: frozenset[Datatype]) -> InferRequest:
    """Generate an inference with names and an id that all protocols support."""
    count = draw(st.integers(1, 3))
    inputs: list[Tensor] = []
    for index in range(count):
        tensor = draw(strategies.tensors(datatypes, st.just(f"x{index}")))
        inputs.append(replace(tensor, parameters={}))
    outputs = tuple(RequestedOutput(f"y{index}") for index in range(count))
    return InferRequest(
        "m", id=str(draw(st.integers(1, 2**32))), inputs=tuple(inputs), outputs=outputs
    )


def metadata_of(request: InferRequest) -> ModelMetadata:
    input_metadata = [
        TensorMetadata(tensor.name, tensor.datatype.value, tensor.shape)
        for tensor in request.inputs
    ]
    outputs = [replace(entry, name=f"y{index}") for index, entry in enumerate(input_metadata)]
    return ModelMetadata("m", ("7",), "", tuple(input_metadata), tuple(outputs), max_batch_size=0)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@settings(max_examples=20)
@given(data=st.data())
def test_responses_to_generated_inferences_are_identical(
    protocol: str, data: st.DataObject
) -> None:
    options = {"model": "m"} if protocol == "graphpipe" else {}
    codec = plugins()[protocol].create(options)
    request = data.draw(inferences(codec.capabilities.datatypes))
    model = metadata_of(request)
    try:
        wire = codec.build_request(request, GENERIC, model)
    except GatewayError:
        return  # the protocol cannot carry these values
    plain, cached = (Harness(protocol, options, model, cached=on) for on in (False, True))

    async def run() -> None:
        (expected,) = await responses(plain, protocol, wire, 1)
        assert await responses(cached, protocol, wire, 2) == [expected] * 2
        assert cached.backend.inferences == plain.backend.inferences
        if plain.backend.inferences:
            assert cached.counters.cache == {"miss": 1, "hit": 1}

    asyncio.run(run())
