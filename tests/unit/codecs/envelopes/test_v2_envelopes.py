"""SageMaker's and Vertex AI's paths and headers around V2 REST bodies."""

import gzip
import json
import pickle
from typing import Any

import pytest
from envelope_kit import assert_refused, body, get, parse, post

from infergate.codecs.base import SupportsPassThrough
from infergate.codecs.envelopes.sagemaker import SageMakerCodec
from infergate.codecs.envelopes.vertex import VertexCodec
from infergate.codecs.profiles import PROFILES
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import (
    Acknowledgement,
    HealthStatus,
    InferRequest,
    InferResponse,
    ModelConfigRequest,
    ModelIndex,
    ModelIndexEntry,
    ModelIndexRequest,
    ModelLoadRequest,
    ModelMetadata,
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelStatisticsRequest,
    ModelUnloadRequest,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
)
from infergate.core.tensor import Tensor
from infergate.core.wire import HttpRequest, HttpResponse, join_parts

V2 = {"non_finite": "literal", "compress_min": 256}
SAGEMAKER = SageMakerCodec(V2, model="m")
HEALTH, PREDICT = "/v1/endpoints/1/models/2", "/v1/endpoints/1/models/2:predict"
VERTEX = VertexCodec(V2, "m", HEALTH, PREDICT)
SAGEMAKER_TYPE = "application/vnd.sagemaker-triton.binary+json"
VERTEX_TYPE = "application/vnd.vertex-ai-triton.binary+json"
BINARY = pytest.mark.parametrize(
    ("codec", "path", "binary_type"),
    [
        pytest.param(SAGEMAKER, "/invocations", SAGEMAKER_TYPE, id="sagemaker"),
        pytest.param(VERTEX, PREDICT, VERTEX_TYPE, id="vertex"),
    ],
)
PATHS = pytest.mark.parametrize(
    ("codec", "path"), [(SAGEMAKER, "/invocations"), (VERTEX, PREDICT)], ids=["sagemaker", "vertex"]
)
BODY = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
X = {"name": "X", "datatype": "INT32", "shape": [2], "parameters": {"binary_data_size": 8}}
HEAD = json.dumps({"inputs": [X], "parameters": {"binary_data_output": True}}).encode()
DATA = b"\1\0\0\0\2\0\0\0"
REDIRECT = "x_vertex_ai_triton_redirect"


def model_of(codec: Any, wire: HttpRequest) -> str:
    operation = parse(codec, wire).operation
    assert isinstance(operation, InferRequest)
    return operation.model


def binary_post(path: str, binary_type: str, body: bytes = HEAD + DATA, **headers: str) -> Any:
    return post(path, body, content_type=f"{binary_type};json-header-size={len(HEAD)}", **headers)


@BINARY
def test_json_needs_no_content_type(codec: Any, path: str, binary_type: str) -> None:
    for content_type in ("", "application/json", "application/x-www-form-urlencoded"):
        assert model_of(codec, post(path, BODY, content_type=content_type)) == "m"
    parsed = parse(codec, post(path, BODY))
    response = codec.build_response(InferResponse("m"), parsed)
    assert response.headers["content-type"] == "application/json"
    assert binary_type not in str(response.headers)


@BINARY
@pytest.mark.parametrize("template", ["{};json-header-size={}", " {} ; json-header-size={} "])
def test_binary_data_in_both_directions(
    codec: Any, path: str, binary_type: str, template: str
) -> None:
    content_type = template.format(binary_type, len(HEAD)).strip()
    parsed = parse(codec, post(path, HEAD + DATA, content_type=content_type))
    assert isinstance(parsed.operation, InferRequest)
    (tensor,) = parsed.operation.inputs
    assert bytes(tensor.data) == DATA
    output = Tensor("Y", Datatype.INT32, (2,), DATA)
    response = codec.build_response(InferResponse("m", outputs=(output,)), parsed)
    prefix, _, size = response.headers["content-type"].rpartition("=")
    assert prefix == f"{binary_type};json-header-size"
    data = bytes(join_parts(response.body))
    assert json.loads(data[: int(size)])["outputs"][0]["name"] == "Y"
    assert data[int(size) :] == DATA
    assert "inference-header-content-length" not in response.headers


@BINARY
@pytest.mark.parametrize(
    ("suffix", "mentions"),
    [
        ("", "expected"),
        (";json-header-size=", "expected"),
        (";json-header-size=-1", "expected"),
        (";json-header-size=1;x=y", "expected"),
        (f";json-header-size={'9' * 19}", "expected"),
        (";json-header-size=9999", "json-header-size is 9999, but the body has"),
    ],
)
def test_invalid_header_sizes(
    codec: Any, path: str, binary_type: str, suffix: str, mentions: str
) -> None:
    wire = post(path, HEAD + DATA, content_type=binary_type + suffix)
    assert assert_refused(codec, wire, mentions).status == 400


