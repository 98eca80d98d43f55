"""The REST codec for TensorFlow Serving: errors, mapped names, tensors, costs and forwarding."""

from __future__ import annotations

import gzip
import json
import pickle
from dataclasses import replace
from typing import Any

import pytest

from gateway_errors import raises_kind, refused
from infergate.codecs.base import ParsedRequest
from infergate.codecs.http_status import STATUS_BY_KIND
from infergate.codecs.profiles import GENERIC
from infergate.codecs.tfs import REST
from infergate.codecs.tfs.rest_predict import without_signature
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.limits import DEFAULT_LIMITS, KIB, NeedsOffloadError, event_loop_limits
from infergate.core.messages import (
    OPERATION_NAMES,
    HealthStatus,
    InferRequest,
    InferResponse,
    ModelIndex,
    ModelIndexEntry,
    ModelIndexRequest,
    ModelLoadRequest,
    ModelMetadata,
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelSignature,
    Operation,
    RequestedOutput,
    ServerLiveRequest,
    ServerMetadata,
    ServerMetadataRequest,
    ServerReadyRequest,
    TensorMetadata,
)
from infergate.core.tensor import Tensor
from infergate.core.wire import HttpRequest, HttpResponse, join_parts

CODEC: Any = REST.create({})
MAPPING: Any = REST.create(
    {"labels": {"m": {"stable": "3"}}, "signatures": {"m": {"embed": "m-embed"}}}
)
X, Y = TensorMetadata("x", "FP32", (-1, 3)), TensorMetadata("y", "FP32", (-1, 3))
COUNT = TensorMetadata("n", "INT64", (-1,))
MODEL = ModelMetadata(
    "m", ("1",), "tensorflow_serving", (X,), (Y,),
    signatures=(ModelSignature("count", "", (COUNT,), (COUNT,)),),
)  # fmt: skip
PREDICT = "/v1/models/m:predict"


def post(document: Any, path: str = PREDICT, **headers: str) -> HttpRequest:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return HttpRequest("POST", path, headers=headers, body=(body,))


def parse(wire: HttpRequest, codec: Any = CODEC, model: ModelMetadata = MODEL) -> Any:
    return codec.parse_request(wire, DEFAULT_LIMITS).complete(model)


def document_of(wire: HttpResponse) -> Any:
    return json.loads(bytes(join_parts(wire.body)))


# ---- errors and requests without a model


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_has_a_status(kind: Kind) -> None:
    response = CODEC.build_error(GatewayError(kind, "why"))
    assert (response.status, document_of(response)) == (STATUS_BY_KIND[kind], {"error": "why"})


@pytest.mark.parametrize(
    ("wire", "text"),
    [
        (post({}), "Servable not found for request: Latest(m)"),
        (post({}, "/v1/models/m/versions/7:predict"), ("Servable not found for request: "
         "Specific(m, 7)")),
        (post({}, "/v1/models/m/versions/0:predict"), "Servable not found for request: Latest(m)"),
        (HttpRequest("GET", "/v1/models/m"), "Could not find any versions of model m"),
        (HttpRequest("GET", "/v1/models/m/versions/7"), "Could not find version 7 of model m"),
        (HttpRequest("GET", "/v1/models/m/metadata"), "Servable not found for request: Latest(m)"),
        (HttpRequest("GET", "/v1/models"), "no route"),
        (HttpRequest("GET", "/v1/x"), "no route"),
    ],
)  # fmt: skip
def test_an_unknown_model_has_the_servers_text(wire: HttpRequest, text: str) -> None:
    response = CODEC.build_error(GatewayError(Kind.NOT_FOUND, "no route"), wire)
    assert (response.status, document_of(response)) == (404, {"error": text})


def test_a_request_without_a_model() -> None:
    parsed = CODEC.parse_request(HttpRequest("GET", "/v1/models"), DEFAULT_LIMITS)
    assert parsed.operation == ServerReadyRequest()
    built = CODEC.build_response(HealthStatus(ok=True), parsed)
    assert (built.status, document_of(built)) == (400, {"error": "Missing model name in request."})
    assert CODEC.build_response(HealthStatus(ok=False), parsed).status == 503


