"""The GraphPipe frontend: paths, names, metadata, control requests, and both forms of errors."""

import json
from typing import Any

import pytest
from graphpipe_wire import read_response, request, verify

from gateway_errors import raises_kind, refused
from infergate.codecs.base import ParsedRequest
from infergate.codecs.graphpipe import PLUGIN
from infergate.codecs.graphpipe.codec import GraphPipeCodec, MetadataFormat
from infergate.codecs.graphpipe.infer_request import OutputSelection
from infergate.codecs.http_status import MAX_MESSAGE_CHARACTERS, STATUS_BY_KIND
from infergate.core import messages
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, TensorMetadata
from infergate.core.tensor import Tensor
from infergate.core.wire import HttpRequest, HttpResponse, join_parts
from infergate.testing.vectors import completed

SHARED = PLUGIN.create({})
DEDICATED = PLUGIN.create({"model": "m"})
MODEL = ModelMetadata(
    "m",
    ("1", "2"),
    "onnx",
    (TensorMetadata("x", "FP32", (-1, 3)), TensorMetadata("y:0", "BF16", ())),
    (TensorMetadata("a", "BYTES", (-1,)), TensorMetadata("b", "INT8", (2,))),
)
METADATA = request(kind=2)
INFER = request([(10, [1], b"1234")])


def post(body: bytes = INFER, path: str = "/", method: str = "POST", **headers: str) -> HttpRequest:
    wire_headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpRequest(method, path, headers=wire_headers, body=(body,) if body else ())


def parse(
    wire: HttpRequest, codec: GraphPipeCodec = DEDICATED, model: ModelMetadata = MODEL
) -> ParsedRequest:
    return completed(codec.parse_request(wire, DEFAULT_LIMITS), model)


def inference(body: bytes, model: ModelMetadata = MODEL) -> tuple[InferRequest, OutputSelection]:
    parsed = parse(post(body), model=model)
    assert isinstance(parsed.operation, InferRequest)
    return parsed.operation, parsed.response_options


def body(wire: HttpResponse) -> bytes:
    return bytes(join_parts(wire.body))


# ---- paths and methods


@pytest.mark.parametrize(
    ("path", "model", "version"),
    [
        ("/graphpipe/m", "m", ""),
        ("/graphpipe/m/versions/3", "m", "3"),
        ("/graphpipe/gr%C3%B6%2Fsse/versions/a%20b", "grö/sse", "a b"),
        ("/graphpipe/versions", "versions", ""),
    ],
)
def test_paths_of_a_shared_port(path: str, model: str, version: str) -> None:
    for wire, operation in (
        (post(path=path), InferRequest),
        (post(METADATA, path), messages.ModelMetadataRequest),
        (post(b"", path, "GET"), messages.ModelMetadataRequest),
    ):
        summary = SHARED.summarize(wire)
        assert (summary.operation, summary.model, summary.version) == (operation, model, version)
        parsed = parse(wire, SHARED).operation
        assert type(parsed) is operation
        assert (parsed.model, parsed.version) == (model, version)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("path", "kind", "expected"),
    [
        ("/", Kind.NOT_FOUND, "no such path: /"),
        ("/graphpipe", Kind.NOT_FOUND, "/graphpipe"),
        ("/graphpipe/", Kind.NOT_FOUND, "/graphpipe/"),
        ("/graphpipe/m/", Kind.NOT_FOUND, "/graphpipe/m/"),
        ("/graphpipe/m/versions", Kind.NOT_FOUND, "no such path"),
        ("/control/is_ready", Kind.NOT_FOUND, "no such path"),
        ("/graphpipe/m/" + "x" * 999, Kind.NOT_FOUND, "…"),
        ("/graphpipe/%", Kind.BAD_REQUEST, "invalid percent-escape"),
        ("/graphpipe/m/versions/%zz", Kind.BAD_REQUEST, "model version"),
        ("/graphpipe/%FF", Kind.BAD_REQUEST, "not UTF-8"),
        ("/graphpipe/%2e%2e", Kind.BAD_REQUEST, "may not be '..'"),
    ],
)
def test_an_unknown_path_is_refused(path: str, kind: Kind, expected: str) -> None:
    for read in (SHARED.summarize, lambda wire: SHARED.parse_request(wire, DEFAULT_LIMITS)):
        error = refused(read, post(path=path))
        assert error.kind is kind
        assert expected in error.public
        assert len(error.public) < 300


