"""The V2 gRPC codec: round trips, raw and typed contents, parameters, limits and pass-through."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import InferResult
from tritonclient.grpc import service_pb2 as pb

from gateway_errors import raises_kind
from infergate.codecs.base import ParsedRequest
from infergate.codecs.profiles import GENERIC
from infergate.codecs.v2_grpc import PLUGIN
from infergate.core import messages
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS, Limits
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata
from infergate.core.tensor import Tensor, tensor_from_array
from infergate.core.wire import RpcRequest, RpcResponse, join_parts
from infergate.testing import canonical, check_codec
from infergate.testing.strategies import corrupted_bytes, infer_requests, infer_responses

RAW = PLUGIN.create({})
TYPED = PLUGIN.create({"contents": "typed"})
INFER = "/inference.GRPCInferenceService/ModelInfer"
LIMITS = DEFAULT_LIMITS
REQUEST = InferRequest("m")
METADATA = messages.ModelMetadataRequest("m")
VALID = RAW.build_request(
    InferRequest(
        "m",
        "1",
        "id",
        {"p": 1},
        (
            tensor_from_array("A", Datatype.INT32, np.arange(3, dtype="<i4")),
            tensor_from_array("B", Datatype.BYTES, np.array([b"xy", b""], dtype=np.object_)),
        ),
    ),
    GENERIC,
)
VALID_TENSORS = (
    tensor_from_array("A", Datatype.INT32, np.arange(3, dtype="<i4")),
    tensor_from_array("B", Datatype.FP64, np.array([0.5])),
)
VALID_BYTES = bytes(join_parts(VALID.message))
_typed_message = pb.ModelInferRequest(model_name="m")
_typed_message.inputs.add(name="X", datatype="INT8", shape=[2], contents={"int_contents": [1, -1]})
_typed_message.inputs.add(name="Y", datatype="FP32", shape=[1], contents={"fp32_contents": [0.5]})
TYPED_BYTES = _typed_message.SerializeToString()


def join_message(wire: Any) -> Any:
    return replace(wire, message=(bytes(join_parts(wire.message)),))


def request_message(wire: Any) -> pb.ModelInferRequest:
    return pb.ModelInferRequest.FromString(bytes(join_parts(wire.message)))


def response_message(wire: Any) -> pb.ModelInferResponse:
    return pb.ModelInferResponse.FromString(bytes(join_parts(wire.message)))


def parse(wire: RpcRequest) -> InferRequest:
    operation = RAW.parse_request(wire, LIMITS).operation
    assert isinstance(operation, InferRequest)
    return operation


def error_of(wire: RpcRequest | RpcResponse, function: Any, *arguments: Any) -> GatewayError | None:
    try:
        function(wire, *arguments)
    except GatewayError as error:
        return error
    return None


@pytest.mark.no_cover
@pytest.mark.parametrize("contents", ["raw", "typed"])
def test_the_contract(contents: str) -> None:
    check_codec(PLUGIN, options={"contents": contents})


@given(infer_requests())
def test_any_request_arrives_bit_for_bit(request: InferRequest) -> None:
    wire = join_message(RAW.build_request(request, GENERIC))
    parsed = RAW.parse_request(wire, LIMITS).operation
    assert canonical.to_text(parsed) == canonical.to_text(request)
    summary = RAW.summarize(wire)
    assert (summary.model, summary.version) == (request.model, request.version)


@given(infer_responses(), st.sampled_from((RAW, TYPED)))
def test_any_response_arrives_bit_for_bit(response: InferResponse, codec: Any) -> None:
    wire = join_message(codec.build_response(response, ParsedRequest(REQUEST)))
    parsed = codec.parse_response(wire, REQUEST, LIMITS)
    assert canonical.to_text(parsed) == canonical.to_text(response)


@given(infer_responses(frozenset(Datatype) - {Datatype.FP16, Datatype.BF16}))
def test_typed_requests_are_read_like_typed_responses(response: InferResponse) -> None:
    """Requests and responses encode typed tensors alike, so this tests the request reader with the
    response writer."""
    message = response_message(TYPED.build_response(response, ParsedRequest(REQUEST)))
    assert not message.raw_output_contents
    request = pb.ModelInferRequest(model_name=response.model)
    for output in message.outputs:
        request.inputs.add().MergeFromString(output.SerializeToString())
    wire = RpcRequest(INFER, (request.SerializeToString(),))
    parsed = parse(wire)
    expected = InferRequest(response.model, inputs=response.outputs)
    assert canonical.to_text(parsed) == canonical.to_text(expected)
    assert RAW.validate(wire, LIMITS) is wire


@given(infer_requests())
def test_tritonclient_reads_requests(request: InferRequest) -> None:
    message = request_message(RAW.build_request(request, GENERIC))
    names = message.model_name, message.model_version, message.id
    assert names == (request.model, request.version, request.id)
    assert [t.name for t in message.inputs] == [t.name for t in request.inputs]
    assert [tuple(t.shape) for t in message.inputs] == [t.shape for t in request.inputs]
    assert list(message.raw_input_contents) == [bytes(t.data) for t in request.inputs]
    assert set(message.parameters) == set(request.parameters)
    wire = RpcRequest(INFER, (message.SerializeToString(),))
    assert canonical.is_same(RAW.parse_request(wire, LIMITS).operation, request)


@given(infer_responses())
def test_tritonclient_reads_raw_responses(response: InferResponse) -> None:
    message = response_message(RAW.build_response(response, ParsedRequest(REQUEST)))
    result = InferResult(message)
    for tensor in response.outputs:
        if tensor.datatype is not Datatype.BF16:
            array = result.as_numpy(tensor.name)
            assert array.shape == tensor.shape
            if tensor.datatype is not Datatype.BYTES:
                assert array.tobytes() == bytes(tensor.data)


@given(st.data())
def test_corrupted_bytes_parse_or_are_refused_and_validation_agrees(data: st.DataObject) -> None:
    valid = data.draw(st.sampled_from((VALID_BYTES, TYPED_BYTES)))
    wire = RpcRequest(INFER, (data.draw(corrupted_bytes(valid)),))
    parse_error = error_of(wire, RAW.parse_request, LIMITS)
    validation_error = error_of(wire, RAW.validate, LIMITS)
    assert (parse_error is None) == (validation_error is None)
    error_of(wire, RAW.summarize)
    error_of(wire, RAW.rewrite_request, "other", "2", GENERIC)
    if parse_error is None:
        assert error_of(wire, RAW.summarize) is None
        validated = RAW.validate(wire, LIMITS)
        assert canonical.is_same(
            RAW.parse_request(validated, LIMITS).operation,
            RAW.parse_request(wire, LIMITS).operation,
        )
        # tritonclient's protobuf classes accept every message that the codec accepts.
        request_message(validated)


@given(st.binary(max_size=80), st.sampled_from(("ModelInfer", "ModelReady", "RepositoryIndex")))
def test_any_bytes_parse_or_are_refused(message: bytes, method: str) -> None:
    wire = RpcRequest(f"/inference.GRPCInferenceService/{method}", (message,))
    error_of(wire, RAW.summarize)
    parse_error = error_of(wire, RAW.parse_request, LIMITS)
    assert (parse_error is None) == (error_of(wire, RAW.validate, LIMITS) is None)


@given(st.data())
def test_corrupted_responses_parse_or_are_garbage(data: st.DataObject) -> None:
    response = InferResponse("m", "1", "id", {}, VALID_TENSORS)
    codec = data.draw(st.sampled_from((RAW, TYPED)))
    valid = bytes(join_parts(codec.build_response(response, ParsedRequest(REQUEST)).message))
    wire = RpcResponse((data.draw(corrupted_bytes(valid)),))
    for function, arguments in (
        (RAW.parse_response, (REQUEST, LIMITS)),
        (RAW.rewrite_response, (VALID, "other", "2", LIMITS)),
    ):
        error = error_of(wire, function, *arguments)
        assert error is None or error.kind is Kind.BACKEND_GARBAGE


# ---- no copies


def test_tensor_memory_is_never_copied() -> None:
    data = bytes(range(256)) * 16
    tensor = Tensor("X", Datatype.UINT8, (4096,), data)
    request_wire = RAW.build_request(InferRequest("m", inputs=(tensor,)), GENERIC)
    assert any(part is data for part in request_wire.message)
    response_wire = RAW.build_response(
        InferResponse("m", outputs=(tensor,)), ParsedRequest(REQUEST)
    )
    assert any(part is data for part in response_wire.message)
    message = bytes(join_parts(request_wire.message))
    parsed = parse(RpcRequest(INFER, (message,)))
    view = parsed.inputs[0].data
    assert view.obj is message
    rewritten = RAW.rewrite_request(RpcRequest(INFER, (message,)), "other", "", GENERIC)
    assert rewritten is not None
    assert all(p.obj is message for p in rewritten.message if isinstance(p, memoryview))
    assert sum(isinstance(part, memoryview) for part in rewritten.message) == 1


# ---- parameters


def test_lists_and_objects_become_json_text_and_null_is_omitted() -> None:
    request = InferRequest("m", parameters={"l": [1, "a", None], "o": {"k": 1.5}, "n": None})
    parsed = parse(RAW.build_request(request, GENERIC))
    assert parsed.parameters == {"l": '[1,"a",null]', "o": '{"k":1.5}'}


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1])
def test_an_integer_beyond_64_bits_names_its_parameter(value: int) -> None:
    with raises_kind(Kind.BAD_REQUEST, match="'big'"):
        RAW.build_request(InferRequest("m", parameters={"big": value}), GENERIC)
    with raises_kind(Kind.UNSUPPORTED, match="'big'"):
        RAW.build_response(InferResponse("m", parameters={"big": value}), ParsedRequest(REQUEST))


@pytest.mark.parametrize(
    "request_",
    [
        InferRequest("m\ud800"),
        InferRequest("m", parameters={"m\ud800": 1}),
        InferRequest("m", parameters={"k": "m\ud800"}),
        messages.ModelReadyRequest("m\ud800"),
    ],
)
def test_invalid_unicode_is_rejected_by_name(request_: Any) -> None:
    with raises_kind(Kind.BAD_REQUEST, match=r"'m\\ud800' is not Unicode"):
        RAW.build_request(request_, GENERIC)


def test_a_dimension_beyond_int64_is_refused() -> None:
    response = ModelMetadata("m", inputs=(messages.TensorMetadata("X", "FP32", (2**63,)),))
    with raises_kind(Kind.UNSUPPORTED):
        RAW.build_response(
            response, RAW.parse_request(RAW.build_request(METADATA, GENERIC), LIMITS)
        )


def test_metadata_distinguishes_parameters_and_properties() -> None:
    response = ModelMetadata(
        "m",
        inputs=(messages.TensorMetadata("X", "FP32", (-1,), {"content_type": "np"}),),
        parameters={"s": "text", "i": -3, "b": False, "d": 0.5, "none": None},
        properties={"p": "plain", "e": "", "tab": "a\tb"},
    )
    wire = RAW.build_response(response, ParsedRequest(METADATA))
    parsed = RAW.parse_response(wire, METADATA, LIMITS)
    expected = replace(response, parameters={"s": "text", "i": -3, "b": False, "d": 0.5})
    assert canonical.is_same(parsed, expected)


# ---- limits


def test_mlservers_spelling_of_a_state_is_read() -> None:
    message = pb.RepositoryIndexResponse(models=[{"name": "m", "state": "State.READY"}])
    wire = RpcResponse((message.SerializeToString(),))
    index = RAW.parse_response(wire, messages.ModelIndexRequest(), DEFAULT_LIMITS)
    assert [entry.state for entry in index.models] == ["READY"]


def test_the_number_of_tensors_is_limited() -> None:
    limits = Limits(tensors=2)
    tensors = tuple(Tensor(f"X{i}", Datatype.INT8, (1,), b"\0") for i in range(3))
    wire = RAW.build_request(InferRequest("m", inputs=tensors), GENERIC)
    with pytest.raises(GatewayError, match="3 inputs; the limit is 2"):
        RAW.parse_request(wire, limits)
    RAW.parse_request(wire, replace(limits, tensors=3))


def test_classification_needs_a_class_count() -> None:
    output = messages.RequestedOutput("Y", {"classification": 0})
    wire = RAW.build_request(InferRequest("m", outputs=(output,)), GENERIC)
    for check in (RAW.parse_request, RAW.validate):
        with raises_kind(Kind.BAD_REQUEST, match="'Y'"):
            check(wire, LIMITS)


def test_an_empty_shape_in_typed_contents_holds_one_element() -> None:
    message = pb.ModelInferRequest(model_name="m")
    message.inputs.add(name="X", datatype="INT64", contents={"int64_contents": [5]})
    assert parse(RpcRequest(INFER, (message.SerializeToString(),))).inputs[0].shape == ()


def test_unknown_fields_in_typed_contents_are_skipped() -> None:
    contents = pb.InferTensorContents(fp32_contents=[1.0]).SerializeToString() + b"\x7a\x03new"
    tensor = pb.ModelInferRequest.InferInputTensor(name="X", datatype="FP32", shape=[1])
    tensor.MergeFromString(b"\x2a" + bytes((len(contents),)) + contents)
    message = pb.ModelInferRequest(model_name="m", inputs=[tensor]).SerializeToString()
    parsed = parse(RpcRequest(INFER, (message,)))
    assert bytes(parsed.inputs[0].data) == b"\x00\x00\x80\x3f"


def test_any_nonzero_byte_is_true_in_typed_bool() -> None:
    response = InferResponse("m", outputs=(Tensor("X", Datatype.BOOL, (3,), b"\x00\x02\xff"),))
    wire = TYPED.build_response(response, ParsedRequest(REQUEST))
    parsed = TYPED.parse_response(wire, REQUEST, LIMITS)
    assert bytes(parsed.outputs[0].data) == b"\0\1\1"


# ---- forwarding


def test_validation_returns_a_valid_message_unchanged() -> None:
    assert RAW.validate(VALID, LIMITS) is VALID
    request = RAW.build_request(messages.ServerLiveRequest(), GENERIC)
    assert RAW.validate(request, LIMITS) is request


def test_validation_removes_empty_contents_that_triton_refuses() -> None:
    message = pb.ModelInferRequest(model_name="m", raw_input_contents=[b"\1", b"\2"])
    message.inputs.add(name="X", datatype="INT8", shape=[1]).contents.SetInParent()
    message.inputs.add(name="Y", datatype="INT8", shape=[1])
    wire = RpcRequest(INFER, (message.SerializeToString(),), {"k": "v"})
    validated = RAW.validate(wire, LIMITS)
    assert validated.metadata == {"k": "v"}
    message.inputs[0].ClearField("contents")
    assert bytes(join_parts(validated.message)) == message.SerializeToString()


def test_rewriting_changes_only_names_and_drops_metadata() -> None:
    wire = replace(VALID, metadata={"authorization": "secret"})
    rewritten = RAW.rewrite_request(wire, "other", "", GENERIC)
    assert rewritten.metadata == {}
    message = request_message(rewritten)
    expected = pb.ModelInferRequest.FromString(VALID_BYTES)
    expected.model_name = "other"
    expected.model_version = ""
    assert message == expected


def test_rewriting_a_malformed_request_is_a_bad_request() -> None:
    with raises_kind(Kind.BAD_REQUEST):
        RAW.rewrite_request(RpcRequest(INFER, (b"\x0a\x7f",)), "other", "", GENERIC)


def backend_response(**fields: Any) -> RpcResponse:
    message = pb.ModelInferResponse(model_name="m", model_version="1", **fields)
    return RpcResponse((message.SerializeToString(),), metadata={"server": "x"})


def test_an_unchanged_response_is_not_copied() -> None:
    response = backend_response(id="id", raw_output_contents=[b"x"])
    assert RAW.rewrite_response(response, VALID, "", "", LIMITS).message is response.message
    assert RAW.rewrite_response(response, VALID, "m", "1", LIMITS).message is response.message


def test_a_response_has_the_clients_model_name() -> None:
    rewritten = RAW.rewrite_response(backend_response(id="id"), VALID, "mine", "7", LIMITS)
    message = response_message(rewritten)
    assert (message.model_name, message.model_version, message.id) == ("mine", "7", "id")


def test_the_clients_id_is_added_to_a_response_without_an_id() -> None:
    rewritten = RAW.rewrite_response(backend_response(), VALID, "", "", LIMITS)
    message = response_message(rewritten)
    assert (message.model_name, message.model_version, message.id) == ("m", "1", "id")


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("backend_id", ["uuid-1", "", "mine"])
@pytest.mark.parametrize("client_id", ["mine", ""])
def test_the_response_id_is_the_clients_or_absent(
    client_id: str, backend_id: str, typed: bool
) -> None:
    request = RAW.build_request(InferRequest("m", id=client_id), GENERIC)
    contents = {"contents": {"int_contents": [1]}} if typed else {}
    output = pb.ModelInferResponse.InferOutputTensor(
        name="Y", datatype="INT8", shape=[1], **contents
    )
    response = backend_response(
        id=backend_id, outputs=[output], raw_output_contents=[] if typed else [b"\1"]
    )
    rewritten = RAW.rewrite_response(response, request, "", "", LIMITS)
    message = response_message(rewritten)
    assert (message.model_name, message.model_version, message.id) == ("m", "1", client_id)
    assert message.raw_output_contents == [b"\1"]
    if client_id == backend_id and not typed:
        assert rewritten.message is response.message


def test_typed_responses_become_raw_for_tritonclient() -> None:
    output = {"name": "Y", "datatype": "INT32", "shape": [2], "contents": {"int_contents": [1, 2]}}
    rewritten = RAW.rewrite_response(backend_response(outputs=[output]), VALID, "", "", LIMITS)
    result = InferResult(response_message(rewritten))
    array = result.as_numpy("Y")
    assert array.tolist() == [1, 2]


@pytest.mark.parametrize("message", [b"\x0a\x7f", b"\x2a\x02\x0a\x7f", b"\x2a\x00"])
def test_a_malformed_response_is_garbage(message: bytes) -> None:
    with raises_kind(Kind.BACKEND_GARBAGE):
        RAW.rewrite_response(RpcResponse((message,)), VALID, "", "", LIMITS)


def test_responses_of_typed_codecs_are_not_passed_through() -> None:
    assert RAW.can_pass_through
    assert not TYPED.can_pass_through


# ---- misuse


def test_a_response_of_another_operation_is_unsupported() -> None:
    with raises_kind(Kind.UNSUPPORTED, match="InferRequest with Health"):
        RAW.build_response(messages.HealthStatus(ok=True), ParsedRequest(REQUEST))
    with pytest.raises(GatewayError, match="ServerLiveRequest with ModelMetadata"):
        RAW.build_response(ModelMetadata("m"), ParsedRequest(messages.ServerLiveRequest()))