def test_a_preflight_request() -> None:
    wire = HttpRequest("OPTIONS", PREDICT, headers={"origin": "https://h"})
    parsed = CODEC.parse_request(wire, DEFAULT_LIMITS)
    assert parsed.operation == ServerLiveRequest()
    assert CODEC.build_response(HealthStatus(ok=True), parsed).status == 200
    with raises_kind(Kind.BAD_REQUEST, "Malformed request: OPTIONS /v1/models/m:predict"):
        CODEC.summarize(HttpRequest("OPTIONS", PREDICT))


def test_names_that_are_not_utf8() -> None:
    with raises_kind(Kind.BAD_REQUEST, "not UTF-8"):
        CODEC.summarize(HttpRequest("GET", "/v1/models/%ff"))


# ---- signatures and labels


def test_a_signature_of_the_model() -> None:
    parsed = parse(post({"signature_name": "count", "instances": [1, 2]}))
    (tensor,) = parsed.operation.inputs
    assert (tensor.name, tensor.datatype) == ("n", Datatype.INT64)
    assert parsed.operation.parameters == {"signature_name": "count"}
    for protocol in ("tfs-rest", "tfs-grpc"):
        assert parsed.operation.parameters.is_passed_to(protocol)
    assert refused(parsed.operation.parameters.is_passed_to, "v2-grpc").kind is Kind.BAD_REQUEST
    wire = HttpResponse(200, body=(b'{"outputs": [4, 5]}',))
    response = CODEC.parse_response(wire, parsed.operation, DEFAULT_LIMITS, MODEL)
    assert response.outputs[0].datatype is Datatype.INT64


@pytest.mark.parametrize("position", ["start", "end", "compressed"])
def test_the_access_check_sees_the_mapped_model(position: str) -> None:
    rows = [[0.5] * 3] * 20_000
    document = {"signature_name": "embed", "instances": rows}
    if position == "end":
        document = dict(reversed(document.items()))
    wire = post(document)
    if position == "compressed":
        wire = post(gzip.compress(wire.body[0]), **{"content-encoding": "gzip"})
    summary = MAPPING.summarize(wire)
    assert summary.model == "m-embed"
    operation = parse(wire, MAPPING).operation
    assert (operation.model, operation.parameters) == ("m-embed", {})
    assert MAPPING.rewrite_request(wire, "other", "", GENERIC) is None  # the body has the signature


def test_the_signature_is_found_only_at_the_ends_of_the_body() -> None:
    template = b'{"a": "%b", "signature_name": "embed", "b": "%b", "instances": [[1, 2, 3]]}'
    hidden = template % (b"." * 70 * KIB, b"." * 70 * KIB)
    for body in (hidden, b'{"x": "\\"signature_name\\": \\"embed\\"", "instances": [[1, 2, 3]]}'):
        wire = post(body)
        MAPPING.summarize(wire)
        if body is hidden:
            with raises_kind(Kind.BAD_REQUEST, "'signature_name' must be in the first or last"):
                parse(wire, MAPPING)
        else:
            assert parse(wire, MAPPING).operation.model == "m"
    broken = post(b"not gzip", **{"content-encoding": "gzip"})
    assert MAPPING.summarize(broken).model == "m"
    assert MAPPING.summarize(post(b'{"signature_name": "\\x"}')).model == "m"


def test_labels_become_versions_or_parameters() -> None:
    wire = post({"instances": [[1, 2, 3]]}, "/v1/models/m/labels/stable:predict")
    assert MAPPING.summarize(wire).version == "3"
    assert parse(wire, MAPPING).operation.version == "3"
    wire = post({"instances": [[1, 2, 3]]}, "/v1/models/m/labels/canary:predict")
    assert parse(wire, MAPPING).operation.parameters == {"version_label": "canary"}
    rewritten = MAPPING.rewrite_request(wire, "other/one", "", GENERIC)
    assert rewritten.path == "/v1/models/other%2Fone/labels/canary:predict"
    assert (
        MAPPING.rewrite_request(wire, "o", "4", GENERIC).path == "/v1/models/o/versions/4:predict"
    )


# ---- tensors


def test_a_model_without_inputs() -> None:
    with raises_kind(Kind.UNSUPPORTED, "declare them under 'models'"):
        parse(post({"instances": [1]}), model=ModelMetadata("m"))


