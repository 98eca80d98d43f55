"""The codec for KServe's V1 protocol: events, inferences, readiness, errors and pass-through."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from gateway_errors import raises_kind, refused
from infergate.codecs.base import ParsedRequest
from infergate.codecs.json_tensors.json_document import MAX_CONTAINERS, MAX_SLOW_BYTES_ON_LOOP
from infergate.codecs.json_tensors.row_writer import row_cost
from infergate.codecs.kserve_v1 import PLUGIN
from infergate.codecs.profiles import GENERIC
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS, Limits, NeedsOffloadError, event_loop_limits
from infergate.core.messages import (
    HealthStatus,
    InferRequest,
    InferResponse,
    ModelIndex,
    ModelIndexEntry,
    ModelIndexRequest,
    ModelMetadata,
    ModelMetadataRequest,
    ModelReadyRequest,
    RequestedOutput,
    ServerLiveRequest,
    TensorMetadata,
)
from infergate.core.tensor import Tensor, pack_bytes, tensor_from_array
from infergate.core.wire import HttpRequest, HttpResponse, join_parts
from infergate.testing.vectors import completed

CODEC: Any = PLUGIN.create({})
PATH = "/v1/models/m:predict"
JSON = {"content-type": "application/json"}
EVENT = {"ce-specversion": "1.0", "ce-id": "a1", "ce-source": "s", "ce-type": "t"}
STRUCTURED = {"specversion": "1.0", "id": "a1", "source": "s", "type": "t"}
ROWS = b'{"instances":[[1,2]]}'
TWO_STRINGS = Datatype.BYTES, (2,), pack_bytes(("ü\x00".encode(), b"\xff\xfe"))
MODEL = ModelMetadata(
    "m",
    inputs=(TensorMetadata("x", "FP32", (-1, 2)),),
    outputs=(TensorMetadata("y", "FP32", (-1, 2)),),
)
TWO_INPUTS = ModelMetadata(
    "m",
    inputs=(TensorMetadata("a", "FP32", (-1, 2)), TensorMetadata("b", "INT32", (-1,))),
    outputs=(TensorMetadata("y", "FP32", (-1,)),),
)


def post(body: bytes, headers: Any = JSON, path: str = PATH) -> HttpRequest:
    return HttpRequest("POST", path, "", headers, (body,))


def parse(wire: HttpRequest, model: ModelMetadata = MODEL) -> ParsedRequest:
    return completed(CODEC.parse_request(wire, DEFAULT_LIMITS), model)


def response_with(*values: float, name: str = "y") -> InferResponse:
    return InferResponse("m", outputs=(tensor_from_array(name, Datatype.FP64, np.array(values)),))


def body(wire: HttpRequest | HttpResponse) -> Any:
    return json.loads(join_parts(wire.body))


# ---- events


def test_the_response_to_a_binary_event_is_a_binary_event() -> None:
    response = CODEC.build_response(response_with(1.5), parse(post(ROWS, {**JSON, **EVENT})))
    assert body(response) == {"predictions": [1.5]}
    assert len(response.headers["ce-id"]) == 36
    assert response.headers == {
        **JSON,
        "ce-id": response.headers["ce-id"],
        "ce-specversion": "1.0",
        "ce-source": "io.kserve.inference.m",
        "ce-type": "io.kserve.inference.response",
    }


def test_the_response_to_a_structured_event_is_a_structured_event() -> None:
    event = json.dumps({**STRUCTURED, "time": "2026-01-01T00:00:00Z", "data": {"inputs": [[1, 2]]}})
    wire = post(event.encode(), {"content-type": "application/cloudevents+json"})
    parsed = parse(wire)
    assert isinstance(parsed.operation, InferRequest)
    assert parsed.operation.inputs[0].shape == (1, 2)
    response = CODEC.build_response(response_with(1.5), parsed)
    assert response.headers == {"content-type": "application/cloudevents+json"}
    document = body(response)
    assert document.pop("id")
    assert document == {
        "specversion": "1.0",
        "source": "io.kserve.inference.m",
        "type": "io.kserve.inference.response",
        "time": "2026-01-01T00:00:00Z",
        "data": {"predictions": [1.5]},
    }


def test_the_response_to_an_event_in_plain_json_is_not_an_event() -> None:
    event = {**STRUCTURED, "time": "2026-01-01T00:00:00Z", "data": {"instances": [[1, 2]]}}
    response = CODEC.build_response(response_with(1.5), parse(post(json.dumps(event).encode())))
    assert (response.headers, body(response)) == (JSON, {"predictions": [1.5]})


def test_the_id_of_a_response_depends_only_on_the_event() -> None:
    responses = [
        CODEC.build_response(response_with(1), parse(post(ROWS, {**JSON, **EVENT, **headers})))
        for headers in ({}, {"ce-subject": "x"}, {"ce-id": "a2"}, {"ce-source": "s2"})
    ]
    ids = [response.headers["ce-id"] for response in responses]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


def test_the_source_of_an_event_is_printable_ascii() -> None:
    wire = post(ROWS, {**JSON, **EVENT}, "/v1/models/caf%C3%A9:predict")
    response = CODEC.build_response(response_with(1), parse(wire))
    assert response.headers["ce-source"] == "io.kserve.inference.caf%C3%A9"


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"data": {}}, "specversion"),
        ({**STRUCTURED, "type": 5, "data": {}}, "'type' must be a string"),
        ({**STRUCTURED, "id": "x" * 10_000, "data": {}}, "'id' must be a string of at most"),
        ({**STRUCTURED, "specversion": "9" * 100, "data": {}}, "invalid specversion 999"),
        ({**STRUCTURED}, "the event has no data"),
        ({**STRUCTURED, "data_base64": "?"}, "data_base64 is not base64"),
        ({**STRUCTURED, "data": "text"}, "unsupported payload type"),
        ({**STRUCTURED, "data": [1]}, "unsupported payload type"),
        ([1], "neither|unsupported payload type"),
    ],
)
def test_invalid_structured_events(event: Any, expected: str) -> None:
    wire = post(json.dumps(event).encode(), {"content-type": "application/cloudevents+json"})
    with raises_kind(Kind.BAD_REQUEST, match=expected):
        parse(wire)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("application/cloudevents+json", b"1"),
        ("application/cloudevents+json", b"%d" % 10**20),
        ("application/json", b"1"),
    ],
)
@pytest.mark.parametrize(
    ("attributes", "data", "expected"),
    [
        (b'"id":"b",', b'{"instances":[%b]}', "the event has 'id' twice"),
        (b'"data":{},', b'{"instances":[%b]}', "the event has 'data' twice"),
        (b"", b'{"instances":[],"instances":[%b]}', "the body has 'instances' twice"),
    ],
)
def test_repeated_names_in_a_structured_event(
    attributes: bytes, data: bytes, expected: str, kind: str, value: bytes
) -> None:
    event = json.dumps({**STRUCTURED, "time": "now"}).encode()[:-1]
    text = event + b"," + attributes + b'"data":' + data % value + b"}"
    error = refused(parse, post(text, {"content-type": kind}))
    assert error.public == expected


def test_long_integers_in_a_structured_event() -> None:
    text = json.dumps({**STRUCTURED, "data": {"instances": [[2**70, 1]]}}).encode()
    parsed = parse(post(text, {"content-type": "application/cloudevents+json"}))
    assert isinstance(parsed.operation, InferRequest)
    assert parsed.operation.inputs[0].numpy().tolist() == [[2.0**70, 1.0]]


@pytest.mark.parametrize("kind", ["application/json", "application/cloudevents+json"])
def test_json_with_long_integers_is_limited(kind: str) -> None:
    """simdjson rejects integers over 64 bits, and the other parsers create an object per value."""
    event = json.dumps({**STRUCTURED, "time": "", "data": None})[:-5].encode()
    begin, end = (event, b"}") if "events" in kind else (b"", b"")
    text = begin + b'{"instances":[%b%d]}' + end
    many = post(text % (b"[]," * (MAX_CONTAINERS + 1), 10**20), {"content-type": kind})
    long = post(text % (b"1," * MAX_SLOW_BYTES_ON_LOOP, 10**20), {"content-type": kind})
    for read in (parse, lambda wire: CODEC.validate(wire, DEFAULT_LIMITS)):
        error = refused(read, many)
        assert error.kind is Kind.TOO_LARGE
    assert CODEC.validate(long, DEFAULT_LIMITS)
    with pytest.raises(NeedsOffloadError):
        CODEC.validate(long, event_loop_limits(DEFAULT_LIMITS))


@pytest.mark.parametrize("value", [b"1", b"%d" % 10**20])
def test_repeated_rows_do_not_pass_through(value: bytes) -> None:
    """The server would read the last of the repeated members."""
    wire = post(b'{"instances":[1],"instances":[%b]}' % value)
    error = refused(CODEC.validate, wire, DEFAULT_LIMITS)
    assert "'instances' twice" in error.public


# ---- responses


def test_nan_is_null() -> None:
    response = CODEC.build_response(response_with(float("nan"), 1.0), parse(post(ROWS)))
    assert bytes(join_parts(response.body)) == b'{"predictions":[null,1.0]}'


def test_outputs_without_common_rows_are_columns() -> None:
    outputs = (response_with(1.0, 2.0).outputs[0], response_with(3.0, name="z").outputs[0])
    response = CODEC.build_response(InferResponse("m", outputs=outputs), parse(post(ROWS)))
    assert body(response) == {"predictions": {"y": [1.0, 2.0], "z": [3.0]}}
    model = ModelMetadata(
        "m", outputs=(TensorMetadata("y", "FP64", (-1,)), TensorMetadata("z", "FP64", (-1,)))
    )
    parsed_response = CODEC.parse_response(response, InferRequest("m"), DEFAULT_LIMITS, model)
    assert [tensor.numpy().tolist() for tensor in parsed_response.outputs] == [[1.0, 2.0], [3.0]]


def test_a_shape_of_many_empty_lists_is_refused() -> None:
    tensor = Tensor("y", Datatype.FP32, (2**40, 0), b"")
    with raises_kind(Kind.TOO_LARGE, match="'y' has no elements, but"):
        CODEC.build_response(InferResponse("m", outputs=(tensor,)), parse(post(ROWS)))


def test_bytes_that_are_not_text_are_base64() -> None:
    tensor = Tensor("y", Datatype.BYTES, (2,), pack_bytes((b"\xff", b"a")))
    response = CODEC.build_response(InferResponse("m", outputs=(tensor,)), parse(post(ROWS)))
    assert body(response) == {"predictions": [{"b64": "/w=="}, "a"]}


def readiness_response(*entries: ModelIndexEntry) -> Any:
    parsed = parse(HttpRequest("GET", "/v1/models/m"))
    assert parsed.operation == ModelIndexRequest(model="m")
    return CODEC.build_response(ModelIndex(entries), parsed)


TWO_VERSIONS = ModelIndexEntry("m", "2", "READY"), ModelIndexEntry("m", "10", "UNAVAILABLE", "old")


@pytest.mark.parametrize(
    ("entries", "versions"),
    [
        (TWO_VERSIONS, [("10", "END", "old"), ("2", "AVAILABLE", "")]),
        *(
            ((ModelIndexEntry("m", version, "READY"),), [("1", "AVAILABLE", "")])
            for version in ("", "v2", "9" * 5000)
        ),
    ],
)
def test_readiness_has_the_members_of_both_protocols(
    entries: tuple[ModelIndexEntry, ...], versions: list[tuple[str, str, str]]
) -> None:
    response = readiness_response(*entries)
    statuses = [
        {"version": version, "state": state, "status": {"error_code": "OK", "error_message": text}}
        for version, state, text in versions
    ]
    document = {"name": "m", "ready": True, "model_version_status": statuses}
    assert (response.status, body(response)) == (200, document)


def test_a_model_without_ready_versions_is_not_ready() -> None:
    response = readiness_response(ModelIndexEntry("m", "1", "UNAVAILABLE"))
    assert response.status == 503
    assert body(response) == {"error": "Model with name m is not ready."}


def test_readiness_and_liveness_of_other_codecs_requests() -> None:
    for operation, ok, status, key in (
        (ModelReadyRequest("m"), True, 200, "ready"),
        (ModelReadyRequest("m"), False, 503, "error"),
        (ServerLiveRequest(), True, 200, "status"),
        (ServerLiveRequest(), False, 503, "status"),
    ):
        response = CODEC.build_response(HealthStatus(ok=ok), ParsedRequest(operation))
        assert response.status == status
        assert key in body(response)


@pytest.mark.parametrize(
    ("error", "wire", "status", "document"),
    [
        (
            GatewayError(Kind.NOT_FOUND, "no route for model 'm'"),
            post(ROWS),
            404,
            {"error": "Model with name m does not exist."},
        ),
        (refused(parse, post(ROWS, JSON, "/v1/x")), None, 404, {"detail": "Not Found"}),
        (refused(parse, HttpRequest("PUT", PATH)), None, 405, {"detail": "Method Not Allowed"}),
        (GatewayError(Kind.BACKEND_ERROR, "boom"), post(ROWS), 500, {"error": "boom"}),
        (GatewayError(Kind.RATE_LIMITED, "slow", retry_after=2), None, 429, {"error": "slow"}),
    ],
)
def test_errors_have_the_format_of_kserve(
    error: GatewayError, wire: HttpRequest | None, status: int, document: Any
) -> None:
    response = CODEC.build_error(error, wire)
    assert (response.status, body(response)) == (status, document)
    assert ("allow" in response.headers) == (status == 405)
    assert ("retry-after" in response.headers) == (status == 429)


# ---- requests


@pytest.mark.parametrize(
    ("text", "model", "mentions"),
    [
        (b'{"instances":[{"a":[1,2],"b":1},{"a":[1,2]}]}', TWO_INPUTS, ["instances[1]", "a,b"]),
        (b'{"instances":[{"a":[1,2],"b":1},[1]]}', TWO_INPUTS, ["item 1"]),
        (b'{"instances":[{"a":[1,2],"b":1.5}]}', TWO_INPUTS, ["'b'", "INT32"]),
        (b'{"instances":[{"a":[1,2],"b":1,"c":1}]}', TWO_INPUTS, ["instances[0]", "c"]),
        (b'{"instances":[[1,2]]}', TWO_INPUTS, ["multiple input tensors", "a, b"]),
        (b'{"instances":' + b"[" * 90 + b"1" + b"]" * 90 + b"}", MODEL, ["'x'", "dimensions"]),
        (b"[" * 100_000, MODEL, ["Unrecognized request format", "100 levels deep"]),
    ],
)
def test_errors_name_the_row_and_the_tensor(
    text: bytes, model: ModelMetadata, mentions: list[str]
) -> None:
    error = refused(parse, post(text), model)
    assert error.kind is Kind.BAD_REQUEST
    for mention in mentions:
        assert mention in error.public


def test_the_size_of_json_is_limited() -> None:
    wire = post(ROWS)
    error = refused(CODEC.parse_request, wire, Limits(json=5))
    assert (error.kind, error.limit) == (Kind.TOO_LARGE, "json")
    read = CODEC.parse_response
    error = refused(read, HttpResponse(200, {}, [ROWS]), InferRequest("m"), Limits(json=5), MODEL)
    assert error.kind is Kind.TOO_LARGE


def test_a_model_without_declared_outputs_is_not_the_servers_fault() -> None:
    wire, model = HttpResponse(200, {}, [b'{"predictions":[1]}']), ModelMetadata("m")
    error = refused(CODEC.parse_response, wire, InferRequest("m"), DEFAULT_LIMITS, model)
    assert error.kind is Kind.UNSUPPORTED
    assert "models.<name>.outputs" in error.public


def test_unknown_datatypes_are_named() -> None:
    model = ModelMetadata("m", inputs=(TensorMetadata("x", "COMPLEX64", (-1,)),))
    with pytest.raises(GatewayError, match=r"tensor 'x': .* unknown datatype 'COMPLEX64'"):
        parse(post(ROWS), model)


def test_a_request_to_a_server_has_rows() -> None:
    inputs = parse(post(b'{"instances":[{"a":[1,2],"b":3}]}'), TWO_INPUTS).operation.inputs  # type: ignore[union-attr]
    wire = CODEC.build_request(InferRequest("m", "7", inputs=inputs), GENERIC, TWO_INPUTS)
    assert (wire.path, body(wire)) == (PATH, {"instances": [{"a": [1.0, 2.0], "b": 3}]})
    (x,) = parse(post(ROWS)).operation.inputs  # type: ignore[union-attr]
    wire = CODEC.build_request(InferRequest("m", inputs=(x,)), GENERIC, MODEL)
    assert body(wire) == {"instances": [[1.0, 2.0]]}


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ((), "model 'm' has the inputs ['x']; the request has []"),
        (
            (Tensor("z", Datatype.FP32, (1, 2), bytes(8)),),
            "model 'm' has the inputs ['x']; the request has ['z']",
        ),
        (
            tuple(Tensor(name, Datatype.FP32, (1, 2), bytes(8)) for name in "xz"),
            "model 'm' has the inputs ['x']; the request has ['x', 'z']",
        ),
        (
            (Tensor("x", Datatype.INT32, (1, 2), bytes(8)),),
            "input 'x' must have the datatype FP32; the request has INT32",
        ),
        (
            (Tensor("x", Datatype.FP32, (1, 2, 1), bytes(8)),),
            "input 'x' must have 2 dimensions; the request has 3",
        ),
    ],
)
def test_inputs_that_do_not_match_are_refused(inputs: tuple[Tensor, ...], expected: str) -> None:
    error = refused(CODEC.build_request, InferRequest("m", inputs=inputs), GENERIC, MODEL)
    assert (error.kind, error.public) == (Kind.BAD_REQUEST, expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_numbers_do_not_reach_a_server(value: float) -> None:
    tensor = tensor_from_array("x", Datatype.FP32, np.array([[1.0, value]]))
    request = InferRequest("m", inputs=(tensor,))
    with raises_kind(Kind.UNSUPPORTED, match="'x' has NaN"):
        CODEC.build_request(request, GENERIC, MODEL)


def test_a_model_without_declared_outputs() -> None:
    wire = HttpResponse(200, JSON, [b'{"predictions":[1]}'])
    with pytest.raises(GatewayError, match=r"models\.<name>\.outputs"):
        CODEC.parse_response(wire, InferRequest("m"), DEFAULT_LIMITS, ModelMetadata("m"))


def test_requested_outputs_are_selected() -> None:
    model = ModelMetadata(
        "m", outputs=(TensorMetadata("a", "INT64", (-1,)), TensorMetadata("b", "INT64", (-1,)))
    )
    response = HttpResponse(200, JSON, [b'{"predictions":[{"a":1,"b":2}]}'])
    for names, expected in ((("b",), ["b"]), (("b", "a"), ["b", "a"]), ((), ["a", "b"])):
        request = InferRequest("m", outputs=tuple(map(RequestedOutput, names)))
        parsed_response = CODEC.parse_response(response, request, DEFAULT_LIMITS, model)
        assert [tensor.name for tensor in parsed_response.outputs] == expected
    unknown = InferRequest("m", outputs=(RequestedOutput("c"),))
    error = refused(CODEC.parse_response, response, unknown, DEFAULT_LIMITS, model)
    assert "no output 'c'" in error.public


# ---- the cost of messages


@pytest.mark.parametrize(
    "tensors",
    [
        (
            tensor_from_array(
                "y", Datatype.FP64, np.array([[0.1], [-1.7976931348623157e308], [5e-324]])
            ),
        ),
        (Tensor("y", Datatype.FP32, (2, 1, 1, 1), bytes(8)), Tensor("é" * 9, *TWO_STRINGS)),
        (Tensor("y", Datatype.BOOL, (2,), b"\0\1"), Tensor("z", Datatype.INT8, (2, 1), b"\x80\0")),
        (Tensor("y", *TWO_STRINGS),),
    ],
)
def test_the_size_of_a_response_is_bounded(tensors: tuple[Tensor, ...]) -> None:
    response = InferResponse("m", outputs=tensors)
    parsed = parse(post(ROWS))
    low, high = CODEC.response_size(response, parsed)
    size = len(join_parts(CODEC.build_response(response, parsed).body))
    assert low <= size <= high + 64
    request = InferRequest("m", inputs=tensors)
    wire = CODEC.build_request(request, GENERIC, ModelMetadata("m"))
    assert len(join_parts(wire.body)) <= CODEC.max_backend_text_bytes(request, GENERIC) + 64
    assert CODEC.backend_text_bytes(request, GENERIC) == row_cost(tensors)
    assert CODEC.response_text_bytes(response, parsed) == CODEC.backend_text_bytes(request, GENERIC)


def test_the_size_of_messages_other_than_inferences() -> None:
    wire = post(ROWS, JSON, "/v1/models/m:explain")
    parsed = CODEC.parse_request(wire, DEFAULT_LIMITS)
    explanation = HttpResponse(200, JSON, [b"{}"])
    response = CODEC.parse_response(explanation, parsed.operation, DEFAULT_LIMITS)
    assert CODEC.response_size(response, parsed) == (2, 6)
    assert CODEC.request_text_bytes(wire) == len(ROWS)
    assert (CODEC.json_bytes(wire, 5), CODEC.json_bytes(wire, 500)) == (5, len(ROWS))
    assert CODEC.rewrite_bytes(HttpResponse(200, JSON, [ROWS]), wire) == 0
    assert CODEC.response_text_bytes(HealthStatus(ok=True), parsed) == 0


def test_messages_that_the_protocol_cannot_express_are_refused() -> None:
    for call in (
        lambda: CODEC.build_response(ModelMetadata("m"), ParsedRequest(ServerLiveRequest())),
        lambda: CODEC.build_request(ModelMetadataRequest("m"), GENERIC),
    ):
        error = refused(call)
        assert error.kind is Kind.UNSUPPORTED
    refused(CODEC.build_request, ModelReadyRequest(""), GENERIC)
    empty = InferResponse("m")
    parsed = CODEC.parse_request(post(ROWS, JSON, "/v1/models/m:explain"), DEFAULT_LIMITS)
    refused(CODEC.build_response, empty, parsed)


# ---- messages that pass through


def test_a_request_passes_through_without_metadata() -> None:
    text = b'{"instances": [{"any": {"thing": null}}, [1, [2]]], "parameters": {"p": 1}}'
    validated = CODEC.validate(post(text, {**JSON, **EVENT}), DEFAULT_LIMITS)
    upstream = CODEC.rewrite_request(validated, "other", "", GENERIC)
    assert (upstream.path, upstream.headers) == ("/v1/models/other:predict", JSON)
    assert bytes(join_parts(upstream.body)) == text
    response = HttpResponse(200, JSON, [b'{"any":1}'])
    response = CODEC.rewrite_response(response, validated, "", "", DEFAULT_LIMITS)
    assert body(response) == {"any": 1}
    assert response.headers["ce-source"] == "io.kserve.inference.m"


def test_a_version_needs_translation() -> None:
    validated = CODEC.validate(post(ROWS), DEFAULT_LIMITS)
    assert CODEC.rewrite_request(validated, "m", "2", GENERIC) is None


def test_an_event_that_is_not_validated_reaches_the_server() -> None:
    wire = post(ROWS, {**JSON, **EVENT, "x-other": "1"})
    upstream = CODEC.rewrite_request(wire, "other", "", GENERIC)
    assert upstream.headers == {**JSON, **EVENT}
    response = HttpResponse(200, {**JSON, **EVENT, "date": "now"}, [b"{}"])
    rewritten = CODEC.rewrite_response(response, wire, "", "", DEFAULT_LIMITS)
    assert rewritten.headers == upstream.headers


def test_errors_of_a_server_pass_through() -> None:
    response = HttpResponse(500, JSON, [b'{"error":"ValueError : x"}'])
    error = refused(CODEC.rewrite_response, response, post(ROWS), "", "", DEFAULT_LIMITS)
    assert (error.kind, error.public) == (Kind.BACKEND_ERROR, "ValueError : x")


def test_explanations_are_forwarded() -> None:
    wire = post(b'{"instances": [[1, 2]]}', JSON, "/v1/models/m:explain")
    parsed = CODEC.parse_request(wire, DEFAULT_LIMITS)
    upstream = CODEC.build_request(parsed.operation, GENERIC)
    assert (upstream.path, upstream.body) == ("/v1/models/m:explain", [b'{"instances": [[1, 2]]}'])
    response = HttpResponse(200, JSON, [b'{"explanations": [0.1]}'])
    parsed_response = CODEC.parse_response(response, parsed.operation, DEFAULT_LIMITS)
    assert body(CODEC.build_response(parsed_response, parsed)) == {"explanations": [0.1]}
    with pytest.raises(GatewayError, match="Could not find explainer_host"):
        parsed.operation.parameters.is_passed_to("v2-rest")


@pytest.mark.parametrize(
    ("response", "public"),
    [
        (HttpResponse(502, {}, [b"<html>no</html>"]), "the backend responded with HTTP 502"),
        (HttpResponse(500, {}, [b"plain text\nmore"]), "plain text"),
        (HttpResponse(404, {}, [b'{"detail":"Not Found"}']), "Not Found"),
        (HttpResponse(422, {}, [b'{"detail":[{"msg":"x"}]}']), '[{"msg": "x"}]'),
        (HttpResponse(500, {}, [b"[" * 9999]), "[" * 2000),
        (HttpResponse(403, {}, [b'{"message":"x"}']), '{"message":"x"}'),
        (HttpResponse(503, {}, [b""]), "the backend responded with HTTP 503"),
    ],
)
def test_error_bodies_of_servers(response: HttpResponse, public: str) -> None:
    error = refused(CODEC.parse_response, response, InferRequest("m"), DEFAULT_LIMITS, MODEL)
    assert error.public == public


@pytest.mark.parametrize(
    ("operation", "response"),
    [
        (ModelReadyRequest("m"), HttpResponse(200, {}, [b'{"ready":false}'])),
        (ModelReadyRequest("m"), HttpResponse(503, {}, [b"{}"])),
        (ServerLiveRequest(), HttpResponse(500)),
    ],
)
def test_servers_that_are_not_ready_or_live(operation: Any, response: HttpResponse) -> None:
    assert CODEC.parse_response(response, operation, DEFAULT_LIMITS) == HealthStatus(ok=False)


def test_the_models_of_a_server_are_listed() -> None:
    response = HttpResponse(200, {}, [b'{"models":["a","b"]}'])
    index = CODEC.parse_response(response, ModelIndexRequest(), DEFAULT_LIMITS)
    assert [entry.name for entry in index.models] == ["a", "b"]
    for text in (b'{"models":[1]}', b"[]", b'{"models":{}}', b"{}"):
        with raises_kind(Kind.BACKEND_GARBAGE):
            CODEC.parse_response(HttpResponse(200, {}, [text]), ModelIndexRequest(), DEFAULT_LIMITS)
    assert CODEC.build_request(ModelIndexRequest(), GENERIC).path == "/v1/models"


def test_a_liveness_request_without_credentials_is_unauthenticated() -> None:
    error = refused(CODEC.parse_response, HttpResponse(401), ServerLiveRequest(), DEFAULT_LIMITS)
    assert error.kind is Kind.UNAUTHENTICATED
