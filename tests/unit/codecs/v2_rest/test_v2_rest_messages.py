"""Messages of V2 REST: paths, health, metadata, encodings, formats, errors and estimates."""

import functools
import gzip
import json
import os
import pickle
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from v2_rest_kit import CODEC, body, get, ok, parse, post, read_response, refused, respond

from gateway_errors import raises_kind
from infergate.codecs.base import (
    OutputsNeedTranslationError,
    ParsedRequest,
    RequestSummary,
)
from infergate.codecs.encodings import decode_body, preferred_encoding
from infergate.codecs.http_status import kind_of_status
from infergate.codecs.profiles import GENERIC, KSERVE, MLSERVER, TRITON
from infergate.codecs.v2_rest.errors import STATUS_BY_KIND
from infergate.codecs.v2_rest.infer_request import ResponseFormat
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.limits import DEFAULT_LIMITS, Limits
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
    Operation,
    RequestedOutput,
    ServerLiveRequest,
    ServerMetadata,
    ServerMetadataRequest,
    ServerReadyRequest,
    ServerStatusRequest,
    TensorMetadata,
)
from infergate.core.tensor import Tensor, tensor_from_array
from infergate.core.wire import HttpRequest, HttpResponse

INFER = "/v2/models/m/infer"

# ---- paths ------------------------------------------------------------------------------------


def test_paths_select_the_operation() -> None:
    for path, operation in {
        "/v2": ServerMetadataRequest(),
        "/v2/": ServerMetadataRequest(),
        "/v2/models/infer": ModelMetadataRequest("infer"),
        "/v2/models/m/versions/1": ModelMetadataRequest("m", "1"),
        "/v2/models/m/versions/a%2Fb/ready": ModelReadyRequest("m", "a/b"),
    }.items():
        assert CODEC.parse_request(get(path), DEFAULT_LIMITS).operation == operation
        assert CODEC.summarize(get(path)).operation is type(operation)
        assert CODEC.validate(get(path), DEFAULT_LIMITS) == get(path)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/v1",
        "/v2/health",
        "/v2/models/",
        "/v2/models//infer",
        "/v2/models/m/versions",
        "/v2/models/m/versions//infer",
        "/v2/models/m/infer/",
        "/v2/models/m/explain",
        "/v2/" + "x" * 1000,
    ],
)
def test_an_unknown_path_is_refused(path: str) -> None:
    error = refused(get(path), path[:200], kind=Kind.NOT_FOUND)
    assert len(error.public) < 250


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("HEAD", "/v2", "GET"),
        ("POST", "/v2/models/m", "GET"),
        ("GET", INFER, "POST"),
        ("GET", "/v2/repository/index", "POST"),
        ("PUT", "/v2/logging", "GET, POST"),
    ],
)
def test_a_wrong_method_is_refused(method: str, path: str, allow: str) -> None:
    wire = HttpRequest(method, path)
    error = refused(wire, method, allow, kind=Kind.METHOD_NOT_ALLOWED)
    response = CODEC.build_error(error, wire)
    assert (response.status, response.headers["allow"]) == (405, allow)
    assert "allow" not in CODEC.build_error(error).headers
    assert "allow" not in CODEC.build_error(error, get("/elsewhere")).headers


def test_invalid_names_in_paths_are_refused() -> None:
    refused(get("/v2/models/%c3%28"), "UTF-8")
    refused(get("/v2/models/\udc80"), "UTF-8")
    refused(get("/v2/models/m/versions/%4"), "model version", "percent")
    refused(get("/v2/models/m/versions/.."), "'..'")
    for request in (InferRequest(".."), InferRequest("m", ".")):
        with raises_kind(Kind.UNSUPPORTED, match="must not be"):
            CODEC.build_request(request, TRITON)
    with pytest.raises(GatewayError, match="model name is empty"):
        CODEC.build_request(ModelReadyRequest(""), TRITON)


class Parts(list[bytes]):
    """A body that counts its iterations. Joining the parts iterates once."""

    iterations = 0

    def __iter__(self) -> Iterator[bytes]:
        self.iterations += 1
        return super().__iter__()


def test_a_body_is_joined_once() -> None:
    parts = Parts([b'{"inputs":', b"[]}"])
    wire = HttpRequest("POST", INFER, "", {}, parts)
    assert CODEC.summarize(wire) == RequestSummary(InferRequest, "m", "")
    assert parts.iterations == 0
    validated = CODEC.validate(wire, DEFAULT_LIMITS)
    assert CODEC.rewrite_request(validated, "a", "", TRITON) is not None
    assert CODEC.parse_request(validated, DEFAULT_LIMITS).operation == InferRequest("m")
    assert parts.iterations == 1