@BINARY
def test_the_binary_type_must_start_the_header(codec: Any, path: str, binary_type: str) -> None:
    wire = post(path, HEAD + DATA, content_type=f"a/b, {binary_type};json-header-size=1")
    assert_refused(codec, wire, "the content type is 'a/b, ")


@PATHS
def test_the_length_header_of_v2_is_ignored(codec: Any, path: str) -> None:
    assert model_of(codec, post(path, BODY, inference_header_content_length="7")) == "m"


@BINARY
def test_compressed_bodies(codec: Any, path: str, binary_type: str) -> None:
    wire = binary_post(path, binary_type, gzip.compress(HEAD + DATA), content_encoding="gzip")
    assert model_of(codec, wire) == "m"
    assert_refused(codec, post(path, BODY, content_encoding="br"), "br", Kind.UNSUPPORTED_ENCODING)


@BINARY
def test_a_short_compressed_body_is_inflated_once(codec: Any, path: str, binary_type: str) -> None:
    wire = binary_post(path, binary_type, gzip.compress(HEAD + DATA), content_encoding="gzip")
    codec.summarize(wire)
    assert codec.request_text_bytes(wire) == len(HEAD + DATA)
    codec.open_request(wire)
    assert bytes(join_parts(wire.body)) == HEAD + DATA
    assert codec.request_text_bytes(wire) == codec.json_bytes(wire, 1 << 20) == len(HEAD)
    assert model_of(codec, wire) == "m"
    plain = binary_post(path, binary_type)
    codec.open_request(plain)
    assert model_of(codec, plain) == "m"
    assert codec.json_bytes(HttpResponse(200, {}, [b"{}"]), 1 << 20) == 2


@BINARY
def test_estimates_never_raise(codec: Any, path: str, binary_type: str) -> None:
    content_type = f"{binary_type};json-header-size=9999"
    body = gzip.compress(HEAD + DATA)
    wire = post(path, body, content_type=content_type, content_encoding="gzip")
    codec.summarize(wire)
    codec.open_request(wire)
    assert codec.request_text_bytes(wire) == codec.json_bytes(wire, 1 << 20) == 0
    assert_refused(codec, wire, "json-header-size is 9999, but the body has")


@PATHS
def test_sequence_ids_are_read(codec: Any, path: str) -> None:
    parameters = {"sequence_id": 7, "sequence_start": True}
    wire = post(path, {**BODY, "parameters": parameters})
    assert codec.sequence_of(wire, DEFAULT_LIMITS) == 7
    assert codec.sequence_of(post(path, BODY), DEFAULT_LIMITS) is None


@BINARY
def test_a_size_of_zero_marks_raw_binary_data(codec: Any, path: str, binary_type: str) -> None:
    wire = post(path, DATA, content_type=f"{binary_type};json-header-size=0")
    partial = codec.parse_request(wire, DEFAULT_LIMITS)
    assert partial.model == "m"


@BINARY
def test_messages_pass_through(codec: Any, path: str, binary_type: str) -> None:
    assert isinstance(codec, SupportsPassThrough)
    wire = binary_post(path, binary_type)
    assert codec.summarize(wire).can_pass_through
    validated = codec.validate(wire, DEFAULT_LIMITS)
    rewritten = codec.rewrite_request(validated, "n", "", PROFILES["triton"])
    assert rewritten.path == "/v2/models/n/infer"
    assert rewritten.headers["inference-header-content-length"] == str(len(HEAD))
    head = b'{"model_name":"n","outputs":[]}'
    wire_response = HttpResponse(200, {"inference-header-content-length": str(len(head))}, [head])
    response = codec.rewrite_response(wire_response, validated, "m", "", DEFAULT_LIMITS)
    assert response.headers["content-type"] == f"{binary_type};json-header-size={len(head)}"


@pytest.mark.parametrize("codec", [SAGEMAKER, VERTEX])
def test_pickled_codecs_read_pickled_requests(codec: Any) -> None:
    copy = pickle.loads(pickle.dumps(codec))
    assert copy.claims == codec.claims
    wire = post(codec.claims[1], BODY)
    codec.summarize(wire)
    assert model_of(copy, pickle.loads(pickle.dumps(wire))) == "m"


# ---- SageMaker


@pytest.mark.parametrize(
    ("ping", "operation"), [("ready", ServerReadyRequest), ("live", ServerLiveRequest)]
)
def test_ping(ping: str, operation: type) -> None:
    codec = SageMakerCodec(V2, ping=ping)
    parsed = parse(codec, get("/ping"))
    assert parsed.operation == operation()
    assert codec.build_response(HealthStatus(ok=True), parsed).status == 200
    assert codec.build_response(HealthStatus(ok=False), parsed).status == 400
    response = assert_refused(codec, post("/ping"), "only GET", Kind.METHOD_NOT_ALLOWED)
    assert response.headers["allow"] == "GET"


