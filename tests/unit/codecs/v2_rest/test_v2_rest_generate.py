"""Triton's generate extension and streamed inferences, for clients and for servers."""

import contextlib
import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from v2_rest_kit import CODEC, post

from gateway_errors import raises_kind
from infergate.codecs.base import ParsedRequest, PartialInferRequest
from infergate.codecs.profiles import KSERVE, MLSERVER, TRITON
from infergate.codecs.v2_rest.codec import V2RestCodec
from infergate.codecs.v2_rest.generate_frontend import SINGLE_RESPONSE_ERROR, resolve_shape
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS, Limits
from infergate.core.messages import (
    InferRequest,
    InferResponse,
    ModelMetadata,
    RequestedOutput,
    TensorMetadata,
)
from infergate.core.tensor import Tensor, pack_bytes, tensor_from_array
from infergate.core.wire import HttpRequest, HttpResponse, join_parts

EVENT = {"content-type": "text/event-stream; charset=utf-8"}
MODEL = ModelMetadata(
    "m",
    inputs=(
        TensorMetadata("text", "BYTES", (-1,)),
        TensorMetadata("x", "FP32", (-1, 2)),
        TensorMetadata("flag", "BOOL", (1,)),
    ),
    outputs=(TensorMetadata("out", "BYTES", (-1,)), TensorMetadata("y", "FP32", (-1, 2))),
    decoupled=True,
)


def parsed_request(
    body: Any, verb: str = "generate", model: ModelMetadata = MODEL
) -> ParsedRequest:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    wire = post(text, f"/v2/models/m/versions/7/{verb}")
    partial = CODEC.parse_request(wire, DEFAULT_LIMITS)
    assert isinstance(partial, PartialInferRequest)
    partial = pickle.loads(pickle.dumps(partial))  # helper processes receive a copy
    assert (partial.model, partial.version, partial.text_bytes) == ("m", "7", len(text))
    assert not CODEC.summarize(wire).can_pass_through
    return partial.complete(model)


def request_of(body: Any) -> InferRequest:
    operation = parsed_request(body).operation
    assert isinstance(operation, InferRequest)
    return operation


def test_members_become_tensors_and_parameters() -> None:
    request = request_of(
        {
            "id": "i",
            "text": "hi",
            "max": 3,
            "parameters": {"x": [1, 2.5, 3, 4], "deep": 0.5, "id": "no id", "flag": True},
            "none": None,
        }
    )
    assert (request.model, request.version, request.id) == ("m", "7", "i")
    assert request.parameters == {"max": 3, "deep": 0.5, "id": "no id"}
    text, x, flag = request.inputs
    assert (text.name, text.datatype, text.shape) == ("text", Datatype.BYTES, (1,))
    assert text.data == pack_bytes([b"hi"])
    assert (x.shape, x.numpy().tolist()) == ((2, 2), [[1, 2.5], [3, 4]])
    assert (flag.shape, flag.numpy().tolist()) == ((1,), [True])


def test_an_input_may_be_called_id() -> None:
    model = ModelMetadata("m", inputs=(TensorMetadata("id", "INT32", (1,)),))
    operation = parsed_request({"id": 5}, model=model).operation
    assert operation.id == ""
    assert operation.inputs[0].numpy().tolist() == [5]


@pytest.mark.parametrize(("verb", "streamed"), [("generate", False), ("generate_stream", True)])
def test_only_generate_stream_is_streamed(verb: str, streamed: bool) -> None:
    parsed = parsed_request({"text": "a"}, verb)
    assert parsed.wants_stream is streamed
    assert parsed.single_response_error == ("" if streamed else SINGLE_RESPONSE_ERROR)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"[]", "the body must be an object"),
        (b"{bad", "invalid JSON"),
        (b'{"text":"a","text":"b"}', "'text' twice"),
        ({"id": 5}, "id must be a string"),
        ({"parameters": 5}, "parameters must be an object"),
        ({"text": 5}, "BYTES takes strings"),
        ({"x": ["a", "b"]}, "FP32 takes numbers"),
        ({"x": [1, 2, 3]}, "can not convert input 'x'"),
        ({"x": 1}, "can not convert input 'x'"),
        ({"flag": [True, True]}, "can not convert input 'flag'"),
        ({"text": [["a", "b"]]}, "data holds more"),
        ({"other": [1]}, "parameter 'other'"),
        ({"parameters": {"parameters": {}}}, "parameter 'parameters.parameters'"),
        ({"text": "a", "parameters": {"text": "b"}}, "'text' is given twice"),
        ({"a": 1, "parameters": {"a": 1}}, "'a' is given twice"),
        (b'{"a":"\\ud800"}', "surrogate"),
        (b'{"a":1e999}', "parameter 'a'"),
        (b'{"a":NaN}', "parameter 'a'"),
    ],
)
def test_invalid_messages(body: Any, expected: str) -> None:
    with raises_kind(Kind.BAD_REQUEST, match=expected):
        parsed_request(body)