def test_datatypes_that_are_not_canonical() -> None:
    model = replace(MODEL, inputs=(replace(X, datatype="DT_COMPLEX64"),))
    with raises_kind(Kind.UNSUPPORTED, "tensor 'x': .* unknown datatype 'DT_COMPLEX64'"):
        parse(post({"instances": [1]}), model=model)


def test_declared_dimensions_complete_an_empty_tensor() -> None:
    (tensor,) = parse(post({"inputs": []})).operation.inputs
    assert tensor.shape == (0, 3)
    wire = HttpResponse(200, body=(b'{"outputs": []}',))
    response = CODEC.parse_response(wire, InferRequest("m"), DEFAULT_LIMITS, MODEL)
    assert response.outputs[0].shape == (0, 3)
    empty = Tensor("x", Datatype.FP32, (0, 3), b"")
    with raises_kind(Kind.UNSUPPORTED, r"JSON cannot express shape \[0, 3\]"):
        CODEC.build_request(InferRequest("m", inputs=(empty,)), GENERIC, MODEL)


def test_requested_outputs_are_selected_from_the_response() -> None:
    model = replace(MODEL, outputs=(Y, COUNT))
    wire = HttpResponse(200, body=(b'{"outputs": {"y": [[1, 2, 3]], "n": [1]}}',))
    request = InferRequest("m", outputs=(RequestedOutput("n"),))
    response = CODEC.parse_response(wire, request, DEFAULT_LIMITS, model)
    assert [tensor.name for tensor in response.outputs] == ["n"]


def test_requested_outputs_that_the_signature_does_not_have() -> None:
    request = InferRequest("m", outputs=(RequestedOutput("y"), RequestedOutput("z")))
    text = "output tensor alias not found in signature: z Outputs expected to be in the set {y}."
    wire = HttpResponse(200, body=(b'{"outputs": [[1, 2, 3]]}',))
    for error in (
        refused(CODEC.build_request, request, GENERIC, MODEL),
        refused(CODEC.parse_response, wire, request, DEFAULT_LIMITS, MODEL),
    ):
        assert (error.kind, error.public) == (Kind.BAD_REQUEST, text)
    other = replace(request, parameters={"signature_name": "count"})
    error = refused(CODEC.build_request, other, GENERIC, MODEL)
    assert error.public.endswith("in signature: y Outputs expected to be in the set {n}.")


def test_json_over_the_limit_is_refused() -> None:
    limits = replace(DEFAULT_LIMITS, json=10)
    with raises_kind(Kind.TOO_LARGE, "exceed the limit of 10") as caught:
        CODEC.parse_request(post({"instances": [1]}), limits).complete(MODEL)
    assert caught.value.limit == "json"


# ---- costs


def test_the_costs_of_messages_are_estimated() -> None:
    wire = post({"instances": [[1, 2, 3]] * 1000})
    size = len(wire.body[0])
    CODEC.summarize(wire)
    assert CODEC.request_text_bytes(wire) == 0  # the body is parsed with the metadata
    assert CODEC.parse_request(wire, DEFAULT_LIMITS).text_bytes == size
    compressed = post(gzip.compress(wire.body[0]), **{"content-encoding": "gzip"})
    assert CODEC.parse_request(compressed, DEFAULT_LIMITS).text_bytes >= size
    assert CODEC.validate(compressed, DEFAULT_LIMITS).text_bytes >= size
    classify = post({"examples": [1]}, "/v1/models/m:classify")
    CODEC.summarize(classify)
    assert CODEC.request_text_bytes(classify) == len(classify.body[0])
    assert CODEC.request_text_bytes(HttpRequest("GET", "/v1/models/m")) == 0
    assert CODEC.json_bytes(wire, 5) == 5
    request = parse(wire).operation
    assert CODEC.backend_text_bytes(request, GENERIC) == 12_000 + 2 * 1000  # rows have 2 brackets
    assert CODEC.max_backend_text_bytes(request, GENERIC) > 12_000
    response = InferResponse("m", outputs=request.inputs)
    parsed = ParsedRequest(request)
    assert CODEC.response_text_bytes(response, parsed) == 12_000 + 2 * 1000
    assert CODEC.response_text_bytes(MODEL, parsed) == 0
    low, high = CODEC.response_size(response, parsed)
    assert low <= sum(map(len, CODEC.build_response(response, parsed).body)) <= high
    assert CODEC.rewrite_bytes(HttpResponse(200, body=(b"x",)), wire) == 0


