"""The copies of tensor data that the codec makes, measured by peak memory."""

import tracemalloc
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest

from infergate.codecs.base import ParsedRequest
from infergate.codecs.graphpipe import PLUGIN
from infergate.codecs.profiles import GENERIC
from infergate.core.datatypes import Datatype
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, TensorMetadata
from infergate.core.tensor import Tensor, tensor_from_array
from infergate.core.wire import HttpRequest, HttpResponse, join_parts
from infergate.testing.vectors import completed

T = TypeVar("T")
CODEC = PLUGIN.create({"model": "m"})
MODEL = ModelMetadata(
    "m",
    inputs=(TensorMetadata("x", "FP32", (-1,)),),
    outputs=(TensorMetadata("y", "FP32", (-1,)),),
)
SIZE = 32 * 2**20
NUMBERS = Tensor("x", Datatype.FP32, (SIZE // 4,), bytes(SIZE))
STRINGS = tensor_from_array("x", Datatype.BYTES, np.array([bytes(996)] * 20_000, np.object_))


def result_and_copies(work: Callable[[], T], tensor: Tensor) -> tuple[T, float]:
    """Return the result of ``work`` and its peak memory as a multiple of ``tensor``'s data."""
    tracemalloc.start()
    try:
        created = work()
        return created, tracemalloc.get_traced_memory()[1] / len(tensor.data)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("tensor", "max_copies"), [(NUMBERS, 0.01), (STRINGS, 1.2)])
def test_copies_of_tensor_data_by_the_codec(tensor: Tensor, max_copies: float) -> None:
    """Numbers are not copied. Strings are copied once when read and once when written, because
    their padding differs."""

    def parse() -> ParsedRequest:
        wire = HttpRequest("POST", "/", body=[body])
        return completed(CODEC.parse_request(wire, DEFAULT_LIMITS), MODEL)

    def respond() -> HttpResponse:
        output = Tensor("y", tensor.datatype, tensor.shape, tensor.data)
        return CODEC.build_response(InferResponse("m", outputs=(output,)), parsed)

    def forward() -> HttpRequest:
        return CODEC.build_request(parsed.operation, GENERIC, MODEL)

    def parse_response() -> Any:
        wire = HttpResponse(200, {}, [response_body])
        return CODEC.parse_response(wire, parsed.operation, DEFAULT_LIMITS, MODEL)

    request = InferRequest("m", inputs=(tensor,))
    body = bytes(join_parts(CODEC.build_request(request, GENERIC, MODEL).body))
    parsed, ratio = result_and_copies(parse, tensor)
    assert ratio < max_copies
    wire_response, ratio = result_and_copies(respond, tensor)
    assert ratio < max_copies
    assert result_and_copies(forward, tensor)[1] < max_copies
    response_body = bytes(join_parts(wire_response.body))
    response, ratio = result_and_copies(parse_response, tensor)
    assert ratio < max_copies
    assert bytes(response.outputs[0].data) == bytes(tensor.data)


def test_a_body_in_pieces_is_joined_once() -> None:
    tensor = Tensor("x", Datatype.FP32, (1,), b"1234")
    data = join_parts(CODEC.build_request(InferRequest("m", inputs=(tensor,)), GENERIC, MODEL).body)
    wire = HttpRequest("POST", "/", body=[data[:50], data[50:]])
    assert CODEC.summarize(wire).model == "m"
    joined = wire.codec_state
    request: Any = completed(CODEC.parse_request(wire, DEFAULT_LIMITS), MODEL).operation
    assert request.inputs[0].data.obj is joined