def test_a_body_of_one_part_is_not_copied() -> None:
    text = b'{"inputs":[]}'
    validated = CODEC.validate(post(text), DEFAULT_LIMITS)
    rewritten = CODEC.rewrite_request(validated, "a", "", TRITON)
    assert rewritten.body[0] is text


# ---- health and metadata ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "ok", "fields"),
    [
        (ServerLiveRequest(), True, {"live": True}),
        (ServerLiveRequest(), False, {"live": False}),
        (ServerReadyRequest(), True, {"ready": True}),
        (ServerReadyRequest(), False, {"ready": False}),
        (ModelReadyRequest("m", "2"), True, {"name": "m", "ready": True}),
        (
            ModelReadyRequest("m", "2"),
            False,
            {"name": "m", "ready": False, "error": "model 'm' version '2' is not ready"},
        ),
    ],
)
def test_health_is_reported_by_status_and_body(
    operation: Operation, ok: bool, fields: dict[str, object]
) -> None:
    response = CODEC.build_response(HealthStatus(ok=ok), ParsedRequest(operation))
    assert response.status == (200 if ok else 400)
    assert response.headers == {"content-type": "application/json"}
    assert json.loads(body(response)) == fields


@pytest.mark.parametrize(
    ("status", "text", "live", "model"),
    [
        (200, "", True, True),
        (200, '{"ready":false}', False, False),
        (200, '{"live":true}', True, True),
        (200, "OK", True, True),
        (400, "", False, False),
        (503, "", False, False),
        (404, "", False, Kind.NOT_FOUND),
        (500, "", Kind.BACKEND_ERROR, Kind.BACKEND_ERROR),
        (204, "", Kind.BACKEND_GARBAGE, Kind.BACKEND_GARBAGE),
        (200, "{", Kind.BACKEND_GARBAGE, Kind.BACKEND_GARBAGE),
    ],
)
def test_health_of_backends(status: int, text: str, live: bool | Kind, model: bool | Kind) -> None:
    for operation, expected in ((ServerReadyRequest(), live), (ModelReadyRequest("m"), model)):
        if isinstance(expected, Kind):
            with raises_kind(expected):
                CODEC.parse_response(ok(text, status), operation, DEFAULT_LIMITS)
        else:
            assert CODEC.parse_response(
                ok(text, status), operation, DEFAULT_LIMITS
            ) == HealthStatus(ok=expected)


def test_metadata_with_every_field_round_trips() -> None:
    tensor = TensorMetadata("x", "FP32", (-1, 2), {"content_type": "np"})
    model = ModelMetadata("m", ("1",), "p", (tensor,), (), {"a": 1}, {"b": "c"})
    wire = CODEC.build_response(model, ParsedRequest(ModelMetadataRequest("m")))
    assert CODEC.parse_response(wire, ModelMetadataRequest("m"), DEFAULT_LIMITS) == model


def test_metadata_variants_of_servers() -> None:
    def read(text: str) -> object:
        return CODEC.parse_response(ok(text), ModelMetadataRequest("m"), DEFAULT_LIMITS)

    assert read('{"name":"m","versions":null,"inputs":null,"platform":null}') == ModelMetadata("m")
    assert read('{"name":"m","versions":[1,"2"]}') == ModelMetadata("m", ("1", "2"))
    unusual = (
        '{"name":"m","outputs":[{"name":"y","datatype":"int64","shape":[-1]},{"datatype":"any"}]}'
    )
    assert read(unusual) == ModelMetadata(
        "m", outputs=(TensorMetadata("y", "INT64", (-1,)), TensorMetadata("", "any", ()))
    )
    for t in ('{"inputs":[{"shape":["x"]}]}', '{"inputs":[{"shape":[1.5]}]}', "[]", '{"name":1}'):
        with raises_kind(Kind.BACKEND_GARBAGE):
            read(t)
    with pytest.raises(GatewayError, match="JSON"):
        CODEC.parse_response(ok("x" * 99), ServerMetadataRequest(), Limits(json=9))