@pytest.mark.parametrize("body", [{"sequence_id": 1.5}, {"parameters": {"sequence_id": True}}])
def test_sequence_ids_of_other_types_are_refused(body: Any) -> None:
    with raises_kind(Kind.BAD_REQUEST, match="'sequence_id' must be an integer"):
        parsed_request(body)


def test_messages_beyond_the_limits() -> None:
    with raises_kind(Kind.TOO_LARGE):
        parsed_request({str(number): 1 for number in range(2000)})
    with raises_kind(Kind.TOO_LARGE):
        CODEC.parse_request(post(b"x" * 101, "/v2/models/m/generate"), Limits(json=100))


def test_an_unknown_datatype() -> None:
    model = ModelMetadata("m", inputs=(TensorMetadata("a", "INT3", (1,)),))
    with raises_kind(Kind.UNSUPPORTED):
        parsed_request({"a": 1}, model=model)


@pytest.mark.parametrize(
    ("count", "dimensions", "shape"),
    [
        (1, (), ()),
        (1, (-1,), (1,)),
        (0, (-1,), (0,)),
        (6, (-1, 3), (2, 3)),
        (6, (-1, -1), (1, 6)),
        (6, (-1, 3, -1), (1, 3, 2)),
        (6, (2, 3), (2, 3)),
    ],
)
def test_resolved_shapes(count: int, dimensions: tuple[int, ...], shape: tuple[int, ...]) -> None:
    assert resolve_shape("t", count, dimensions) == shape


@pytest.mark.parametrize(("count", "dimensions"), [(2, ()), (0, (1,)), (0, (0,)), (7, (-1, 3))])
def test_unsupported_shapes(count: int, dimensions: tuple[int, ...]) -> None:
    with pytest.raises(GatewayError):
        resolve_shape("t", count, dimensions)


# ---- responses -----------------------------------------------------------------------------------


def response_body(*outputs: Tensor, verb: str = "generate", **fields: Any) -> bytes:
    parsed = parsed_request({"text": "a"}, verb)
    build = CODEC.build_response if verb == "generate" else CODEC.build_stream_response
    response = build(InferResponse("m", "1", outputs=outputs, **fields), parsed)
    return b"".join(map(bytes, response.body))


def floats(*values: float) -> Tensor:
    return tensor_from_array("y", Datatype.FP32, np.array(values, "f4"))


def strings(*values: bytes) -> Tensor:
    return Tensor("out", Datatype.BYTES, (len(values),), pack_bytes(values))


def test_responses_are_ordered_by_name() -> None:
    body = response_body(strings(b"hi"), floats(0.1, 2), id="i", parameters={"p": 1, "Z": True})
    assert body == (
        b'{"Z":true,"id":"i","model_name":"m","model_version":"1","out":"hi","p":1,"y":[0.1,2.0]}'
    )


@pytest.mark.parametrize(
    ("tensor", "value"),
    [
        (floats(1.5), b"1.5"),
        (floats(float("nan")), b"NaN"),
        (floats(float("inf"), 1), b"[Infinity,1.0]"),
        (floats(), b"[]"),
        (tensor_from_array("y", Datatype.BOOL, np.array([True])), b"true"),
        (tensor_from_array("y", Datatype.INT64, np.array([[2**62]])), b"%d" % 2**62),
        (tensor_from_array("y", Datatype.FP16, np.array([0.5], "f2")), b"0.5"),
        (tensor_from_array("y", Datatype.BF16, np.array([0.5], "f4")), b"0.5"),
    ],
)
def test_a_single_element_is_not_a_list(tensor: Tensor, value: bytes) -> None:
    assert response_body(tensor) == b'{"model_name":"m","model_version":"1","y":%b}' % value


def test_bytes_that_are_not_text_are_refused() -> None:
    with raises_kind(Kind.UNSUPPORTED, match="out"):
        response_body(strings(b"\xff"))


def test_server_sent_events() -> None:
    assert response_body(strings(), verb="generate_stream") == (
        b'data: {"model_name":"m","model_version":"1","out":[]}\n\n'
    )
    error = CODEC.build_stream_error(
        GatewayError(Kind.TIMEOUT, "too\nlate"), HttpRequest("POST", "/")
    )
    assert join_parts(error.body) == b'data: {"error":"too\\nlate"}\n\n'
    end = CODEC.build_stream_end(parsed_request({}, "generate_stream"))
    assert (end.status, end.headers, tuple(end.body)) == (200, EVENT, ())


# ---- requests to servers -------------------------------------------------------------------------


def build_stream_request(request: InferRequest, model: ModelMetadata = MODEL) -> HttpRequest:
    wire = CODEC.build_stream_request(request, TRITON, model)
    assert wire is not None
    return wire


