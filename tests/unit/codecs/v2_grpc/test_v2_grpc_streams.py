"""The messages of ModelStreamInfer in both forms agree with tritonclient's protobuf classes."""

from contextlib import suppress
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
ANSWER = InferResponse("m", "1", "i", {"k": 1}, (OUTPUT,))
REQUEST = InferRequest("m", id="i")
FINAL = "triton_final_response"


def message(**parameters: bool) -> bytes:
    request = pb.ModelInferRequest(model_name="m", id="i")
    for name, value in parameters.items():
        request.parameters[name].bool_param = value
    return bytes(request.SerializeToString())


def parsed(codec: V2Grpc, **parameters: bool) -> ParsedRequest:
    return codec.parse_request(RpcRequest(STREAM, (message(**parameters),)), DEFAULT_LIMITS)


def wrapped(wire: RpcResponse | None) -> Any:
    assert wire is not None
    assert wire.code == 0
    return pb.ModelStreamInferResponse.FromString(bytes(join_parts(wire.message)))


def read(stream_message: Any) -> InferResponse | None:
    wire = RpcResponse((stream_message.SerializeToString(),))
    return TRITON.parse_stream_response(wire, REQUEST, DEFAULT_LIMITS)


def kind_of(wire: RpcResponse) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        TRITON.parse_stream_response(wire, REQUEST, DEFAULT_LIMITS)
    return caught.value


def theirs(**more: Any) -> Any:
    """Return a response as a server sends it."""
    answer = pb.ModelInferResponse(model_name="m", model_version="1", id="i", **more)
    answer.outputs.add(name="OUTPUT0", datatype="INT32", shape=[1])
    answer.raw_output_contents.append(b"\7\0\0\0")
    return answer


def test_the_codec_streams() -> None:
    assert isinstance(TRITON, SupportsStreaming)
    assert TRITON.capabilities.supports_streaming
    with pytest.raises(ValueError, match="sideways"):
        V2Grpc(stream="sideways")


@pytest.mark.parametrize("last", [True, False])
def test_responses_report_whether_they_are_final(last: bool) -> None:
    answer = InferResponse("m", "1", "i", {"k": 1}, (OUTPUT,), is_last=last)
    response = wrapped(TRITON.build_stream_response(answer, parsed(TRITON))).infer_response
    assert response.parameters[FINAL].bool_param is last
    assert response.parameters["k"].int64_param == 1
    assert (response.model_name, response.id, list(response.raw_output_contents)) == (
        "m",
        "i",
        [b"\7\0\0\0"],
    )


def test_a_single_response_equals_a_unary_one() -> None:
    request = parsed(PLAIN)
    assert PLAIN.build_stream_response(ANSWER, request) == PLAIN.build_response(ANSWER, request)
    assert PLAIN.build_stream_end(parsed(PLAIN, triton_enable_empty_final_response=True)) is None


def test_the_final_response_is_marked_on_request() -> None:
    assert TRITON.build_stream_end(parsed(TRITON)) is None
    assert TRITON.build_stream_end(parsed(TRITON, triton_enable_empty_final_response=False)) is None
    request = parsed(TRITON, triton_enable_empty_final_response=True, other=True)
    assert isinstance(request.operation, InferRequest)
    assert request.operation.parameters == {"other": True}
    end = wrapped(TRITON.build_stream_end(request))
    assert end.error_message == ""
    assert (end.infer_response.model_name, end.infer_response.id) == ("m", "i")
    assert end.infer_response.parameters[FINAL].bool_param is True
    assert not end.infer_response.outputs


def test_a_unary_request_has_no_final_response_parameter() -> None:
    wire = RpcRequest(INFER, (message(triton_enable_empty_final_response=True),))
    operation = TRITON.parse_request(wire, DEFAULT_LIMITS).operation
    assert isinstance(operation, InferRequest)
    assert operation.parameters == {}


