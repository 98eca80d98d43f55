"""Repository, configuration, statistics and settings: paths, bodies and servers' responses that the
vectors do not contain."""

import json
from typing import Any

import pytest
from v2_rest_kit import CODEC, body, get, ok, post, refused

from gateway_errors import raises_kind
from infergate.codecs.base import ParsedRequest, RequestSummary
from infergate.codecs.profiles import KSERVE, MLSERVER, TRITON
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS, MIB, Limits
from infergate.core.messages import (
    Acknowledgement,
    LogSettingsRequest,
    ModelConfig,
    ModelConfigRequest,
    ModelIndexRequest,
    ModelLoadRequest,
    ModelStatistics,
    ModelStatisticsRequest,
    ModelUnloadRequest,
    Operation,
    Response,
    Settings,
    TraceSettingsRequest,
)
from infergate.core.wire import HttpRequest, HttpResponse

REGISTER = "/v2/cudasharedmemory/region/g/register"
LOAD = "/v2/repository/models/m/load"


def parse(wire: HttpRequest) -> Operation:
    operation = CODEC.parse_request(wire, DEFAULT_LIMITS).operation
    assert CODEC.validate(wire, DEFAULT_LIMITS) == wire
    summary = CODEC.summarize(wire)
    assert (summary.operation, summary.model) == (type(operation), getattr(operation, "model", ""))
    return operation


def build_request(operation: Operation, profile: Any = TRITON) -> tuple[str, str, Any]:
    wire = CODEC.build_request(operation, profile)
    return wire.method, wire.path, json.loads(body(wire)) if wire.body else None


def parse_response(text: str, operation: Operation) -> Response:
    return CODEC.parse_response(ok(text), operation, DEFAULT_LIMITS)


def response_document(response: Response, operation: Operation) -> Any:
    wire = CODEC.build_response(response, ParsedRequest(operation))
    return json.loads(body(wire))


@pytest.mark.parametrize(
    ("wire", "operation"),
    [
        (get("/v2/models/m/config"), ModelConfigRequest("m")),
        (get("/v2/models/m/stats"), ModelStatisticsRequest("m")),
        (get("/v2/models/m/versions/2/stats"), ModelStatisticsRequest("m", "2")),
        (post("", "/v2/repository/index"), ModelIndexRequest()),
        (post("", LOAD), ModelLoadRequest("m")),
        (post("{}", "/v2/repository/models/a%2Fb/unload"), ModelUnloadRequest("a/b")),
        (post("{}", "/v2/repository/models/models/load"), ModelLoadRequest("models")),
        (
            post('{"parameters":{"unload_dependents":true,"x":null}}', LOAD.replace("lo", "unlo")),
            ModelUnloadRequest("m", parameters={"unload_dependents": True}),
        ),
        (post('{"parameters":null}', LOAD), ModelLoadRequest("m")),
        (get("/v2/logging"), LogSettingsRequest()),
        (get("/v2/trace/setting"), TraceSettingsRequest()),
        (get("/v2/models/m/trace/setting"), TraceSettingsRequest("m")),
    ],
    ids=lambda value: f"{value.method} {value.path}" if isinstance(value, HttpRequest) else "",
)
def test_requests_are_parsed(wire: HttpRequest, operation: Operation) -> None:
    assert parse(wire) == operation


@pytest.mark.parametrize(
    ("wire", "expected", "kind"),
    [
        (post("[]", LOAD), "the body must be an object", Kind.BAD_REQUEST),
        (post("{", LOAD), "JSON", Kind.BAD_REQUEST),
        (post('{"parameters":[]}', LOAD), "parameters", Kind.BAD_REQUEST),
        (post('{"parameters":{"file:m":"?"}}', LOAD), "file:m", Kind.BAD_REQUEST),
        (post('{"parameters":{"file:m":1}}', LOAD), "base64", Kind.BAD_REQUEST),
        (post('{"parameters":{"file:m":"é"}}', LOAD), "base64", Kind.BAD_REQUEST),
        pytest.param(
            post('{"parameters":{"config":"%s"}}' % ("x" * (4 * MIB + 1)), LOAD),
            "parameters.config",
            Kind.TOO_LARGE,
            id="a long configuration",
        ),
        (
            post('{"raw_handle":{}, "byte_size":8, "device_id":0}', REGISTER),
            "raw_handle.b64 is missing",
            Kind.BAD_REQUEST,
        ),
        (post('{"x":1.5}', "/v2/logging"), "'x'", Kind.BAD_REQUEST),
        (post('{"x":["a",1]}', "/v2/trace/setting"), "'x'", Kind.BAD_REQUEST),
        (post("", "/v2/repository/r/index"), "one repository", Kind.UNSUPPORTED),
        (post("", "/v2/repository/models/../load"), "'..'", Kind.BAD_REQUEST),
        (get(LOAD), "only POST", Kind.METHOD_NOT_ALLOWED),
        (post("", "/v2/models/m/config"), "only GET", Kind.METHOD_NOT_ALLOWED),
        (post("", "/v2/repository/models/m/reload"), "no such path", Kind.NOT_FOUND),
        (post("", "/v2/repository/r/s/models/m/load"), "no such path", Kind.NOT_FOUND),
        (post("", "/v2/repository/models//load"), "no such path", Kind.NOT_FOUND),
    ],
)
def test_invalid_requests_are_refused(wire: HttpRequest, expected: str, kind: Kind) -> None:
    refused(wire, expected, kind=kind)