def test_response_cost_counts_the_names_in_rows() -> None:
    outputs = tuple(Tensor(name, Datatype.INT8, (1000,), bytes(1000)) for name in ("y", "z"))
    response = InferResponse("m", outputs=outputs)
    costs = [
        CODEC.response_text_bytes(response, parse(post({key: [[1, 2, 3]]})))
        for key in ("instances", "inputs")
    ]
    assert costs == [2 * 1000 + 1000 * 2 * 5, 2 * 1000]


def test_the_event_loop_leaves_many_rows_to_a_helper() -> None:
    wire = post({"instances": [{"x": [1, 2, 3]}] * 10_000})
    partial = CODEC.parse_request(wire, event_loop_limits(DEFAULT_LIMITS))
    with pytest.raises(NeedsOffloadError):
        partial.complete(MODEL)


# ---- calls that only servers of the API support


def test_classify_and_regress() -> None:
    for action in ("classify", "regress"):
        body = {"signature_name": "s", "examples": [{"a": 1}]}
        wire = post(body, f"/v1/models/m/labels/stable:{action}")
        operation = CODEC.parse_request(wire, DEFAULT_LIMITS).operation
        assert operation.parameters.is_passed_to("tfs-rest")
        for protocol in ("tfs-grpc", "v2-rest"):
            error = refused(operation.parameters.is_passed_to, protocol)
            assert (error.kind, error.public.split()[0]) == (Kind.UNSUPPORTED, action)
        upstream = CODEC.build_request(operation, GENERIC)
        assert upstream.path == f"/v1/models/m/labels/stable:{action}"
        assert json.loads(upstream.body[0]) == body
        results = HttpResponse(200, body=(b'{"results": [1.0]}',))
        response = CODEC.parse_response(results, operation, DEFAULT_LIMITS)
        parsed = CODEC.parse_request(wire, DEFAULT_LIMITS)
        assert document_of(CODEC.build_response(response, parsed)) == {"results": [1.0]}
        with raises_kind(Kind.BACKEND_GARBAGE):
            CODEC.build_response(InferResponse("m"), parsed)
    for signature in (5, None, ["embed"]):
        with raises_kind(Kind.BAD_REQUEST, "'signature_name' key must be a string value"):
            wire = post({"signature_name": signature, "examples": [1]}, "/v1/models/m:classify")
            CODEC.parse_request(wire, DEFAULT_LIMITS)
    with raises_kind(Kind.BAD_REQUEST, "When method is classify, key 'examples' is expected"):
        CODEC.parse_request(post({}, "/v1/models/m:classify"), DEFAULT_LIMITS)


@pytest.mark.parametrize("action", ["classify", "regress"])
def test_signatures_of_classify_and_regress_are_mapped(action: str) -> None:
    path = f"/v1/models/m:{action}"
    codec: Any = REST.create({"signatures": {"m": {"embed": "m2", "serving_default": "m3"}}})
    for signature, model in (("embed", "m2"), ("serving_default", "m3"), ("", "m3"), ("s", "m")):
        body = {"signature_name": signature, "examples": [{"a": 1}]}
        wire = post(body, path)
        assert codec.summarize(wire).model == model
        parsed = codec.parse_request(wire, DEFAULT_LIMITS)
        assert parsed.operation.model == model
        assert codec.validate(wire, DEFAULT_LIMITS) is wire
        is_removed = signature in {"embed", "serving_default"}
        upstream = codec.build_request(parsed.operation, GENERIC)
        expected = {"examples": [{"a": 1}]} if is_removed else body
        assert (upstream.path, document_of(upstream)) == (f"/v1/models/{model}:{action}", expected)
        rewritten = codec.rewrite_request(wire, model, "", GENERIC)
        assert rewritten is None if is_removed else document_of(rewritten) == body
    hidden = b'{"a": "%b", "signature_name": "embed", "b": "%b", "examples": [1]}'
    wire = post(hidden % (b"." * 70 * KIB, b"." * 70 * KIB), path)
    assert codec.summarize(wire).model == "m3"
    with raises_kind(Kind.BAD_REQUEST, "'signature_name' must be in the first or last"):
        codec.parse_request(wire, DEFAULT_LIMITS)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"signature_name": "s", "examples": [1]}', b'{ "examples": [1]}'),
        (b'{"examples": [1] , "signature_name" : "s" }', b'{"examples": [1] }'),
        (b'{"examples":[1],"signature_name":"s","context":{}}', b'{"examples":[1],"context":{}}'),
        (b'{"a":"}]","signature_name":"s"}', b'{"a":"}]"}'),
        (b'{"signature_name":"s"}', b"{}"),
        (
            b'{"examples":[{"signature_name":"s"}],"signature_name":"s"}',
            b'{"examples":[{"signature_name":"s"}]}',
        ),
        (b'{"examples":[{"signature_name":"s"}]}', b'{"examples":[{"signature_name":"s"}]}'),
    ],
)
def test_only_the_signature_of_the_request_is_removed(body: bytes, expected: bytes) -> None:
    assert without_signature(body) == expected