@pytest.mark.parametrize("path", ["/", "/any/path", "", "/graphpipe/other", "/control/", "/%"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_a_dedicated_listener_accepts_every_path_and_method(path: str, method: str) -> None:
    wire = post(path=path, method=method, content_type="application/json")
    assert DEDICATED.summarize(wire).model == "m"
    assert isinstance(parse(wire).operation, InferRequest)


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "POST"])
def test_an_empty_body_is_not_a_request(method: str) -> None:
    error = refused(DEDICATED.summarize, post(b"", method=method))
    assert error.public == "0 bytes are too short for the flatbuffer Request"


@pytest.mark.parametrize(
    ("path", "operation", "healthy", "unhealthy"),
    [
        ("/control/is_ready", messages.ModelReadyRequest("m"), b"ok\n", b"not ready\n"),
        ("/control/is_alive", messages.ServerLiveRequest(), b"ok\n", b"not alive\n"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_control_requests(
    path: str, operation: messages.Operation, healthy: bytes, unhealthy: bytes, method: str
) -> None:
    wire = post(b"", path, method)
    assert DEDICATED.summarize(wire).operation is type(operation)
    parsed_request = parse(wire)
    assert parsed_request.operation == operation
    response = DEDICATED.build_response(messages.HealthStatus(ok=True), parsed_request)
    assert (response.status, body(response)) == (200, healthy)
    response = DEDICATED.build_response(messages.HealthStatus(ok=False), parsed_request)
    assert (response.status, body(response)) == (503, unhealthy)
    assert response.headers["content-type"].startswith("text/plain")


@pytest.mark.parametrize("word", ["shutdown", "client_count"])
def test_other_control_requests_are_not_found(word: str) -> None:
    error = refused(DEDICATED.summarize, post(b"", f"/control/{word}", "GET"))
    assert error.kind is Kind.NOT_FOUND


def test_compressed_bodies_are_refused() -> None:
    with raises_kind(Kind.UNSUPPORTED_ENCODING, match="gzip"):
        DEDICATED.summarize(post(content_encoding="gzip"))
    assert DEDICATED.summarize(post(content_encoding="Identity")).model == "m"


@pytest.mark.parametrize("kind", [0, 3, 255])
def test_a_request_of_an_unknown_type_is_refused(kind: int) -> None:
    with raises_kind(Kind.BAD_REQUEST, match=f"req_type is {kind}, neither 1"):
        DEDICATED.summarize(post(request(kind=kind)))


# ---- names


def message_with(**names: Any) -> bytes:
    return request([(10, [1], b"1234"), (10, [1], b"5678")], **names)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (None, ("x", "y:0")),
        ([], ("x", "y:0")),
        ([b"", b""], ("x", "y:0")),
        ([b"x"], ("x", "y:0")),  # fewer names than tensors
        ([b"", b"x"], None),  # both tensors would be x
        ([b"y:0", b"x"], ("y:0", "x")),
        ([b"y", b"x:0"], ("y:0", "x")),  # TensorFlow's form of the names
        ([b"x:1", b"nope"], ("x:1", "nope")),  # the server checks the names
        ([b"x", b"y", b"x", b"y"], ("x", "y:0")),  # names without a tensor
        ([b"x", b"x"], None),
        ([b"x", b"x:0"], None),
    ],
)
def test_input_names(names: list[bytes] | None, expected: tuple[str, ...] | None) -> None:
    message = message_with(input_names=names)
    if expected is None:
        assert "input 'x' is given twice" in refused(inference, message).public
        return
    request, _ = inference(message)
    assert tuple(tensor.name for tensor in request.inputs) == expected
    assert [bytes(tensor.data) for tensor in request.inputs] == [b"1234", b"5678"]


@pytest.mark.parametrize(
    ("names", "requested", "order", "is_explicit"),
    [
        (None, (), ("a", "b"), False),
        ([], (), ("a", "b"), False),
        ([b""], ("a",), ("a",), True),
        ([b"", b""], ("a", "b"), ("a", "b"), True),
        ([b"b", b"a"], ("b", "a"), ("b", "a"), True),
        ([b"b:0"], ("b",), ("b",), True),
        ([b"b", b"b:0"], ("b",), ("b", "b"), True),
        ([b"zzz"], ("zzz",), ("zzz",), True),
    ],
)
def test_output_names(
    names: list[bytes] | None, requested: tuple[str, ...], order: tuple[str, ...], is_explicit: bool
) -> None:
    request, selection = inference(message_with(output_names=names))
    assert request.outputs == tuple(map(messages.RequestedOutput, requested))
    assert selection == OutputSelection(order, is_explicit=is_explicit)


@pytest.mark.parametrize("name", ["x\0", "x\u2028", "n" * 1025])
def test_an_invalid_tensor_name(name: str) -> None:
    for message in (
        message_with(input_names=[name.encode()]),
        message_with(output_names=[name.encode()]),
    ):
        with raises_kind(Kind.BAD_REQUEST, match=r"the name of (in|out)put 0 "):
            inference(message)


def test_more_tensors_than_the_model_has() -> None:
    message = request([(10, [1], b"1234")] * 3)
    assert refused(inference, message).public == "input 2 has no name, and model 'm' has 2 inputs"
    assert "output 2 has no name" in refused(inference, message_with(output_names=[b""] * 3)).public
    without_inputs = ModelMetadata("m")
    assert "model 'm' has 0 inputs" in refused(inference, message, without_inputs).public


def test_errors_name_invalid_tensors_by_name_or_position() -> None:
    message = request([(10, [1], b"1234"), (10, [1], b"123")], input_names=[b"", b"scale"])
    error = refused(DEDICATED.parse_request, post(message), DEFAULT_LIMITS)
    assert "tensor 'scale'" in error.public
    message = request([(10, [1], b"1234"), (10, [1], b"123")])
    error = refused(DEDICATED.parse_request, post(message), DEFAULT_LIMITS)
    assert "tensor 'input 1'" in error.public


# ---- responses


def outputs(*tensors: Tensor, names: list[bytes] | None = None) -> list[bytes]:
    """Return the data of each tensor in the response to a request for ``names``."""
    parsed_request = parse(post(message_with(output_names=names)))
    response = DEDICATED.build_response(InferResponse("m", outputs=tensors), parsed_request)
    assert response.status == 200
    assert response.headers["content-type"] == "application/octet-stream"
    verify(body(response), "InferResponse")
    message = read_response(body(response))
    assert message["errors"] == []
    return [tensor["data"] for tensor in message["output_tensors"]]


A, B, C = (Tensor(name, Datatype.INT8, (1,), name.encode()) for name in "abc")


def test_outputs_are_in_the_requested_order() -> None:
    assert outputs(A, B, names=[b"b", b"a"]) == [b"b", b"a"]
    assert outputs(B, A, C, names=[b"a"]) == [b"a"]
    assert outputs(A, names=[b"a", b"a:0"]) == [b"a", b"a"]


def test_default_outputs_have_the_models_order() -> None:
    assert outputs(B, A) == [b"a", b"b"]
    assert outputs(C, B, A) == [b"a", b"b", b"c"]
    assert outputs(B) == [b"b"]


def test_a_response_without_a_requested_output() -> None:
    parsed_request = parse(post(message_with(output_names=[b"a", b"b"])))
    error = refused(DEDICATED.build_response, InferResponse("m", outputs=(A,)), parsed_request)
    assert (error.kind, error.public) == (Kind.BACKEND_GARBAGE, "the response has no output 'b'")


def test_responses_that_graphpipe_cannot_represent() -> None:
    error = refused(DEDICATED.build_response, messages.ModelIndex(), parse(post()))
    assert error.kind is Kind.UNSUPPORTED


METADATA_FIELDS = {
    "name": b"m",
    "version": b"1, 2",
    "server": b"infergate",
    "description": b"onnx",
    "inputs": [
        {"name": b"x", "description": b"", "shape": [-1, 3], "type": 10},
        {"name": b"y:0", "description": b"", "shape": [], "type": 0},
    ],
    "outputs": [
        {"name": b"a", "description": b"", "shape": [-1], "type": 12},
        {"name": b"b", "description": b"", "shape": [2], "type": 2},
    ],
}


def test_metadata_as_flatbuffer() -> None:
    parsed_request = parse(post(METADATA))
    assert parsed_request.response_options is MetadataFormat.FLATBUFFER
    response = DEDICATED.build_response(MODEL, parsed_request)
    assert response.headers["content-type"] == "application/octet-stream"
    document = verify(body(response), "MetadataResponse")
    for io in (*document["inputs"], *document["outputs"]):
        io.setdefault("type", 0)  # the library omits default values
    assert document == METADATA_FIELDS


def test_metadata_by_get() -> None:
    response = DEDICATED.build_response(MODEL, parse(post(b"", method="GET")))
    assert response.headers["content-type"] == "application/json"
    text = body(response).decode()
    document = json.loads(text)
    assert list(document) == ["Name", "Version", "Server", "Description", "Inputs", "Outputs"]
    assert list(document["Inputs"][0]) == ["Name", "Description", "Shape", "Type"]
    expected = json.loads(json.dumps(METADATA_FIELDS, default=bytes.decode))
    lower_case = {key.lower(): value for key, value in document.items()}
    for key in ("inputs", "outputs"):
        lower_case[key] = [{k.lower(): v for k, v in io.items()} for io in lower_case[key]]
    assert lower_case == expected
    assert text.splitlines()[1] == '    "Name": "m",'


# ---- errors


@pytest.mark.parametrize("kind", list(Kind))
def test_errors_by_status(kind: Kind) -> None:
    response = DEDICATED.build_error(GatewayError(kind, "what went wrong"), post())
    assert response.status == STATUS_BY_KIND[kind] >= 400
    assert body(response) == b"what went wrong\n"
    assert response.headers == {
        "content-type": "text/plain; charset=utf-8",
        "x-content-type-options": "nosniff",
    }


RESPONSE_ERRORS = PLUGIN.create({"model": "m", "errors": "response"})


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("message", [INFER, METADATA, b"", b"nonsense"])
def test_errors_by_response(kind: Kind, message: bytes) -> None:
    response = RESPONSE_ERRORS.build_error(GatewayError(kind, "größe"), post(message))
    assert response.status == 200
    assert response.headers["content-type"] == "application/octet-stream"
    expected = {
        "output_tensors": [],
        "errors": [{"code": STATUS_BY_KIND[kind], "message": "größe".encode()}],
    }
    assert verify(body(response), "InferResponse") == expected
    assert read_response(body(response))["errors"] == [(STATUS_BY_KIND[kind], "größe".encode())]


@pytest.mark.parametrize(
    "wire",
    [
        None,
        HttpRequest("", ""),
        post(b"", method="GET"),
        post(b"", "/control/is_ready"),
        post(b"", "/control/is_alive"),
    ],
)
def test_requests_without_a_message_are_refused_by_status(wire: HttpRequest | None) -> None:
    response = RESPONSE_ERRORS.build_error(GatewayError(Kind.CONNECT, "no"), wire)
    assert (response.status, body(response)) == (502, b"no\n")


def test_a_wrong_path_is_refused_by_response_too() -> None:
    shared = PLUGIN.create({"errors": "response"})
    response = shared.build_error(GatewayError(Kind.NOT_FOUND, "no"), post(path="/graphpipe/"))
    assert read_response(body(response))["errors"] == [(404, b"no")]


def test_errors_have_a_retry_after_header() -> None:
    error = GatewayError(Kind.OVERLOADED, "full", retry_after=1.5)
    assert DEDICATED.build_error(error, post()).headers["retry-after"] == "2"


def test_long_and_unusual_errors() -> None:
    error = GatewayError(Kind.INTERNAL, "\ud800" + "x" * 100_000)
    assert body(DEDICATED.build_error(error)) == b"?" + b"x" * (MAX_MESSAGE_CHARACTERS - 1) + b"\n"
    ((_, message),) = read_response(body(RESPONSE_ERRORS.build_error(error, post())))["errors"]
    assert message == b"?" + b"x" * (MAX_MESSAGE_CHARACTERS - 1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"model": 3}, "model is 3, not text"),
        ({"errors": "text"}, "errors is 'text'; expected one of"),
        ({"errors": ["status"]}, "expected one of"),
        ({"modle": "m"}, "'modle' is not an option; the options are model, errors"),
    ],
)
def test_invalid_options(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        PLUGIN.create(options)