@pytest.mark.parametrize("kind", Kind)
def test_errors_are_sent_in_the_stream_or_end_it(kind: Kind) -> None:
    error = GatewayError(kind, "out of œufs \udcff")
    written_error = wrapped(TRITON.build_stream_error(error, RpcRequest(STREAM, (message(),))))
    assert written_error.error_message.startswith("out of œufs")
    assert (written_error.infer_response.model_name, written_error.infer_response.id) == ("m", "i")
    assert written_error.infer_response.parameters[FINAL].bool_param is True
    wants = RpcRequest(STREAM, (message(),), {"triton_grpc_error": "true"})
    for codec, wire in ((TRITON, wants), (PLAIN, RpcRequest(STREAM))):
        assert codec.build_stream_error(error, wire) == codec.build_error(error)


@given(st.binary(max_size=60))
def test_every_message_parses_or_has_an_error(garbled: bytes) -> None:
    wire = RpcRequest(STREAM, (garbled,))
    error = wrapped(TRITON.build_stream_error(GatewayError(Kind.INTERNAL, "no"), wire))
    assert error.error_message == "no"


def test_a_stream_request_equals_a_unary_one() -> None:
    wire = TRITON.build_stream_request(REQUEST, GENERIC)
    assert wire is not None
    assert wire.method == STREAM
    assert wire.message == TRITON.build_request(REQUEST, GENERIC).message


@pytest.mark.parametrize("decoupled", [True, False, None])
def test_a_model_with_one_response_gets_no_stream_request(
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
    answer = theirs()
    if final is not None:
        answer.parameters[FINAL].bool_param = final
    answer.parameters["k"].int64_param = 1
    found = read(pb.ModelStreamInferResponse(infer_response=answer))
    assert found is not None
    assert found.is_last is (final is True)
    assert (found.model, found.version, found.id) == ("m", "1", "i")
    assert found.parameters == {"k": 1}
    assert [bytes(each.data) for each in found.outputs] == [b"\7\0\0\0"]


def test_tritons_empty_final_response_is_not_a_response() -> None:
    answer = pb.ModelInferResponse(model_name="m", id="i")
    answer.parameters[FINAL].bool_param = True
    assert read(pb.ModelStreamInferResponse(infer_response=answer)) is None


def test_an_empty_response_that_is_not_final_is_a_response() -> None:
    answer = pb.ModelInferResponse(model_name="m", id="i")
    answer.parameters[FINAL].bool_param = False
    found = read(pb.ModelStreamInferResponse(infer_response=answer))
    assert found == InferResponse("m", id="i")


def test_mlservers_responses_are_not_mistaken_for_errors() -> None:
    found = read(theirs())
    assert found is not None
    assert (found.model, found.version, found.id, found.is_last) == ("m", "1", "i", False)
    without_version = pb.ModelInferResponse(model_name="m", id="i")
    assert read(without_version) == InferResponse("m", id="i")


def test_a_backends_error() -> None:
    for answer in (None, pb.ModelInferResponse(id="i")):
        model_stream_infer_response = pb.ModelStreamInferResponse(
            error_message="no œufs", infer_response=answer
        )
        error = kind_of(RpcResponse((model_stream_infer_response.SerializeToString(),)))
        assert (error.kind, error.origin) == (Kind.BACKEND_ERROR, Origin.BACKEND)
        assert error.public == "no œufs"
    received = (
        "[request id: i] unexpected shape for input 'IN' for model 'm'. Expected [1], got [2]. "
    )
    model_stream_infer_response = pb.ModelStreamInferResponse(error_message=received)
    error = kind_of(RpcResponse((model_stream_infer_response.SerializeToString(),)))
    assert (error.kind, error.origin, error.public) == (Kind.BAD_REQUEST, Origin.BACKEND, received)
    error = kind_of(RpcResponse(code=5, details="gone"))
    assert (error.kind, error.public) == (Kind.NOT_FOUND, "gone")


@pytest.mark.parametrize(
    "garbled",
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
def test_a_malformed_stream_response(garbled: bytes) -> None:
    assert kind_of(RpcResponse((garbled,))).kind is Kind.BACKEND_GARBAGE


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_parsed_or_rejected(garbled: bytes) -> None:
    wire = RpcResponse((garbled,))
    with suppress(GatewayError):
        TRITON.parse_stream_response(wire, REQUEST, DEFAULT_LIMITS)