def test_a_model_index_in_both_forms() -> None:
    index = ModelIndex((ModelIndexEntry("a", "1", "READY"), ModelIndexEntry("a", "2", "", "why")))
    names = CODEC.parse_request(get("/v2/models"), DEFAULT_LIMITS)
    assert json.loads(body(CODEC.build_response(index, names))) == {"models": ["a"]}
    entries = CODEC.parse_request(post("", "/v2/repository/index"), DEFAULT_LIMITS)
    wire = CODEC.build_response(index, entries)
    assert CODEC.parse_response(wire, ModelIndexRequest(), DEFAULT_LIMITS) == index
    assert CODEC.build_request(ModelIndexRequest(), KSERVE) == get("/v2/models")
    request = CODEC.build_request(ModelIndexRequest(ready_only=True), TRITON)
    assert CODEC.parse_request(request, DEFAULT_LIMITS).operation == ModelIndexRequest(
        ready_only=True
    )
    refused(post('{"ready":1}', "/v2/repository/index"), "ready must be a boolean")
    with raises_kind(Kind.BACKEND_GARBAGE):
        CODEC.parse_response(ok('{"error":"x"}'), ModelIndexRequest(), DEFAULT_LIMITS)


def test_server_metadata() -> None:
    wire = CODEC.build_response(ServerMetadata("s", "1"), ParsedRequest(ServerMetadataRequest()))
    assert body(wire) == b'{"name":"s","version":"1","extensions":[]}'


# ---- encodings --------------------------------------------------------------------------------

PLAIN = b'{"inputs":[]}'


# Without the time, because the IDs of the cases contain the bytes.
gzipped = functools.partial(gzip.compress, mtime=0)


def raw_deflate(data: bytes) -> bytes:
    deflater = zlib.compressobj(wbits=-15)
    return deflater.compress(data) + deflater.flush()


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("identity", PLAIN),
        ("", PLAIN),
        ("GZIP", gzipped(PLAIN)),
        ("x-gzip", gzipped(PLAIN)),
        ("gzip", gzipped(PLAIN[:5]) + gzipped(b"") + gzipped(PLAIN[5:])),
        ("gzip", b"".join(gzipped(bytes([byte])) for byte in PLAIN)),
        ("deflate", zlib.compress(PLAIN)),
        ("deflate", raw_deflate(PLAIN)),
    ],
)
def test_content_encodings_are_decoded(encoding: str, data: bytes) -> None:
    wire = post(data, content_encoding=encoding, x_other="1")
    assert parse(wire).inputs == ()
    validated = CODEC.validate(wire, DEFAULT_LIMITS)
    assert (body(validated), validated.headers) == (PLAIN, {"x-other": "1"})


@pytest.mark.parametrize("encoding", ["br", "gzip, deflate", "x" * 500])
def test_unknown_encodings_are_refused(encoding: str) -> None:
    refused(post(PLAIN, content_encoding=encoding), kind=Kind.UNSUPPORTED_ENCODING)


@pytest.mark.parametrize("data", [b"", b"x", zlib.compress(PLAIN)[:-1], raw_deflate(PLAIN) + b"!"])
def test_corrupt_deflate_is_refused(data: bytes) -> None:
    refused(post(data, content_encoding="deflate"), "deflate body")


def test_responses_in_several_gzip_members() -> None:
    text = b'{"model_name":"m","outputs":[]}'
    compressed = gzipped(text[:9]) + gzipped(text[9:])
    parsed = CODEC.parse_response(
        ok(compressed, content_encoding="gzip"), InferRequest("m"), DEFAULT_LIMITS
    )
    assert parsed == InferResponse("m")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (gzipped(PLAIN) + gzipped(PLAIN)[:-1], "ends too early"),
        (gzipped(PLAIN) + b"\x1f\x8b" * 9, "corrupt"),
        (gzipped(PLAIN) + b"\x1f", "1 extra bytes"),
        (gzipped(PLAIN) + zlib.compress(PLAIN), "extra bytes"),
        # members without data, which take far more time than their size suggests
        (gzipped(b"") * 300_000, "more than 4096 members"),
    ],
    ids=["truncated", "corrupt", "one byte", "zlib", "too many members"],
)
def test_invalid_bytes_after_the_first_gzip_member(data: bytes, expected: str) -> None:
    refused(post(data, content_encoding="gzip"), expected)


def test_gzip_members_share_the_limit() -> None:
    member = gzipped(b" " * 900)
    with raises_kind(Kind.TOO_LARGE):
        CODEC.parse_request(post(member * 2, content_encoding="gzip"), Limits(body=1000))


def test_a_bomb_is_stopped_at_the_limit() -> None:
    bomb = gzipped(b" " * 1_000_000)
    with raises_kind(Kind.TOO_LARGE):
        CODEC.parse_request(post(bomb, content_encoding="gzip"), Limits(body=1000))


