"""Tests requests with one tensor, or one dimension, more than the limit, over V2, the legacy
protocols and GraphPipe. They are counted, and rejected in the protocol's error format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pytest
from graphpipe_schema.InferResponse import InferResponse

from e2e.running import LISTENERS, Infergate, started_infergate
from faults.frames import raw_listener
from faults.legacy import OLD_INFER, grpc_outcome, http_outcome
from faults.load import PROFILES
from faults.peer import Client, post
from faults.rpc import call, channel
from faults.watch import assert_healthy, refused_by, unharmed
from infergate.codecs.profiles import GENERIC
from infergate.codecs.registry import plugins
from infergate.core.datatypes import Datatype
from infergate.core.messages import InferRequest, ModelMetadata, TensorMetadata
from infergate.core.tensor import tensor_from_array
from infergate.core.wire import join_parts

MAX_TENSORS = 3
CONFIG = f"""
backends: {{ours: {{protocol: builtin}}}}
routes: [{{model: "*", backend: ours}}]
limits: {{tensors: {MAX_TENSORS}, rank: {MAX_TENSORS}}}
helpers: 0
"""


def request_message(protocol: str, inputs: int, rank: int) -> Any:
    """Return a request for ``identity`` with ``inputs`` inputs of ``rank`` dimensions of 1."""
    tensors = tuple(
        tensor_from_array(f"INPUT{i}", Datatype.INT32, np.ones((1,) * rank, np.int32))
        for i in range(inputs)
    )
    metadata = tuple(TensorMetadata(f"INPUT{i}", "INT32", (1,) * rank) for i in range(inputs))
    model = ModelMetadata("identity", inputs=metadata, outputs=metadata)
    profile = PROFILES.get(protocol, GENERIC)
    request = InferRequest("identity", inputs=tensors)
    return plugins()[protocol].create({}).build_request(request, profile, model)


@dataclass(frozen=True)
class Harness:
    gateway: Infergate
    raw: str
    channel: grpc.Channel

    def posted(self, protocol: str, inputs: int, rank: int) -> str:
        wire = request_message(protocol, inputs, rank)
        path = "/graphpipe/identity" if protocol == "graphpipe" else wire.path
        answer = post(self.gateway.http, path, bytes(join_parts(wire.body)), wire.headers)
        return str(http_outcome(answer).code if protocol == "trtis-http" else answer.status)

    def framed(self, inputs: int, rank: int) -> str:
        body = bytes(join_parts(request_message("graphpipe", inputs, rank).body))
        with Client(self.raw) as client:
            client.send(len(body).to_bytes(4, "little") + body)
            result = client.exactly(int.from_bytes(client.exactly(4), "little"))
        answer = InferResponse.GetRootAs(result)
        return str(answer.Errors(0).Code()) if answer.ErrorsLength() else "200"

    def called(self, protocol: str, inputs: int, rank: int) -> str:
        wire = request_message(protocol, inputs, rank)
        status = call(self.channel, bytes(join_parts(wire.message)), wire.method)
        return str(grpc_outcome(status).code if wire.method == OLD_INFER else status.code.name)


PROTOCOLS: dict[str, tuple[Callable[[Harness, int, int], str], str]] = {
    "v2-rest": (lambda harness, *sizes: harness.posted("v2-rest", *sizes), "400"),
    "v2-grpc": (lambda harness, *sizes: harness.called("v2-grpc", *sizes), "INVALID_ARGUMENT"),
    "trtis-http": (lambda harness, *sizes: harness.posted("trtis-http", *sizes), "INVALID_ARG"),
    "trtis-grpc": (lambda harness, *sizes: harness.called("trtis-grpc", *sizes), "INVALID_ARG"),
    "graphpipe": (lambda harness, *sizes: harness.posted("graphpipe", *sizes), "400"),
    "graphpipe, raw": (lambda harness, *sizes: harness.framed(*sizes), "400"),
}


@pytest.fixture(scope="module")
def running() -> Iterator[Harness]:
    listener, raw = raw_listener()
    with (
        started_infergate(CONFIG, LISTENERS + listener) as gateway,
        channel(gateway.grpc) as rpc_channel,
    ):
        harness = Harness(gateway, raw, rpc_channel)
        harness.posted("v2-rest", 2, 2)
        harness.called("v2-grpc", 2, 2)
        yield harness
        assert_healthy(gateway)


@pytest.fixture
def harness(running: Harness) -> Iterator[Harness]:
    with unharmed(running.gateway, lambda: running.posted("v2-rest", 2, 2) == "200"):
        yield running


CASES = [
    (limit, protocol)
    for limit in ("tensors", "rank")
    for protocol in PROTOCOLS
    # In the legacy API, a request's shape must match the model's shape.
    if limit == "tensors" or not protocol.startswith("trtis")
]


@pytest.mark.parametrize(("limit", "protocol"), CASES)
def test_one_tensor_or_dimension_more_than_the_limit_is_rejected(
    harness: Harness, limit: str, protocol: str
) -> None:
    send_request, rejection = PROTOCOLS[protocol]
    with refused_by(harness.gateway, limit):
        sizes = (MAX_TENSORS + 1, 2) if limit == "tensors" else (2, MAX_TENSORS + 1)
        assert send_request(harness, *sizes) == rejection


def test_a_shape_with_very_many_dimensions_is_rejected(harness: Harness) -> None:
    with refused_by(harness.gateway, "rank"):
        assert harness.called("v2-grpc", 2, 32) == "INVALID_ARGUMENT"
