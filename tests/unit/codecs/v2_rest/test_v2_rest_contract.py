"""The V2 REST codec: contract checks, round trips of inferences, and corrupted messages."""

import math
from functools import partial

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from v2_rest_kit import CODEC, body, post, read_response, respond

from gateway_errors import error_of
from infergate.codecs.base import ParsedRequest, PartialInferRequest, Profile
from infergate.codecs.profiles import GENERIC, KSERVE, MLSERVER, TRITON
from infergate.codecs.v2_rest import PLUGIN
from infergate.codecs.v2_rest.infer_request import ResponseFormat
from infergate.core import messages
from infergate.core.datatypes import FLOATS, Datatype
from infergate.core.errors import Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.tensor import Tensor
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.testing import strategies
from infergate.testing.canonical import is_same, to_text
from infergate.testing.codec_check import check_codec

EXACT_IN_JSON = frozenset(Datatype) - FLOATS - {Datatype.BYTES}
HEALTH = messages.ServerLiveRequest | messages.ServerReadyRequest
SERVER_OPERATIONS = (
    messages.ModelIndexRequest,
    messages.ServerLiveRequest,
    messages.ServerMetadataRequest,
    messages.ServerReadyRequest,
)
BINARY = ResponseFormat({}, binary_by_default=True, accept_encoding="")


@pytest.mark.no_cover
@pytest.mark.parametrize("profile", [GENERIC, TRITON], ids=lambda p: p.name)
def test_contract(profile: Profile) -> None:
    check_codec(PLUGIN, profile=profile)


@pytest.mark.no_cover
def test_contract_with_options() -> None:
    check_codec(PLUGIN, options={"non_finite": "null", "compress_min": 0})


def test_an_invalid_option_is_refused() -> None:
    with pytest.raises(ValueError, match="non_finite is 'loud'"):
        PLUGIN.create({"non_finite": "loud"})


def test_pass_through_requires_the_same_spelling_of_nan() -> None:
    assert PLUGIN.create({}).can_pass_through
    assert not PLUGIN.create({"non_finite": "null"}).can_pass_through


def assume_representable(request: InferRequest | InferResponse) -> None:
    assume(request.model not in (".", ".."))
    assume(request.version not in (".", ".."))
    reserved = {"binary_data_output", "binary_data_size", "binary_data", "shared_memory_region"}
    owners = [request, *getattr(request, "inputs", ()), *request.outputs]
    assume(not any(reserved & set(owner.parameters) for owner in owners))
    values = [value for owner in owners for value in owner.parameters.values()]
    # JSON parameters cannot be infinite
    assume(not any(isinstance(value, float) and math.isinf(value) for value in values))


@settings(deadline=None)
@given(strategies.infer_requests())
def test_binary_request_round_trip(request: InferRequest) -> None:
    assume_representable(request)
    wire = CODEC.build_request(request, TRITON)
    parsed = CODEC.parse_request(wire, DEFAULT_LIMITS)
    assert is_same(parsed.operation, request)
    assert all(parsed.response_options.is_binary(output.name) for output in request.outputs)
    assert request.outputs or parsed.response_options.is_binary("any")


@settings(deadline=None)
@given(strategies.infer_requests(EXACT_IN_JSON))
def test_json_request_round_trip(request: InferRequest) -> None:
    assume_representable(request)
    parsed = CODEC.parse_request(CODEC.build_request(request, MLSERVER), DEFAULT_LIMITS)
    assert is_same(parsed.operation, request)


@settings(deadline=None)
@given(strategies.infer_responses(), st.sampled_from(["", "gzip", "deflate"]))
def test_binary_response_round_trip(response: InferResponse, encoding: str) -> None:
    assume_representable(response)
    parsed = ParsedRequest(
        InferRequest("m"), ResponseFormat({}, binary_by_default=True, accept_encoding=encoding)
    )
    wire = CODEC.build_response(response, parsed)
    assert is_same(read_response(wire), response)


@settings(deadline=None)
@given(strategies.tensors(FLOATS))
def test_json_floats_round_trip_except_nan_payloads(tensor: Tensor) -> None:
    response = InferResponse("m", outputs=(tensor,))
    assume_representable(response)
    wire = respond(response)
    parsed = read_response(wire)
    expected, actual = tensor.numpy().ravel().tolist(), parsed.outputs[0].numpy().ravel().tolist()
    assert [str(value) for value in expected] == [str(value) for value in actual]