@pytest.mark.parametrize(
    ("header", "encoding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("deflate, gzip", "gzip"),
        ("deflate;q=0.9, gzip;q=0.8", "deflate"),
        ("*", "gzip"),
        ("gzip;q=0, *", "deflate"),
        ("X-GZIP ; q=1", "gzip"),
        ("gzip;q=0", ""),
        ("identity, gzip;q=0.5", ""),
        ("identity;q=0.5, gzip", "gzip"),
        ("br", ""),
        ("gzip;q=high", ""),
        ("gzip;q=7", ""),
        ("gzip;level=1", "gzip"),
        ("", ""),
    ],
)
def test_the_preferred_encoding(header: str, encoding: str) -> None:
    assert preferred_encoding(header) == encoding


def test_responses_are_compressed_as_accepted() -> None:
    tensor = tensor_from_array("Y", Datatype.INT32, np.zeros(100, "i4"))
    for encoding, decompress in (("gzip", gzip.decompress), ("deflate", zlib.decompress)):
        parsed = CODEC.parse_request(post(PLAIN, accept_encoding=encoding), DEFAULT_LIMITS)
        wire = CODEC.build_response(InferResponse("m", outputs=(tensor,)), parsed)
        assert wire.headers["content-encoding"] == encoding
        assert wire.headers["vary"] == "accept-encoding"
        assert json.loads(decompress(body(wire)))["outputs"][0]["data"] == [0] * 100
        small = CODEC.build_response(InferResponse("m"), parsed)
        assert small.headers == {"content-type": "application/json"}


# ---- response formats ----------------------------------------------------------------------------


def binary_outputs(request: str) -> dict[str, bool]:
    parsed = CODEC.parse_request(post(request), DEFAULT_LIMITS)
    outputs = tuple(Tensor(name, Datatype.INT8, (1,), b"\x07", {"p": 1}) for name in "AB")
    wire = CODEC.build_response(InferResponse("m", "2", "i", {"q": 1}, outputs), parsed)
    length = int(wire.headers.get("inference-header-content-length", len(body(wire))))
    document = json.loads(body(wire)[:length])
    assert list(document) == ["id", "model_name", "model_version", "parameters", "outputs"]
    binary = {t["name"]: t["parameters"].get("binary_data_size") == 1 for t in document["outputs"]}
    assert body(wire)[length:] == b"\x07" * sum(binary.values())
    assert (wire.headers["content-type"] == "application/octet-stream") == any(binary.values())
    assert all(("data" in t) != binary[t["name"]] for t in document["outputs"])
    return binary


def test_output_formats() -> None:
    assert binary_outputs('{"inputs":[]}') == {"A": False, "B": False}
    all_binary = '"parameters":{"binary_data_output":true}'
    assert binary_outputs(f'{{"inputs":[],{all_binary}}}') == {"A": True, "B": True}
    listed = '"outputs":[{"name":"A","parameters":{"binary_data":%s}},{"name":"B"}]'
    assert binary_outputs(f'{{"inputs":[],{listed % "true"}}}') == {"A": True, "B": False}
    assert binary_outputs(f'{{"inputs":[],{listed % "false"},{all_binary}}}') == {
        "A": False,
        "B": True,
    }
    refused(post('{"inputs":[],"parameters":{"binary_data_output":"yes"}}'), "binary_data_output")


def test_values_that_json_cannot_represent() -> None:
    for value in (float("inf"), float("nan"), b"x", object()):
        with raises_kind(Kind.UNSUPPORTED, match="response: parameter 'p'"):
            respond(InferResponse("m", parameters={"p": value}))
    wire = respond(InferResponse("m", parameters={"big": 2**80, "l": [1, {"a": (None,)}]}))
    assert json.loads(body(wire))["parameters"] == {"big": 2**80, "l": [1, {"a": [None]}]}
    with raises_kind(Kind.UNSUPPORTED, match="JSON cannot express"):
        respond(InferResponse("m\ud800"))


# ---- requests to backends ---------------------------------------------------------------------


def test_listed_outputs_are_each_requested_as_binary() -> None:
    all_outputs = CODEC.build_request(InferRequest("m"), TRITON)
    assert json.loads(body(all_outputs)) == {
        "parameters": {"binary_data_output": True},
        "inputs": [],
    }
    listed = InferRequest("m", outputs=(RequestedOutput("Y", {"classification": 2}),))
    assert json.loads(body(CODEC.build_request(listed, TRITON))) == {
        "inputs": [],
        "outputs": [{"name": "Y", "parameters": {"classification": 2, "binary_data": True}}],
    }
    assert json.loads(body(CODEC.build_request(listed, GENERIC)))["outputs"] == [
        {"name": "Y", "parameters": {"classification": 2}}
    ]


def test_bytes_that_are_not_utf8_are_not_sent_to_a_json_server() -> None:
    tensor = Tensor("X", Datatype.BYTES, (1,), b"\x01\0\0\0\xff")
    with raises_kind(Kind.UNSUPPORTED, match="'X'"):
        CODEC.build_request(InferRequest("m", inputs=(tensor,)), GENERIC)