def test_a_decoupled_model_gets_generate_stream() -> None:
    request = InferRequest(
        "m", "2", "i", {"a": 1}, (strings(b"hi"), floats(1, 2)), (RequestedOutput("out"),)
    )
    inputs = (TensorMetadata("out", "BYTES", (-1,)), TensorMetadata("y", "FP32", (2,)))
    model = ModelMetadata("m", inputs=inputs, outputs=MODEL.outputs, decoupled=True)
    wire = build_stream_request(request, model)
    assert (wire.method, wire.path) == ("POST", "/v2/models/m/versions/2/generate_stream")
    assert json.loads(join_parts(wire.body)) == {
        "id": "i",
        "out": ["hi"],
        "y": [1, 2],
        "parameters": {"a": 1},
    }


def test_any_other_model_gets_infer() -> None:
    request = InferRequest("m")
    assert CODEC.streams_need_metadata(TRITON)
    assert CODEC.build_stream_request(request, TRITON, ModelMetadata("m")) is None
    assert not CODEC.streams_need_metadata(KSERVE)
    assert CODEC.build_stream_request(request, KSERVE) is None


def test_mlserver_gets_infer_stream() -> None:
    assert not CODEC.streams_need_metadata(MLSERVER)
    wire = CODEC.build_stream_request(InferRequest("m", inputs=(floats(1, 2),)), MLSERVER)
    assert wire.path == "/v2/models/m/infer_stream"
    assert json.loads(join_parts(wire.body))["inputs"][0]["data"] == [1, 2]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"inputs": (floats(1),)}, "input 'y'"),
        ({"inputs": (Tensor("x", Datatype.FP32, (1, 4), bytes(16)),)}, "input 'x'"),
        ({"inputs": (Tensor("x", Datatype.FP16, (1, 2), bytes(4)),)}, "FP16"),
        ({"inputs": (Tensor("x", Datatype.FP32, (1, 2), b"\0\0\xc0\x7f" * 2),)}, "NaN or infinity"),
        ({"inputs": (Tensor("text", Datatype.BYTES, (1,), b"\1\0\0\0\xff"),)}, "UTF-8"),
        ({"parameters": {"sequence_id": 5}}, "sequence_id"),
        ({"parameters": {"text": "a"}}, "parameter 'text'"),
        ({"outputs": (RequestedOutput("out", {"classification": 2}),)}, "'out'"),
    ],
)
def test_unrepresentable_stream_requests(fields: dict[str, Any], expected: str) -> None:
    with raises_kind(Kind.UNSUPPORTED, match=expected):
        build_stream_request(InferRequest("m", **fields))


def test_an_output_with_an_unrepresentable_shape() -> None:
    outputs = (TensorMetadata("out", "BYTES", (-1, -1)),)
    inputs = (TensorMetadata("text", "BYTES", (-1, 1)),)
    text = Tensor("text", Datatype.BYTES, (1, 1), pack_bytes([b"a"]))
    model = ModelMetadata("m", inputs=inputs, outputs=outputs, decoupled=True)
    with pytest.raises(GatewayError, match="output 'out'"):
        build_stream_request(InferRequest("m", inputs=(text,)), model)
    batched = ModelMetadata("m", inputs=inputs, outputs=outputs, max_batch_size=4, decoupled=True)
    request = InferRequest("m", inputs=(text,))
    assert build_stream_request(request, batched)
    response = response_from(b'{"model_name":"m","out":["a","b"]}', request, batched)
    assert response.outputs[0].shape == (1, 2)


def response_from(
    body: bytes,
    request: InferRequest | None = None,
    model: ModelMetadata | None = MODEL,
    status: int = 200,
    headers: dict[str, str] | None = None,
) -> InferResponse:
    wire = HttpResponse(status, EVENT if headers is None else headers, (body,))
    response = CODEC.parse_stream_response(
        wire, request or InferRequest("m"), DEFAULT_LIMITS, model
    )
    assert isinstance(response, InferResponse)
    return response


def test_an_event_of_triton() -> None:
    body = b'{"Q":1,"id":"i","model_name":"m","model_version":"3","out":"a","y":[1,2,3,4],"p":0.5}'
    response = response_from(body)
    assert (response.model, response.version, response.id) == ("m", "3", "i")
    assert response.parameters == {"Q": 1, "p": 0.5}
    assert [(t.name, t.shape) for t in response.outputs] == [("out", (1,)), ("y", (2, 2))]
    selected = response_from(body, InferRequest("m", outputs=(RequestedOutput("y"),)))
    assert [tensor.name for tensor in selected.outputs] == ["y"]


