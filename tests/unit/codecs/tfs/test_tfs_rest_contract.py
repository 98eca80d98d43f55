"""The TensorFlow Serving REST codec: contract checks, round trips and corrupted messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tfs_kit import round_trip, status_response

from gateway_errors import error_of, refused
from infergate.codecs.base import ParsedRequest
from infergate.codecs.profiles import GENERIC
from infergate.codecs.tfs import REST
from infergate.core.datatypes import FLOATS, Datatype
from infergate.core.errors import Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import (
    InferRequest,
    InferResponse,
    ModelMetadata,
    TensorMetadata,
)
from infergate.core.tensor import Tensor
from infergate.core.wire import HttpRequest, join_parts
from infergate.testing import strategies
from infergate.testing.canonical import is_same
from infergate.testing.codec_check import check_codec
from infergate.testing.vectors import completed, with_body

CODEC: Any = REST.create({})


def expressible_value(value: Any) -> Any:
    """Return the part of ``value`` that REST can express. REST cannot select outputs."""
    expected = round_trip(value)
    return replace(expected, outputs=()) if isinstance(value, InferRequest) else expected


@pytest.mark.no_cover
def test_contract() -> None:
    check_codec(REST, round_trip=expressible_value, server_response=status_response)


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"contents": "raw"}, "'contents' is not an option"), ({"version_zero": 0}, "version_zero")],
)
def test_invalid_options(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        REST.create(options)


def expressible_tensors(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the tensors that JSON lists can express. JSON does not keep the bits of NaN."""
    return tuple(
        replace(tensor, parameters={})
        for tensor in tensors
        if 0 not in tensor.shape
        and not (tensor.datatype in FLOATS and bool((tensor.numpy() != tensor.numpy()).any()))
    )


def tensor_metadata(tensors: tuple[Tensor, ...]) -> tuple[TensorMetadata, ...]:
    return tuple(TensorMetadata(t.name, t.datatype.value, (-1,) * len(t.shape)) for t in tensors)


@st.composite
def inferences(draw: st.DrawFn) -> tuple[InferRequest, InferResponse, ModelMetadata]:
    inputs = expressible_tensors(draw(strategies.tensor_lists()))
    outputs = expressible_tensors(draw(strategies.tensor_lists()))
    model = ModelMetadata("m", inputs=tensor_metadata(inputs), outputs=tensor_metadata(outputs))
    return InferRequest("m", inputs=inputs), InferResponse("m", outputs=outputs), model


@settings(deadline=None)
@given(inferences())
def test_an_inference_round_trips(case: tuple[InferRequest, InferResponse, ModelMetadata]) -> None:
    request, response, model = case
    wire = CODEC.build_request(request, GENERIC, model)
    if not request.inputs:
        partial = CODEC.parse_request(wire, DEFAULT_LIMITS)
        assert "no inputs" in refused(partial.complete, model).public
        return
    parsed = completed(CODEC.parse_request(wire, DEFAULT_LIMITS), model)
    assert is_same(parsed.operation, request)
    sent = CODEC.build_response(response, parsed)
    if response.outputs:
        assert is_same(CODEC.parse_response(sent, request, DEFAULT_LIMITS, model), response)


@settings(deadline=None)
@given(inferences(), st.data())
def test_corrupted_messages(
    case: tuple[InferRequest, InferResponse, ModelMetadata], data: st.DataObject
) -> None:
    request, response, model = case
    wire = CODEC.build_request(request, GENERIC, model)
    body = data.draw(strategies.corrupted_bytes(bytes(join_parts(wire.body))))
    broken: Any = with_body(wire, (body,))
    parsed = error_of(lambda: completed(CODEC.parse_request(broken, DEFAULT_LIMITS), model))
    validated = error_of(lambda: completed(CODEC.validate(broken, DEFAULT_LIMITS), model))
    assert repr(parsed) == repr(validated)
    assert parsed is None or CODEC.build_error(parsed, broken).status in (400, 413, 501)
    wire_response = CODEC.build_response(response, ParsedRequest(request))
    body = data.draw(strategies.corrupted_bytes(bytes(join_parts(wire_response.body))))
    failure = error_of(
        CODEC.parse_response, with_body(wire_response, (body,)), request, DEFAULT_LIMITS, model
    )
    assert failure is None or failure.kind in (Kind.BACKEND_GARBAGE, Kind.TOO_LARGE)


PATHS = st.lists(
    st.sampled_from(["/v1", "/models", "/m", "/versions", "/1", "/labels", ":predict", ":classify",
                     "/metadata", "%2F", "%", "é", "/", "0" * 30]), max_size=7,
).map("".join)  # fmt: skip


@settings(deadline=None)
@given(PATHS, st.sampled_from(["GET", "POST", "PUT", "OPTIONS"]), st.binary(max_size=60))
def test_any_bytes_are_accepted_or_refused_with_an_error(
    path: str, method: str, body: bytes
) -> None:
    wire = HttpRequest(method, path, body=(body,))
    model = ModelMetadata("m", inputs=(TensorMetadata("x", Datatype.FP32.value, (-1,)),))
    for parse in (
        lambda: CODEC.summarize(wire),
        lambda: completed(CODEC.parse_request(wire, DEFAULT_LIMITS), model),
    ):
        error = error_of(parse)
        assert error is None or CODEC.build_error(error, wire).status >= 400