HEAD = (
    '{"inputs":[{"name":"X","datatype":"INT8","shape":[SIZE],"parameters":'
    '{"unit":"m","binary_data_size":SIZE}}]}'
)


@pytest.mark.parametrize("size", [0, 2])
def test_binary_data_needs_the_header_and_every_byte(size: int) -> None:
    head = HEAD.replace("SIZE", str(size)).encode()
    blob = b"ab"[:size]
    length = str(len(head))
    wire = post(head + blob, inference_header_content_length=length)
    (tensor,) = parse(wire).inputs
    assert (bytes(tensor.data), dict(tensor.parameters)) == (blob, {"unit": "m"})
    refused(post(head), "'X'", "Inference-Header-Content-Length")
    refused(post(head + blob + b"c", inference_header_content_length=length), "1 bytes")
    for value in (b"-1", b"1.5", b"true", b'"2"', b"null"):
        text = head.replace(b'_size":%d' % size, b'_size":' + value)
        refused(post(text + blob, inference_header_content_length=str(len(text))), "'X'")
    text = head.replace(b'"name"', b'"data":[],"name"')
    refused(post(text + blob, inference_header_content_length=str(len(text))), "'X'", "both")


def test_long_error_texts_are_truncated() -> None:
    error = refused(
        post('{"inputs":[{"name":"' + "n" * 100_000 + '","datatype":"INT8","shape":[-1]}]}')
    )
    assert len(body(CODEC.build_error(error))) < 3000


def test_operations_that_the_protocol_does_not_have_are_unsupported() -> None:
    with raises_kind(Kind.UNSUPPORTED, match="server_status"):
        CODEC.build_request(ServerStatusRequest(), TRITON)


def test_parameters_of_the_other_tensor_format_are_omitted() -> None:
    """KServe's gRPC responses contain sizes of binary data; gRPC clients may send any parameter."""
    binary = {"binary_data_size": 7, "binary_data": True, "binary_data_output": True}
    with_other = Tensor("X", Datatype.INT8, (1,), b"\x01", {**binary, "kept": 1})
    without_other = Tensor("Z", Datatype.INT8, (1,), b"\x01", binary)
    request = InferRequest(
        "m", "", "", binary, (with_other, without_other), (RequestedOutput("Y", binary),)
    )
    document = json.loads(body(CODEC.build_request(request, GENERIC)))
    assert document == {
        "inputs": [
            {"name": "X", "datatype": "INT8", "shape": [1], "parameters": {"kept": 1}, "data": [1]},
            {"name": "Z", "datatype": "INT8", "shape": [1], "data": [1]},
        ],
        "outputs": [{"name": "Y"}],
    }
    response = CODEC.build_response(
        InferResponse("m", "", "", binary, (without_other,)), ParsedRequest(request)
    )
    assert json.loads(body(response)) == {
        "model_name": "m",
        "outputs": [{"name": "Z", "datatype": "INT8", "shape": [1], "data": [1]}],
    }


def test_raw_requests() -> None:
    headers = {"inference-header-content-length": "0"}
    wire = HttpRequest("POST", "/v2/models/m/versions/1/infer", "", headers, [b"ab", b"cd"])
    partial = CODEC.parse_request(wire, DEFAULT_LIMITS)
    assert (partial.model, partial.version) == ("m", "1")
    for request in (partial, pickle.loads(pickle.dumps(partial))):
        parsed = request.complete(ModelMetadata("m", inputs=(TensorMetadata("X", "INT8", (-1,)),)))
        tensor = Tensor("X", Datatype.INT8, (4,), b"abcd")
        assert parsed.operation == InferRequest("m", "1", inputs=(tensor,))
        assert parsed.response_options.is_binary("any")
    validated = CODEC.validate(wire, DEFAULT_LIMITS)
    assert body(validated) == b"abcd"
    rewritten = CODEC.rewrite_request(validated, "n", "2", TRITON)
    assert (rewritten.path, rewritten.headers) == (
        "/v2/models/n/versions/2/infer",
        {"content-type": "application/octet-stream", **headers},
    )
    assert CODEC.rewrite_request(validated, "n", "2", MLSERVER) is None
    with pytest.raises(GatewayError, match="has 0"):
        partial.complete(ModelMetadata("m"))


@pytest.mark.parametrize(
    "length", ["", "-1", "+5", "5, 5", "0x5", "\N{ARABIC-INDIC DIGIT FIVE}", "1e3", "9" * 30]
)
def test_a_malformed_length_header_is_refused(length: str) -> None:
    refused(post(PLAIN, inference_header_content_length=length), "Inference-Header-Content-Length")