# ---- servers


@pytest.mark.parametrize(
    "operation",
    [ServerMetadataRequest(), ModelLoadRequest("m"), ModelIndexRequest(), ModelReadyRequest("")],
)
def test_operations_without_a_request(operation: Operation) -> None:
    name = OPERATION_NAMES[type(operation)]
    with raises_kind(Kind.UNSUPPORTED, match=f"no list of models|no request for {name}$"):
        CODEC.build_request(operation, GENERIC)


def test_responses_that_the_api_does_not_have() -> None:
    with raises_kind(Kind.UNSUPPORTED, "cannot express ServerMetadata"):
        CODEC.build_response(ServerMetadata("n", "1"), ParsedRequest(ServerMetadataRequest()))


def test_invalid_names_and_versions_in_paths_are_refused() -> None:
    with raises_kind(Kind.UNSUPPORTED, "a path cannot contain"):
        CODEC.build_request(ModelReadyRequest(".."), GENERIC)
    with raises_kind(Kind.BAD_REQUEST, "version 'v2' of model 'm' is not a number"):
        CODEC.build_request(ModelReadyRequest("m", "v2"), GENERIC)
    with raises_kind(Kind.BAD_REQUEST, "not valid Unicode"):
        CODEC.build_request(ModelReadyRequest("\ud800"), GENERIC)


def test_health_of_a_server() -> None:
    for status, ok in ((200, True), (400, True), (404, True), (501, True), (503, False)):
        health = CODEC.parse_response(HttpResponse(status), ServerLiveRequest(), DEFAULT_LIMITS)
        assert health == HealthStatus(ok=ok)
    with raises_kind(Kind.BACKEND_ERROR):
        CODEC.parse_response(HttpResponse(500), ServerReadyRequest(), DEFAULT_LIMITS)


def test_errors_of_a_server() -> None:
    for body, text in (
        (b'{"error": "why"}', "why"), (b'{"error": 5}', "HTTP 400"), (b"[]", "HTTP 400"),
        (b"\xff", "HTTP 400"),
    ):  # fmt: skip
        wire = HttpResponse(400, {"retry-after": "3"}, (body,))
        error = refused(CODEC.parse_response, wire, InferRequest("m"), DEFAULT_LIMITS, MODEL)
        assert (error.kind, error.origin) == (Kind.BAD_REQUEST, Origin.BACKEND)
        assert text in error.public
        assert error.retry_after == 3
        assert refused(
            CODEC.rewrite_response, wire, post({}), "", "", DEFAULT_LIMITS
        ).public == error.public  # fmt: skip