def test_invocations_may_be_generate_requests() -> None:
    codec = SageMakerCodec(V2, model="m", inference="generate_stream")
    wire = post("/invocations", {"X": 1})
    assert not codec.summarize(wire).can_pass_through
    partial = codec.parse_request(wire, DEFAULT_LIMITS)
    assert partial.complete(ModelMetadata("m")).wants_stream
    assert wire.path == "/invocations"  # the original path still selects the frontend


def test_invocations_need_a_model() -> None:
    wire = post("/invocations", BODY)
    response = assert_refused(SageMakerCodec(V2), wire, "/models/", Kind.NOT_FOUND)
    assert response.status == 404
    response = assert_refused(SAGEMAKER, get("/invocations"), "only POST", Kind.METHOD_NOT_ALLOWED)
    assert response.headers["allow"] == "POST"


def test_a_model_is_invoked_by_name() -> None:
    assert model_of(SAGEMAKER, post("/models/other/invoke", BODY)) == "other"
    assert model_of(SAGEMAKER, post("/models/a%20b/invoke", BODY)) == "a b"
    target = post("/models/7b2e/invoke", BODY, x_amzn_sagemaker_target_model="resnet")
    assert model_of(SAGEMAKER, target) == "resnet"


@pytest.mark.parametrize("path", ["/models/a/b", "/models/a/invoke/b", "/models//invoke"])
def test_other_paths_are_not_found(path: str) -> None:
    assert assert_refused(SAGEMAKER, post(path), "no such path", Kind.NOT_FOUND).status == 404


def test_models_are_listed() -> None:
    parsed = parse(SAGEMAKER, get("/models"))
    assert parsed.operation == ModelIndexRequest(ready_only=True)
    index = ModelIndex((ModelIndexEntry("a", "1"), ModelIndexEntry("a", "2"), ModelIndexEntry("b")))
    assert body(SAGEMAKER.build_response(index, parsed)) == {
        "models": [{"modelName": "a", "modelUrl": ""}, {"modelName": "b", "modelUrl": ""}]
    }


def test_one_model_is_described() -> None:
    parsed = parse(SAGEMAKER, get("/models/a"))
    assert parsed.operation == ModelReadyRequest("a")
    response = SAGEMAKER.build_response(HealthStatus(ok=True), parsed)
    assert body(response) == {"modelName": "a", "modelUrl": ""}
    assert SAGEMAKER.build_response(HealthStatus(ok=False), parsed).status == 404


def test_a_model_is_loaded_and_unloaded() -> None:
    wire = post("/models", {"model_name": "a", "url": "/opt/ml/models/a/model"})
    summary = SAGEMAKER.summarize(wire)
    assert (summary.operation, summary.model) == (ModelLoadRequest, "a")
    parsed = parse(SAGEMAKER, wire)
    assert parsed.operation == ModelLoadRequest("a")
    assert SAGEMAKER.build_response(Acknowledgement(), parsed).status == 200
    wire = post("/models", {"model_name": "7b2e"}, x_amzn_sagemaker_target_model="resnet")
    assert parse(SAGEMAKER, wire).operation == ModelLoadRequest("resnet")
    unload = parse(SAGEMAKER, HttpRequest("DELETE", "/models/a", "", {"content-encoding": "gzip"}))
    assert unload.operation == ModelUnloadRequest("a", parameters={"unload_dependents": True})


@pytest.mark.parametrize("url", ["/dev/shm", "/proc/1", "//sys/x", "/a/../dev/x", "proc/x", "/sys"])
def test_special_folders_are_refused(url: str) -> None:
    wire = post("/models", {"model_name": "a", "url": url})
    assert assert_refused(SAGEMAKER, wire, "below /dev, /proc or /sys").status == 400


@pytest.mark.parametrize(
    ("data", "mentions", "kind"),
    [
        (b"", "invalid JSON", Kind.BAD_REQUEST),
        (b"[]", "must be an object", Kind.BAD_REQUEST),
        (b"{}", "model_name is missing", Kind.BAD_REQUEST),
        (b'{"model_name":1}', "model_name must be a string", Kind.BAD_REQUEST),
        (b'{"model_name":"a","url":[]}', "url must be a string", Kind.BAD_REQUEST),
        (b" " * 16385, "has 16385 bytes; the limit is 16384", Kind.TOO_LARGE),
    ],
)
def test_invalid_load_requests(data: bytes, mentions: str, kind: Kind) -> None:
    assert_refused(SAGEMAKER, post("/models", data), mentions, kind)