# ---- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
def test_every_kind_has_a_status(kind: Kind) -> None:
    wire = CODEC.build_error(GatewayError(kind, 'what "went" wrong', retry_after=1.2))
    assert wire.status == STATUS_BY_KIND[kind] >= 400
    assert wire.headers == {"content-type": "application/json", "retry-after": "2"}
    assert json.loads(body(wire)) == {"error": 'what "went" wrong'}


def test_an_unknown_retry_after_is_omitted() -> None:
    for seconds in (None, float("inf")):
        error = GatewayError(Kind.OVERLOADED, "x", retry_after=seconds)
        assert "retry-after" not in CODEC.build_error(error).headers


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, Kind.BAD_REQUEST),
        (401, Kind.UNAUTHENTICATED),
        (403, Kind.FORBIDDEN),
        (404, Kind.NOT_FOUND),
        (405, Kind.BACKEND_GARBAGE),
        (409, Kind.BAD_REQUEST),
        (413, Kind.TOO_LARGE),
        (422, Kind.BAD_REQUEST),
        (429, Kind.RATE_LIMITED),
        (500, Kind.BACKEND_ERROR),
        (501, Kind.UNSUPPORTED),
        (502, Kind.BACKEND_ERROR),
        (503, Kind.NO_BACKEND),
        (504, Kind.TIMEOUT),
        (302, Kind.BACKEND_GARBAGE),
        (204, Kind.BACKEND_GARBAGE),
        (700, Kind.BACKEND_GARBAGE),
    ],
)
def test_kind_of_a_status(status: int, kind: Kind) -> None:
    assert kind_of_status(status) is kind


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (500, '{"error":"Unable to parse \'data\': attempt to access"}', Kind.BAD_REQUEST),
        (500, '{"error":"failed to parse the request JSON buffer: x"}', Kind.BAD_REQUEST),
        (500, "attempt to access JSON non-array as array", Kind.BAD_REQUEST),
        (500, '{"error":"the model said: Unable to parse \'data\'"}', Kind.BACKEND_ERROR),
        (503, '{"error":"Unable to parse \'data\'"}', Kind.NO_BACKEND),
    ],
)
def test_a_client_error_under_status_500_is_a_client_error(
    status: int, text: str, kind: Kind
) -> None:
    with pytest.raises(GatewayError) as caught:
        read_response(ok(text, status))
    assert (caught.value.kind, caught.value.origin) == (kind, Origin.BACKEND)
    assert caught.value.detail.startswith(f"HTTP {status}")


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ('{"error":"e"}', "e"),
        ('{"error":{"code":1}}', '{"code": 1}'),
        ('{"error":{"code":1,"message":"m"}}', "m"),
        ('data: {"error":"in an event"}\n\n', "in an event"),
        ('{"error":"","detail":"d"}', "d"),
        (
            '{"detail":[{"loc":["a",0],"msg":"m"},{"msg":"n"},{"x":1},"s"]}',
            'a.0: m; n; {"x": 1}; s',
        ),
        ('{"other":1}', '{"other":1}'),
        ('{"error":', '{"error":'),
        ("[" * 5000, "[" * 2000),
        ("one\n\ntwo", "one"),
        ("Traceback (most recent call last):\n  File x\nKeyError: 'a'\n\n", "KeyError: 'a'"),
        ("<html><TITLE> Bad\n gateway</TITLE>", "Bad gateway"),
        ("<p>", "the backend responded with HTTP 500"),
        ("<title>" * 11_000, "the backend responded with HTTP 500"),
        ("<p>" + " " * 4096 + "<title>late</title>", "the backend responded with HTTP 500"),
        ("  ", "the backend responded with HTTP 500"),
        ("{" + '"a":' * 3000, ("{" + '"a":' * 3000)[:2000]),
    ],
)
def test_error_bodies(text: str, public: str) -> None:
    wire = HttpResponse(500, {"retry-after": "7"}, [text.encode()])
    for call in (
        lambda: read_response(wire),
        lambda: CODEC.rewrite_response(wire, post(PLAIN), "", "", DEFAULT_LIMITS),
    ):
        with pytest.raises(GatewayError) as caught:
            call()
        error = caught.value
        assert (error.kind, error.origin) == (Kind.BACKEND_ERROR, Origin.BACKEND)
        assert error.public == public
        assert error.detail.startswith("HTTP 500")
        assert error.retry_after == 7


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_an_output_that_a_server_does_not_write_in_json(datatype: str) -> None:
    """The texts are the error texts of Triton and of KServe."""
    for word in ("sending", "Sending"):
        text = f'{{"error":"{word} {datatype} data via JSON is not supported. Please use binary"}}'
        with pytest.raises(OutputsNeedTranslationError):
            read_response(ok(text, 400))