@pytest.mark.parametrize(
    ("status", "headers", "body", "kind"),
    [
        (200, EVENT, b'{"error":"no"}', Kind.BACKEND_ERROR),
        (400, EVENT, b'{"error":"no"}', Kind.BACKEND_ERROR),
        (400, {}, b'{"error":"no"}', Kind.BAD_REQUEST),
        (404, {}, b'{"error":"no"}', Kind.UNSUPPORTED),
        (503, {}, b'{"error":"no"}', Kind.NO_BACKEND),
        (200, EVENT, b"[DONE]", Kind.BACKEND_GARBAGE),
        (200, EVENT, b"", Kind.BACKEND_GARBAGE),
        (200, EVENT, b'{"model_name":"m","y":[1]}', Kind.BACKEND_GARBAGE),
        (200, EVENT, b'{"model_name":"m","out":[{}]}', Kind.BACKEND_GARBAGE),
        (200, EVENT, b'{"model_name":"m","other":[]}', Kind.BACKEND_GARBAGE),
        (200, EVENT, b'{"model_name":5}', Kind.BACKEND_GARBAGE),
    ],
)
def test_error_responses(status: int, headers: dict[str, str], body: bytes, kind: Kind) -> None:
    with raises_kind(kind):
        response_from(body, None, MODEL, status, headers)


def test_an_event_without_a_requested_output() -> None:
    with pytest.raises(GatewayError, match="output 'y'"):
        response_from(b'{"model_name":"m"}', InferRequest("m", outputs=(RequestedOutput("y"),)))


def test_an_event_of_mlserver() -> None:
    body = b'{"model_name":"m","outputs":[{"name":"a","datatype":"INT32","shape":[1],"data":[3]}]}'
    assert response_from(body, model=None).outputs[0].numpy().tolist() == [3]
    with pytest.raises(GatewayError, match="the model failed"):
        response_from(
            b"Traceback (most\n  x\nRuntimeError: the model failed", model=None, status=500
        )


@given(st.binary(max_size=60), st.sampled_from([MODEL, None]))
def test_every_event_is_a_response_or_a_declared_error(
    body: bytes, model: ModelMetadata | None
) -> None:
    with contextlib.suppress(GatewayError):
        response_from(body, model=model)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["text", "x", "flag", "id", "parameters", "p"]), inner
            )
        ),
    )
)
def test_any_json_is_a_request_or_the_declared_error(document: Any) -> None:
    try:
        parsed = parsed_request(document)
    except GatewayError:
        return
    assert isinstance(parsed.operation, InferRequest)


# ---- streamed infer -----------------------------------------------------------------------------

INFER = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}


@pytest.mark.parametrize(
    ("verb", "parameters", "streamed", "remaining"),
    [
        ("infer", {"stream": True, "a": 1}, True, {"a": 1}),
        ("infer", {"stream": False}, False, {"stream": False}),
        ("infer", {"stream": "true"}, False, {"stream": "true"}),
        ("infer", {"stream": 1}, False, {"stream": 1}),
        ("infer_stream", {}, True, {}),
        ("infer_stream", {"stream": False}, True, {"stream": False}),
    ],
)
def test_the_stream_parameter_and_infer_stream_request_a_stream(
    verb: str, parameters: dict[str, Any], streamed: bool, remaining: dict[str, Any]
) -> None:
    wire = post(json.dumps({**INFER, "parameters": parameters}), f"/v2/models/m/{verb}")
    parsed = CODEC.parse_request(wire, DEFAULT_LIMITS)
    assert isinstance(parsed.operation, InferRequest)
    assert parsed.wants_stream is streamed
    assert parsed.operation.parameters == remaining
    if verb == "infer":
        validated = CODEC.validate(wire, DEFAULT_LIMITS)
        assert (CODEC.rewrite_request(validated, "n", "", TRITON) is None) is streamed


def test_a_streamed_response_is_always_json() -> None:
    options = {"parameters": {"stream": True, "binary_data_output": True}}
    wire = post(json.dumps({**INFER, **options}), accept_encoding="gzip")
    parsed = V2RestCodec(compress_min=0).parse_request(wire, DEFAULT_LIMITS)
    assert isinstance(parsed, ParsedRequest)
    response = CODEC.build_stream_response(InferResponse("m", outputs=(floats(1),)), parsed)
    assert response.headers == EVENT
    assert join_parts(response.body) == (
        b'data: {"model_name":"m","outputs":'
        b'[{"name":"y","datatype":"FP32","shape":[1],"data":[1.0]}]}\n\n'
    )


def test_a_raw_request_may_be_streamed() -> None:
    path = "/v2/models/m/infer_stream"
    wire = post(bytes(8), path, inference_header_content_length="0")
    partial = CODEC.parse_request(wire, DEFAULT_LIMITS)
    parsed = partial.complete(ModelMetadata("m", inputs=(TensorMetadata("x", "FP32", (2,)),)))
    assert parsed.wants_stream