@pytest.mark.parametrize("path", [LOAD, "/v2/logging"])
def test_bodies_have_the_limit_of_json(path: str) -> None:
    with raises_kind(Kind.TOO_LARGE):
        CODEC.parse_request(post('{"x":"y"}', path), Limits(json=5))


@pytest.mark.parametrize(
    ("operation", "method", "path", "document"),
    [
        (ModelConfigRequest("m", "2"), "GET", "/v2/models/m/versions/2/config", None),
        (ModelStatisticsRequest(), "GET", "/v2/models/stats", None),
        (ModelStatisticsRequest("m"), "GET", "/v2/models/m/stats", None),
        (ModelStatisticsRequest("m", "2"), "GET", "/v2/models/m/versions/2/stats", None),
        (ModelLoadRequest("m/n"), "POST", "/v2/repository/models/m%2Fn/load", {}),
        (ModelUnloadRequest("m", "r"), "POST", "/v2/repository/r/models/m/unload", {}),
        (
            ModelLoadRequest("m", "", {"config": "{}", "file:1/m": b"\x00\xff"}),
            "POST",
            LOAD,
            {"parameters": {"config": "{}", "file:1/m": "AP8="}},
        ),
        (LogSettingsRequest(), "GET", "/v2/logging", None),
        (LogSettingsRequest({"a": 1}), "POST", "/v2/logging", {"a": 1}),
        (TraceSettingsRequest(), "GET", "/v2/trace/setting", None),
        (TraceSettingsRequest("m"), "GET", "/v2/models/m/trace/setting", None),
        (
            TraceSettingsRequest("", {"trace_level": ["A"], "r": ["1"], "s": ["1", "2"], "x": []}),
            "POST",
            "/v2/trace/setting",
            {"trace_level": ["A"], "r": "1", "s": ["1", "2"], "x": None},
        ),
    ],
)
def test_requests_to_servers_are_built(
    operation: Operation, method: str, path: str, document: Any
) -> None:
    assert build_request(operation) == (method, path, document)


@pytest.mark.parametrize("profile", [KSERVE, MLSERVER])
@pytest.mark.parametrize("kind", [ModelLoadRequest, ModelUnloadRequest])
def test_servers_without_versions_get_names_only(profile: Any, kind: Any) -> None:
    """tritonclient always sends unload_dependents: false."""
    plain = build_request(kind("m"), profile)
    assert plain[2] == {}
    assert (
        build_request(kind("m", parameters={"unload_dependents": False, "x": None}), profile)
        == plain
    )
    for fields in ({"repository": "r"}, {"parameters": {"config": "{}"}}):
        with raises_kind(Kind.UNSUPPORTED):
            CODEC.build_request(kind("m", **fields), profile)


def test_values_that_json_cannot_hold_are_refused() -> None:
    for operation in (
        ModelLoadRequest("m", "", {"x": 2**70}),
        LogSettingsRequest({"x": 2**70}),
    ):
        with raises_kind(Kind.UNSUPPORTED):
            CODEC.build_request(operation, TRITON)
    with pytest.raises(GatewayError):
        CODEC.build_request(ModelLoadRequest(""), TRITON)
    for response in (ModelConfig("m", {"x": 2**70}), ModelStatistics(({"x": 2**70},))):
        with raises_kind(Kind.UNSUPPORTED):
            CODEC.build_response(response, ParsedRequest(ModelConfigRequest("m")))


def test_responses_of_servers_are_parsed() -> None:
    for text in ("", "{}", '{"name":"m","load":true}'):  # Triton, MLServer, KServe
        assert parse_response(text, ModelLoadRequest("m")) == Acknowledgement()
    assert parse_response("{}", ModelStatisticsRequest()) == ModelStatistics()


@pytest.mark.parametrize(
    ("text", "operation"),
    [
        ("[]", ModelConfigRequest("m")),
        ("[]", ModelStatisticsRequest()),
        ('{"model_stats":{}}', ModelStatisticsRequest()),
        ('{"model_stats":[1]}', ModelStatisticsRequest()),
        ('{"trace_rate":1}', TraceSettingsRequest()),
        ("[]", LogSettingsRequest()),
    ],
)
def test_malformed_responses_of_servers_are_refused(text: str, operation: Operation) -> None:
    with raises_kind(Kind.BACKEND_GARBAGE):
        parse_response(text, operation)


def test_responses_to_clients_are_built() -> None:
    load = ModelLoadRequest("m")
    assert CODEC.build_response(Acknowledgement(), ParsedRequest(load)) == HttpResponse(200)
    config = ModelConfig("m", {"name": "other", "max_batch_size": 8}, b"\x0a\x01x")
    assert response_document(config, ModelConfigRequest("m")) == {"name": "m", "max_batch_size": 8}
    stats = ModelStatistics(({"name": "m"},))
    assert response_document(stats, ModelStatisticsRequest()) == {"model_stats": [{"name": "m"}]}
    settings = Settings({"trace_level": ["OFF"], "trace_rate": ["1"], "many": ["1", "2"]})
    assert response_document(settings, TraceSettingsRequest()) == {
        "trace_level": ["OFF"],
        "trace_rate": "1",
        "many": ["1", "2"],
    }
    assert response_document(Settings({"a": True}), LogSettingsRequest()) == {"a": True}


def test_a_model_name_may_equal_a_path_segment() -> None:
    for name, operation in (("config", ModelConfigRequest), ("stats", ModelStatisticsRequest)):
        summary = CODEC.summarize(get(f"/v2/models/{name}/{name}"))
        assert summary == RequestSummary(operation, name)