@pytest.mark.parametrize("text", ['{"error":{"a":1}}', '{"error":""}'])
def test_an_error_without_text_under_200(text: str) -> None:
    with raises_kind(Kind.BACKEND_ERROR, match="without a message"):
        read_response(ok(text))


# ---- responses of backends -----------------------------------------------------------------------


ONE_OUTPUT = '{"outputs":[{"name":"Y","datatype":"INT8","shape":[1]}]}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "JSON"),
        ("{}", "outputs is missing"),
        (ONE_OUTPUT, "no data"),
        (
            ONE_OUTPUT.replace("[1]", '[1],"parameters":{"binary_data_size":1}'),
            "0 bytes are left",
        ),
        (ONE_OUTPUT.replace("INT8", "ODD"), "ODD"),
        ('{"outputs":[Y,Y]}'.replace("Y", '{"name":"Y","datatype":"INT8","shape":[0]}'), "twice"),
        ('{"model_version":1,"outputs":[]}', "model_version"),
    ],
)
def test_unusable_responses(text: str, expected: str) -> None:
    with raises_kind(Kind.BACKEND_GARBAGE, match=expected) as caught:
        read_response(ok(text))
    assert caught.value.origin is Origin.BACKEND


def test_a_response_in_a_wrong_encoding() -> None:
    for encoding in ("br", "gzip"):
        with raises_kind(Kind.BACKEND_GARBAGE):
            CODEC.parse_response(
                ok("{}", content_encoding=encoding), InferRequest("m"), DEFAULT_LIMITS
            )


def test_an_empty_output_without_data() -> None:
    wire = ok('{"outputs":[{"name":"Y","datatype":"FP32","shape":[0,2]}]}')
    assert read_response(wire) == InferResponse(
        "m", outputs=(Tensor("Y", Datatype.FP32, (0, 2), b""),)
    )


def test_bytes_elements_are_limited_in_json() -> None:
    data = "[" + '"",' * (1 << 20) + '""]'
    tensor = f'{{"name":"X","datatype":"BYTES","shape":[{(1 << 20) + 1}],"data":{data}}}'
    refused(post(f'{{"inputs":[{tensor}]}}'), "'X'", kind=Kind.TOO_LARGE)


def test_bytes_elements_are_limited_over_all_tensors() -> None:
    """Each tensor is within the limit, but all tensors together would block the event loop."""
    count = 2**19 + 1
    size = 4 * count
    inputs = ",".join(
        f'{{"name":"{name}","shape":[{count}],"datatype":"BYTES",'
        f'"parameters":{{"binary_data_size":{size}}}}}'
        for name in ("A", "B")
    )
    head = f'{{"inputs":[{inputs}]}}'.encode()
    wire = post(head + bytes(2 * size), inference_header_content_length=str(len(head)))
    with raises_kind(Kind.TOO_LARGE, match="tensor 'B'"):
        CODEC.parse_request(wire, DEFAULT_LIMITS)


# ---- the amount of text in a message -------------------------------------------------------------


def estimated_text_bytes(data: bytes, **headers: str) -> int:
    wire = post(data, **headers)
    CODEC.open_request(wire)
    return CODEC.request_text_bytes(wire)


def test_estimated_text_of_requests_is_the_json_part() -> None:
    assert estimated_text_bytes(b"x" * 100) == 100
    assert estimated_text_bytes(b"x" * 100, inference_header_content_length="40") == 40
    assert estimated_text_bytes(b"x" * 100, inference_header_content_length="0") == 0
    for length in ("9" * 5000, "400", "-1", "x", "²"):
        assert estimated_text_bytes(b"x" * 100, inference_header_content_length=length) == 100


def test_the_gzip_length_field_bounds_the_body() -> None:
    compressed = gzip.compress(b"x" * 300_000)
    wrong_length = compressed[:-4] + (5000).to_bytes(4, "little")
    with raises_kind(Kind.BAD_REQUEST, match="exceeds its declared length"):
        decode_body({"content-encoding": "gzip"}, (wrong_length,), DEFAULT_LIMITS)


