"""The TensorFlow Serving gRPC codec: contract checks, round trips and corrupted messages."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tfs_kit import SELECTORS, round_trip, status_response

from gateway_errors import error_of
from infergate.codecs.profiles import GENERIC
from infergate.codecs.tfs import GRPC
from infergate.codecs.tfs import messages as pb
from infergate.core import messages
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.wire import RpcRequest, join_parts
from infergate.testing import strategies
from infergate.testing.canonical import is_same
from infergate.testing.codec_check import check_codec
from infergate.testing.vectors import with_body

CONTENTS = pytest.mark.parametrize("contents", ["auto", "raw", "typed"])


@pytest.mark.no_cover
@CONTENTS
def test_contract(contents: str) -> None:
    options = {"contents": contents}
    check_codec(GRPC, options=options, round_trip=round_trip, server_response=status_response)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"contents": "both"}, "contents is 'both'"),
        ({"version_zero": 0}, "version_zero is 0"),
        ({"label": {}}, "'label' is not an option"),
    ],
)
def test_invalid_options(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        GRPC.create(options)


VERSIONS = st.just("") | st.integers(1, 2**63 - 1).map(str)
PARAMETERS = st.dictionaries(
    st.sampled_from(SELECTORS), st.text("abcé_-. ", min_size=1, max_size=5), max_size=2
)


@st.composite
def inferences(draw: st.DrawFn) -> tuple[InferRequest, InferResponse]:
    def without_parameters(tensors: Any) -> Any:
        return tuple(replace(tensor, parameters={}) for tensor in tensors)

    version = draw(VERSIONS)
    parameters = draw(PARAMETERS)
    if version:  # a version replaces a label
        parameters.pop("version_label", None)
    request = InferRequest(
        draw(strategies.names()),
        version,
        parameters=parameters,
        inputs=without_parameters(draw(strategies.tensor_lists())),
        outputs=tuple(map(messages.RequestedOutput, draw(st.sets(strategies.names(), max_size=3)))),
    )
    outputs = without_parameters(draw(strategies.tensor_lists()))
    order = {output.name: index for index, output in enumerate(request.outputs)}
    outputs = tuple(sorted(outputs, key=lambda tensor: order.get(tensor.name, len(order))))
    return request, InferResponse(request.model, draw(VERSIONS), outputs=outputs)


@CONTENTS
@settings(deadline=None)
@given(case=inferences())
def test_an_inference_round_trips(contents: str, case: tuple[InferRequest, InferResponse]) -> None:
    request, response = case
    codec = GRPC.create({"contents": contents})
    wire = codec.build_request(request, GENERIC)
    summary = codec.summarize(wire)
    assert (summary.model, summary.version) == (request.model, request.version)
    parsed = codec.parse_request(wire, DEFAULT_LIMITS)
    assert not isinstance(parsed, RpcRequest)
    assert is_same(parsed.operation, request)  # type: ignore[union-attr]
    response_wire = codec.build_response(response, parsed)  # type: ignore[arg-type]
    assert is_same(codec.parse_response(response_wire, request, DEFAULT_LIMITS), response)


@settings(deadline=None)
@given(inferences(), st.data())
def test_corrupted_messages(case: tuple[InferRequest, InferResponse], data: st.DataObject) -> None:
    request, response = case
    codec: Any = GRPC.create({"contents": data.draw(st.sampled_from(["auto", "raw"]))})
    wire = codec.build_request(request, GENERIC)
    response_wire = codec.build_response(response, codec.parse_request(wire, DEFAULT_LIMITS))
    message = data.draw(strategies.corrupted_bytes(bytes(join_parts(wire.message))))
    broken: Any = with_body(wire, (message,))
    for read in (
        lambda: codec.summarize(broken),
        lambda: codec.parse_request(broken, DEFAULT_LIMITS),
    ):
        error = error_of(read)
        assert error is None or codec.build_error(error, broken).code
    parsed = error_of(codec.parse_request, broken, DEFAULT_LIMITS)
    validated = error_of(codec.validate, broken, DEFAULT_LIMITS)
    assert repr(parsed) == repr(validated)
    message = data.draw(strategies.corrupted_bytes(bytes(join_parts(response_wire.message))))
    corrupted: Any = with_body(response_wire, (message,))
    for read in (
        lambda: codec.parse_response(corrupted, request, DEFAULT_LIMITS),
        lambda: codec.rewrite_response(corrupted, wire, "n", "2", DEFAULT_LIMITS),
    ):
        error = error_of(read)
        assert error is None or error.public


METHODS = [getattr(pb, name) for name in (
    "PREDICT", "METADATA", "CLASSIFY", "REGRESS", "MULTI_INFERENCE", "STATUS", "RELOAD",
)]  # fmt: skip


@settings(deadline=None)
@given(st.binary(max_size=60), st.sampled_from([*METHODS, "/tensorflow.serving.X/Y"]))
def test_any_bytes_are_parsed_or_refused(message: bytes, method: str) -> None:
    codec: Any = GRPC.create({})
    wire = RpcRequest(method, (message,))
    for read in (lambda: codec.summarize(wire), lambda: codec.parse_request(wire, DEFAULT_LIMITS)):
        error = error_of(read)
        assert error is None or codec.build_error(error, wire).code
    if error_of(codec.summarize, wire) is None and method not in METHODS[-2:]:
        error_of(codec.rewrite_request, wire, "n", "2", GENERIC)
