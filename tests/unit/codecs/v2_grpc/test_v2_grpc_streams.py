"""Stream messages in the forms ``triton`` and ``plain``, checked with tritonclient's classes."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from infergate.codecs import profiles
from infergate.codecs.base import ParsedRequest, SupportsStreaming
from infergate.codecs.profiles import GENERIC
from infergate.codecs.v2_grpc.codec import V2Grpc
from infergate.codecs.v2_grpc.methods import INFER, STREAM
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata
from infergate.core.tensor import tensor_from_array
from infergate.core.wire import RpcRequest, RpcResponse, join_parts

TRITON, PLAIN = V2Grpc(), V2Grpc(stream="plain")
OUTPUT = tensor_from_array("OUTPUT0", Datatype.INT32, np.array([7]))
RESPONSE = InferResponse("m", "1", "i", {"k": 1}, (OUTPUT,))
REQUEST = InferRequest("m", id="i")
FINAL = "triton_final_response"


def message(**parameters: bool) -> bytes:
    request = pb.ModelInferRequest(model_name="m", id="i")
    for name, value in parameters.items():
        request.parameters[name].bool_param = value
    return bytes(request.SerializeToString())


def parse(codec: V2Grpc, **parameters: bool) -> ParsedRequest:
    return codec.parse_request(RpcRequest(STREAM, (message(**parameters),)), DEFAULT_LIMITS)


def stream_message(wire: RpcResponse | None) -> Any:
    assert wire.code == 0
    return pb.ModelStreamInferResponse.FromString(bytes(join_parts(wire.message)))


def parse_message(stream_response: Any) -> InferResponse | None:
    wire = RpcResponse((stream_response.SerializeToString(),))
    return TRITON.parse_stream_response(wire, REQUEST, DEFAULT_LIMITS)


def error_of(wire: RpcResponse) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        TRITON.parse_stream_response(wire, REQUEST, DEFAULT_LIMITS)
    return caught.value


def server_response(**fields: Any) -> Any:
    response = pb.ModelInferResponse(model_name="m", model_version="1", id="i", **fields)
    response.outputs.add(name="OUTPUT0", datatype="INT32", shape=[1])
    response.raw_output_contents.append(b"\7\0\0\0")
    return response


def test_the_codec_supports_streaming() -> None:
    assert isinstance(TRITON, SupportsStreaming)
    assert TRITON.capabilities.supports_streaming
    with pytest.raises(ValueError, match="sideways"):
        V2Grpc(stream="sideways")


@pytest.mark.parametrize("is_last", [True, False])
def test_responses_report_whether_they_are_final(is_last: bool) -> None:
    response = replace(RESPONSE, is_last=is_last)
    wire = TRITON.build_stream_response(response, parse(TRITON))
    result = stream_message(wire).infer_response
    assert result.parameters[FINAL].bool_param is is_last
    assert result.parameters["k"].int64_param == 1
    assert (result.model_name, result.id, result.raw_output_contents) == ("m", "i", [b"\7\0\0\0"])


def test_a_single_response_equals_a_unary_one() -> None:
    request = parse(PLAIN)
    assert PLAIN.build_stream_response(RESPONSE, request) == PLAIN.build_response(RESPONSE, request)
    assert PLAIN.build_stream_end(parse(PLAIN, triton_enable_empty_final_response=True)) is None


def test_the_final_response_is_marked_on_request() -> None:
    assert TRITON.build_stream_end(parse(TRITON)) is None
    assert TRITON.build_stream_end(parse(TRITON, triton_enable_empty_final_response=False)) is None
    request = parse(TRITON, triton_enable_empty_final_response=True, other=True)
    assert request.operation.parameters == {"other": True}
    end = stream_message(TRITON.build_stream_end(request))
    assert end.error_message == ""
    assert (end.infer_response.model_name, end.infer_response.id) == ("m", "i")
    assert end.infer_response.parameters[FINAL].bool_param is True
    assert not end.infer_response.outputs


def test_a_unary_request_has_no_final_response_parameter() -> None:
    wire = RpcRequest(INFER, (message(triton_enable_empty_final_response=True),))
    operation = TRITON.parse_request(wire, DEFAULT_LIMITS).operation
    assert operation.parameters == {}


@pytest.mark.parametrize("kind", Kind)
def test_errors_are_sent_in_the_stream_or_end_it(kind: Kind) -> None:
    error = GatewayError(kind, "out of œufs \udcff")
    wire = TRITON.build_stream_error(error, RpcRequest(STREAM, (message(),)))
    stream_error = stream_message(wire)
    assert stream_error.error_message.startswith("out of œufs")
    assert (stream_error.infer_response.model_name, stream_error.infer_response.id) == ("m", "i")
    assert stream_error.infer_response.parameters[FINAL].bool_param is True
    with_header = RpcRequest(STREAM, (message(),), {"triton_grpc_error": "true"})
    for codec, wire in ((TRITON, with_header), (PLAIN, RpcRequest(STREAM))):
        assert codec.build_stream_error(error, wire) == codec.build_error(error)


@given(st.binary(max_size=60))
def test_the_error_for_any_request_bytes_is_a_stream_message(data: bytes) -> None:
    wire = RpcRequest(STREAM, (data,))
    error = stream_message(TRITON.build_stream_error(GatewayError(Kind.INTERNAL, "no"), wire))
    assert error.error_message == "no"


def test_a_stream_request_equals_a_unary_one() -> None:
    wire = TRITON.build_stream_request(REQUEST, GENERIC)
    assert wire.method == STREAM
    assert wire.message == TRITON.build_request(REQUEST, GENERIC).message


@pytest.mark.parametrize("decoupled", [True, False, None])
def test_triton_gets_no_stream_request_for_a_model_with_one_response(
    decoupled: bool | None,
) -> None:
    assert TRITON.streams_need_metadata(profiles.TRITON)
    assert not TRITON.streams_need_metadata(GENERIC)
    model = ModelMetadata("m", decoupled=decoupled)
    wire = TRITON.build_stream_request(REQUEST, profiles.TRITON, model)
    assert (wire is None) is (decoupled is False)
    assert TRITON.build_stream_request(REQUEST, profiles.INFERGATE, model) is not None


@pytest.mark.parametrize("final", [True, False, None])
def test_tritons_stream_responses(final: bool | None) -> None:
    response = server_response()
    if final is not None:
        response.parameters[FINAL].bool_param = final
    response.parameters["k"].int64_param = 1
    parsed = parse_message(pb.ModelStreamInferResponse(infer_response=response))
    assert parsed.is_last is (final is True)
    assert (parsed.model, parsed.version, parsed.id) == ("m", "1", "i")
    assert parsed.parameters == {"k": 1}
    assert [bytes(tensor.data) for tensor in parsed.outputs] == [b"\7\0\0\0"]


def test_tritons_empty_final_response_is_not_a_response() -> None:
    response = pb.ModelInferResponse(model_name="m", id="i")
    response.parameters[FINAL].bool_param = True
    assert parse_message(pb.ModelStreamInferResponse(infer_response=response)) is None


def test_an_empty_response_that_is_not_final_is_a_response() -> None:
    response = pb.ModelInferResponse(model_name="m", id="i")
    response.parameters[FINAL].bool_param = False
    parsed = parse_message(pb.ModelStreamInferResponse(infer_response=response))
    assert parsed == InferResponse("m", id="i")


def test_mlservers_responses_are_not_mistaken_for_errors() -> None:
    parsed = parse_message(server_response())
    assert (parsed.model, parsed.version, parsed.id, parsed.is_last) == ("m", "1", "i", False)
    without_version = pb.ModelInferResponse(model_name="m", id="i")
    assert parse_message(without_version) == InferResponse("m", id="i")


def test_errors_of_a_backend_are_parsed() -> None:
    text = "[request id: i] unexpected shape for input 'IN' for model 'm'. Expected [1], got [2]. "
    for public, response, kind in (
        ("no œufs", None, Kind.BACKEND_ERROR),
        ("no œufs", pb.ModelInferResponse(id="i"), Kind.BACKEND_ERROR),
        (text, None, Kind.BAD_REQUEST),
    ):
        stream_response = pb.ModelStreamInferResponse(error_message=public, infer_response=response)
        error = error_of(RpcResponse((stream_response.SerializeToString(),)))
        assert (error.kind, error.origin, error.public) == (kind, Origin.BACKEND, public)
    error = error_of(RpcResponse(code=5, details="gone"))
    assert (error.kind, error.public) == (Kind.NOT_FOUND, "gone")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x0a\x00",
        b"\x12\x05ab",
        b"\x10\x01",
        b"\x0a\x01\xff",
        b"\x12\x02\x0a\x05",
        b"\x12\x04\x2a\x02\x1a\x00\x32\x00",
    ],
)
def test_a_malformed_stream_response_is_garbage(data: bytes) -> None:
    assert error_of(RpcResponse((data,))).kind is Kind.BACKEND_GARBAGE


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_parsed_or_rejected(data: bytes) -> None:
    wire = RpcResponse((data,))
    with suppress(GatewayError):
        TRITON.parse_stream_response(wire, REQUEST, DEFAULT_LIMITS)