def test_estimated_text_of_compressed_requests() -> None:
    short, long = gzipped(b"x" * 1000), gzipped(b"x" * 300_000)
    assert estimated_text_bytes(short, content_encoding="gzip") == 1000
    assert estimated_text_bytes(short, content_encoding=" Identity") == len(short)
    assert (
        estimated_text_bytes(long, content_encoding="gzip") == 300_000
    )  # taken from gzip's length field
    assert estimated_text_bytes(zlib.compress(b"x" * 300_000), content_encoding="deflate") > 300_000
    binary = {"content_encoding": "gzip", "inference_header_content_length": "40"}
    assert estimated_text_bytes(short, **binary) == 40
    assert estimated_text_bytes(long, **binary) == 300_000  # the whole body is inflated
    for data in (b"x" * 100, os.urandom(100_000)):
        assert 0 <= estimated_text_bytes(data, content_encoding="gzip") <= len(data) * 1032


def test_short_compressed_bodies_are_inflated_once() -> None:
    plain = b'{"inputs":[]}'
    short = post(gzipped(plain), content_encoding="gzip", accept_encoding="gzip")
    headers = short.headers
    assert CODEC.request_text_bytes(short) == len(plain)
    assert short.headers is headers  # the estimate does not change the request
    CODEC.open_request(short)
    assert CODEC.request_text_bytes(short) == len(plain)
    assert (short.headers, short.body) == ({"accept-encoding": "gzip"}, (plain,))
    assert headers["content-encoding"] == "gzip"  # the original headers are unchanged
    for encoding, data in (
        ("gzip", gzipped(b"x" * 300_000)),
        ("gzip", b"x" * 100),
        ("br", plain),
    ):
        wire = post(data, content_encoding=encoding)
        CODEC.open_request(wire)
        assert wire == post(data, content_encoding=encoding)


def test_estimated_text_of_responses() -> None:
    tensors = (Tensor("A", Datatype.UINT8, (7,), bytes(7)), Tensor("B", Datatype.INT8, (2,), b"ab"))
    response = InferResponse("m", outputs=tensors)
    request = InferRequest("m")
    for formats, default, accept, expected in (
        ({}, False, "", 9),
        ({"A": True}, False, "", 2),
        ({}, True, "", 0),
        ({}, True, "identity, gzip;q=0", 0),
        ({}, True, "gzip", 9),
    ):
        parsed = ParsedRequest(request, ResponseFormat(formats, default, accept))
        assert CODEC.response_text_bytes(response, parsed) == expected
    assert CODEC.response_text_bytes(response, ParsedRequest(request)) == 9
    assert CODEC.response_text_bytes(HealthStatus(ok=True), ParsedRequest(ServerLiveRequest())) == 0


def test_estimated_text_of_passed_through_messages() -> None:
    def text(accept: str, **headers: str) -> int:
        return CODEC.rewrite_bytes(ok(b"x" * 1000, **headers), post("", accept_encoding=accept))

    assert (text(""), text("identity"), text("gzip")) == (0, 0, 1000)
    assert text("", content_encoding="gzip") == 1000 * 1032


def with_parameters(
    tensor_parameters: dict[str, Any], parameters: dict[str, Any], request_id: str = ""
) -> HttpRequest:
    tensor = {"name": "I", "datatype": "UINT8", "shape": [1], "data": [1]}
    tensor_members = {**tensor, "parameters": tensor_parameters}
    return post(
        json.dumps({"id": request_id, "inputs": [tensor_members], "parameters": parameters})
    )


@pytest.mark.parametrize("nested", [False, True])
def test_the_parameters_of_a_message_are_counted_together(nested: bool) -> None:
    def read(values: int) -> Any:
        half = values // 2
        tensor_parameters: Any = {f"p{i}": i for i in range(half)}
        if nested:
            tensor_parameters = {"a": [[0] * (half - 4)], "b": {"c": 1}}
        return parse(with_parameters(tensor_parameters, {f"q{i}": i for i in range(values - half)}))

    assert read(16_384)
    with raises_kind(Kind.TOO_LARGE, match="parameters exceed 16384 values"):
        read(16_386)


@pytest.mark.parametrize("position", ["id", "value", "nested", "name", "two objects"])
def test_texts_outside_tensors_are_bounded_in_total(position: str) -> None:
    """Helper processes return pickled texts, and the event loop decodes the texts."""

    def read(size: int) -> Any:
        text = "a" * size
        half = text[: size // 2]
        texts = {
            "id": ({}, {}, text),
            "value": ({}, {"": text}),
            "nested": ({}, {"": [{"": text}]}),
            "name": ({text: 1}, {}),
            "two objects": ({"": half}, {"": half}),
        }
        return parse(with_parameters(*texts[position]))

    assert read(4 * 1024 * 1024)
    with raises_kind(Kind.TOO_LARGE, match="over 4194304 characters of text"):
        read(4 * 1024 * 1024 + 2)