METADATA_OF_VERSION = (
    b'{"model_spec": {"version": %b}, "metadata": {"signature_def": {"signature_def": {"s": {'
    b'"inputs": {"x": {"dtype": "DT_FLOAT", "tensor_shape": {"dim": [{"size": %b}]}}}}}}}}'
)


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        (ModelMetadataRequest("m"), b"{}"),
        (ModelMetadataRequest("m"), b'{"metadata": []}'),
        (ModelMetadataRequest("m"), (b'{"metadata": {"signature_def": {"signature_def": {"s": {'
         b'"inputs": {"x": {"dtype": "DT_X"}}}}}}}')),
        (ModelMetadataRequest("m"), b"[" * 5000),
        (ModelMetadataRequest("m"), b'{"a": "%b"}' % bytes(5 << 20).replace(b"\0", b"x")),
        (ModelIndexRequest(model="m"), b'{"model_version_status": 1}'),
        (ModelIndexRequest(model="m"), b'{"model_version_status": [{"version": "x"}]}'),
        (ModelIndexRequest(model="m"), b'{"model_version_status": ["x"]}'),
        (ModelIndexRequest(model="m"), b'{"model_version_status": [{"version": 1e300}]}'),
        (ModelIndexRequest(model="m"), b'{"model_version_status": [{"version": 1.5}]}'),
        (ModelIndexRequest(model="m"), b'{"model_version_status": [{"version": true}]}'),
        (ModelIndexRequest(model="m"), b'{"model_version_status": [{"version": 1e400}]}'),
        (ModelIndexRequest(model="m"), b'{"model_version_status": [{"version": Infinity}]}'),
        (ModelIndexRequest(model="m"), b'{"model_version_status": [{"version": "-1"}]}'),
        (ModelIndexRequest(model="m"), b'{"model_version_status": [{"version": []}]}'),
        (ModelIndexRequest(model="m"), b'{"model_version_status": [{"status": []}]}'),
        (ModelMetadataRequest("m"), METADATA_OF_VERSION % (b"9223372036854775808", b"3")),
        (ModelMetadataRequest("m"), METADATA_OF_VERSION % (b"1", b"-2")),
        (ModelMetadataRequest("m"), METADATA_OF_VERSION % (b"1", b"1e300")),
        (ModelMetadataRequest("m"), METADATA_OF_VERSION % (b"1", b"2.5")),
        (ModelMetadataRequest("m"), METADATA_OF_VERSION % (b"0.5", b"3")),
        (ModelReadyRequest("m"), b"not JSON"),
        (InferRequest("m"), b"\x1f\x8b"),
    ],
)  # fmt: skip
def test_responses_that_cannot_be_read(operation: Operation, body: bytes) -> None:
    headers = {"content-encoding": "gzip"} if body.startswith(b"\x1f") else {}
    wire = HttpResponse(200, headers, (body,))
    error = refused(CODEC.parse_response, wire, operation, DEFAULT_LIMITS, MODEL)
    assert error.kind in (Kind.BACKEND_GARBAGE, Kind.TOO_LARGE)
    assert error.origin is Origin.BACKEND


def test_the_largest_versions_and_dimensions_that_can_be_read() -> None:
    wire = HttpResponse(200, body=(METADATA_OF_VERSION % (b"9223372036854775807", b'"-1"'),))
    metadata = CODEC.parse_response(wire, ModelMetadataRequest("m"), DEFAULT_LIMITS)
    assert (metadata.versions, metadata.inputs[0].shape) == (("9223372036854775807",), (-1,))


def test_the_errors_of_versions_have_the_servers_codes() -> None:
    entries = (
        ModelIndexEntry("m", "4", "UNAVAILABLE", "no memory", 8),
        ModelIndexEntry("m", "3", "UNAVAILABLE"),
        ModelIndexEntry("m", "2", "LOADING", "", 99),
        ModelIndexEntry("m", "1", "READY"),
    )
    parsed = CODEC.parse_request(HttpRequest("GET", "/v1/models/m"), DEFAULT_LIMITS)
    document = document_of(CODEC.build_response(ModelIndex(entries), parsed))
    statuses = [entry["status"] for entry in document["model_version_status"]]
    assert [(status["error_code"], status["error_message"]) for status in statuses] == [
        ("RESOURCE_EXHAUSTED", "no memory"), ("UNAVAILABLE", "the version is not ready"),
        ("UNKNOWN", ""), ("OK", ""),
    ]  # fmt: skip
    assert (document["name"], document["ready"]) == ("m", True)
    parsed = CODEC.parse_request(HttpRequest("GET", "/v1/models/m/versions/4"), DEFAULT_LIMITS)
    assert "ready" not in document_of(CODEC.build_response(ModelIndex(entries[:1]), parsed))


def test_a_pickled_codec_keeps_its_options() -> None:
    copy = pickle.loads(pickle.dumps(MAPPING))
    wire = post({"signature_name": "embed", "instances": [[1, 2, 3]]})
    assert copy.summarize(wire).model == "m-embed"