@settings(deadline=None)
@given(strategies.infer_requests(), st.sampled_from([TRITON, GENERIC]), st.data())
def test_corrupted_requests(request: InferRequest, profile: Profile, data: st.DataObject) -> None:
    assume_representable(request)
    build_error = error_of(lambda: CODEC.build_request(request, profile))
    if build_error is not None:
        # a server without binary data cannot receive BYTES that are not UTF-8
        assert build_error.kind is Kind.UNSUPPORTED
        return
    wire = CODEC.build_request(request, profile)
    corrupted = data.draw(strategies.corrupted_bytes(body(wire)))
    check_agreement(HttpRequest(wire.method, wire.path, "", wire.headers, [corrupted]))


@settings(deadline=None)
@given(
    st.sampled_from(["GET", "POST", "HEAD", ""]),
    st.one_of(
        st.text(max_size=12), st.sampled_from(["/v2", "/v2/models/a%", "/v2/models/m/infer"])
    ),
    st.dictionaries(
        st.sampled_from(["inference-header-content-length", "content-encoding", "accept-encoding"]),
        st.one_of(st.text(max_size=6), st.sampled_from(["0", "2", "gzip", "deflate", "gzip;q=0"])),
    ),
    st.binary(max_size=40),
)
def test_any_request_is_parsed_or_refused(
    method: str, path: str, headers: dict[str, str], data: bytes
) -> None:
    wire = HttpRequest(method, path, "", headers, [data])
    check_agreement(wire)
    error = error_of(lambda: CODEC.summarize(wire))
    assert error is None or CODEC.build_error(error, wire).status in (400, 404, 405)


def check_agreement(wire: HttpRequest) -> None:
    """Check that the parser and the validation return the same error, or the same request."""
    error = error_of(lambda: CODEC.parse_request(wire, DEFAULT_LIMITS))
    validation_error = error_of(lambda: CODEC.validate(wire, DEFAULT_LIMITS))
    if error is not None:
        assert (validation_error.kind, validation_error.public) == (error.kind, error.public)
        assert CODEC.build_error(error, wire).status >= 400
        return
    parsed = CODEC.parse_request(wire, DEFAULT_LIMITS)
    validated = CODEC.parse_request(CODEC.validate(wire, DEFAULT_LIMITS), DEFAULT_LIMITS)
    if isinstance(parsed, PartialInferRequest):  # a raw request
        one_input = messages.ModelMetadata(
            "m", inputs=(messages.TensorMetadata("I", "UINT8", (-1,)),)
        )
        parsed, validated = parsed.complete(one_input), validated.complete(one_input)
    assert to_text(validated.operation) == to_text(parsed.operation)


@settings(deadline=None)
@given(strategies.infer_responses(), st.booleans(), st.data())
def test_corrupted_responses(response: InferResponse, binary: bool, data: st.DataObject) -> None:
    assume_representable(response)
    parsed = ParsedRequest(InferRequest("m"), BINARY if binary else None)
    wire = CODEC.build_response(response, parsed)
    corrupted = HttpResponse(200, wire.headers, [data.draw(strategies.corrupted_bytes(body(wire)))])
    for read in (
        lambda: read_response(corrupted),
        lambda: CODEC.rewrite_response(corrupted, post(""), "new", "2", DEFAULT_LIMITS),
    ):
        error = error_of(read)
        assert error is None or error.kind in (Kind.BACKEND_GARBAGE, Kind.BACKEND_ERROR)


@settings(deadline=None)
@given(st.integers(100, 599), st.binary(max_size=60))
def test_any_response_is_parsed_or_refused(status: int, data: bytes) -> None:
    wire = HttpResponse(status, {}, [data])
    for operation in (InferRequest("m"), *(kind() for kind in SERVER_OPERATIONS)):
        error = error_of(partial(CODEC.parse_response, wire, operation, DEFAULT_LIMITS))
        assert error is None or error.public
        assert error is not None or status == 200 or isinstance(operation, HEALTH)


def test_kserve_requests_have_no_version() -> None:
    request = InferRequest("m", "3")
    assert CODEC.build_request(request, KSERVE).path == "/v2/models/m/infer"
    assert CODEC.build_request(request, TRITON).path == "/v2/models/m/versions/3/infer"