def test_a_load_request_is_not_compressed() -> None:
    wire = post("/models", b"{}", content_encoding="gzip")
    response = assert_refused(SAGEMAKER, wire, "must not be compressed", Kind.UNSUPPORTED_ENCODING)
    assert response.status == 415


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("PUT", "/models", "GET, POST"), ("POST", "/models/a", "DELETE, GET")],
)
def test_unsupported_methods(method: str, path: str, allowed: str) -> None:
    wire = HttpRequest(method, path)
    response = assert_refused(SAGEMAKER, wire, f"only {allowed}", Kind.METHOD_NOT_ALLOWED)
    assert (response.status, response.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize(
    ("kind", "text", "status"),
    [
        (Kind.ALREADY_EXISTS, "model 'a' is loaded", 409),
        (Kind.BACKEND_ERROR, "CUDA out of memory. Tried to allocate", 507),
        (Kind.BAD_REQUEST, "failed to load 'a': CUDA_OUT_OF_MEMORY", 507),
        (Kind.BACKEND_ERROR, "no ROOM here", 500),
        (Kind.OVERLOADED, "out of memory budget", 503),
        (Kind.NOT_FOUND, "unknown model", 404),
    ],
)
def test_statuses_of_errors(kind: Kind, text: str, status: int) -> None:
    response = SAGEMAKER.build_error(GatewayError(kind, text), post("/models/a/invoke"))
    assert response.status == status
    assert body(response) == {"error": text}


# ---- Vertex AI


def test_vertex_health_and_prediction() -> None:
    assert parse(VERTEX, get(HEALTH)).operation == ServerReadyRequest()
    assert model_of(VERTEX, post(PREDICT, BODY)) == "m"
    response = assert_refused(VERTEX, get(PREDICT), "only POST", Kind.METHOD_NOT_ALLOWED)
    assert response.headers["allow"] == "POST"
    response = assert_refused(VERTEX, post(HEALTH), "only GET", Kind.METHOD_NOT_ALLOWED)
    assert response.headers["allow"] == "GET"
    assert_refused(VERTEX, get("/elsewhere"), "no such path", Kind.NOT_FOUND)


@pytest.mark.parametrize(
    ("target", "operation"),
    [
        ("v2/models/n/versions/2/config", ModelConfigRequest("n", "2")),
        ("v2/models/n", ModelMetadataRequest("n")),
        ("v2/models/n/ready", ModelReadyRequest("n")),
        ("v2/models/n/stats", ModelStatisticsRequest("n")),
        ("v2/models/stats", ModelStatisticsRequest()),
        ("v2/repository/index", ModelIndexRequest()),
        ("v2/health/live", ServerLiveRequest()),
        ("v2/health/ready", ServerReadyRequest()),
        ("v2", ServerMetadataRequest()),
    ],
)
def test_redirects(target: str, operation: Any) -> None:
    assert parse(VERTEX, post(PREDICT, **{REDIRECT: target})).operation == operation


def test_an_inference_is_redirected_to_another_model() -> None:
    wire = post(PREDICT, BODY, **{REDIRECT: "v2/models/n/infer"})
    assert VERTEX.summarize(wire).model == "n"
    assert model_of(VERTEX, wire) == "n"
    wire = get(PREDICT)
    wire.headers = {"x-vertex-ai-triton-redirect": "v2/models/n"}
    assert_refused(VERTEX, wire, "only POST", Kind.METHOD_NOT_ALLOWED)


@pytest.mark.parametrize(
    "target",
    [
        "v2/repository/models/n/load",
        "v2/repository/models/n/unload",
        "v2/systemsharedmemory/region/r/register",
        "v2/cudasharedmemory/unregister",
        "v2/logging",
        "v2/models/n/trace/setting",
    ],
)
def test_redirects_that_change_the_server_are_forbidden(target: str) -> None:
    wire = post(PREDICT, b"{}", **{REDIRECT: target})
    assert assert_refused(VERTEX, wire, f"may not name /{target}", Kind.FORBIDDEN).status == 403


@pytest.mark.parametrize("target", ["metrics", "", "/v2", "v2/models/../x"])
def test_redirects_to_unknown_paths(target: str) -> None:
    wire = post(PREDICT, b"{}", **{REDIRECT: target})
    with pytest.raises(GatewayError) as caught:
        VERTEX.summarize(wire)
    assert caught.value.kind in (Kind.NOT_FOUND, Kind.BAD_REQUEST)


def test_vertex_routes_may_start_with_v2() -> None:
    codec = VertexCodec(V2, "m", "/v2health", "/v2predict")
    assert codec.summarize(get("/v2health")).operation is ServerReadyRequest
    assert model_of(codec, post("/v2predict", BODY)) == "m"
    validated = codec.validate(post("/v2predict", BODY), DEFAULT_LIMITS)
    assert codec.summarize(validated).model == "m"
