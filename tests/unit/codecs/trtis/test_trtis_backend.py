"""Requests to legacy servers, and their responses that the captured traffic does not cover."""

import math
from dataclasses import replace
from typing import Any

import pytest
from trtis_gateway import MODELS

from gateway_errors import raises_kind, refused
from infergate.codecs.base import CodecPlugin
from infergate.codecs.profiles import GENERIC
from infergate.codecs.protos.plain_values import MAX_VALUES
from infergate.codecs.protos.wire_scanner import field_prefix
from infergate.codecs.trtis import GRPC, HTTP, http_backend
from infergate.codecs.trtis import messages as pb
from infergate.codecs.trtis.http_backend import MAX_REQUEST_HEADER
from infergate.codecs.trtis.server_status import MAX_BYTES, MAX_FIELDS, write_status
from infergate.codecs.trtis.text_format import to_line
from infergate.core.classification import MAX_CLASSES
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.limits import DEFAULT_LIMITS, Limits, NeedsOffloadError, event_loop_limits
from infergate.core.messages import (
    OPERATION_NAMES,
    HealthStatus,
    InferRequest,
    InferResponse,
    LogSettingsRequest,
    ModelConfig,
    ModelConfigRequest,
    ModelIndex,
    ModelIndexEntry,
    ModelIndexRequest,
    ModelMetadata,
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelStatisticsRequest,
    Operation,
    RequestedOutput,
    ServerLiveRequest,
    ServerMetadata,
    ServerMetadataRequest,
    ServerReadyRequest,
    ServerStatusRequest,
    SharedMemoryRegisterRequest,
    SharedMemoryStatusRequest,
    TensorMetadata,
)
from infergate.core.tensor import Tensor, pack_bytes, unpack_bytes
from infergate.core.wire import HttpResponse, RpcResponse, join_parts

PLUGINS = pytest.mark.parametrize("plugin", [HTTP, GRPC], ids=lambda plugin: plugin.name)
CODECS: Any = HTTP.create({}), GRPC.create({})
HTTP_CODEC, GRPC_CODEC = CODECS
SIMPLE = MODELS["simple"].metadata
NOBATCH = MODELS["identity_nobatch"].metadata
CLASSIFY = MODELS["classify"].metadata


def zeros(name: str, *shape: int, datatype: Datatype = Datatype.INT32) -> Tensor:
    return Tensor(name, datatype, shape, bytes(4 * math.prod(shape)))


def simple(batch: int = 1, **fields: Any) -> InferRequest:
    inputs = (zeros("INPUT0", batch, 16), zeros("INPUT1", batch, 16))
    return InferRequest(**{"model": "simple", "inputs": inputs, **fields})


def header_of(operation: InferRequest, model: ModelMetadata = SIMPLE) -> str:
    wire = HTTP_CODEC.build_request(operation, GENERIC, model)
    return str(wire.headers["nv-inferrequest"])


def request_error(operation: InferRequest, model: ModelMetadata = SIMPLE) -> GatewayError:
    """Return the error with which both codecs refuse to write ``operation``."""
    errors = [refused(codec.build_request, operation, GENERIC, model) for codec in CODECS]
    assert errors[0].public == errors[1].public
    return errors[0]


def parse_both(exchange: tuple[Any, Any], operation: Any, model: Any = None) -> list[Any]:
    """Return the response to ``operation`` over HTTP and over gRPC."""
    return [
        codec.parse_response(wire, operation, DEFAULT_LIMITS, model)
        for codec, wire in zip(CODECS, exchange, strict=True)
    ]


def errors_of(exchange: tuple[Any, Any], operation: Any, model: Any = None) -> list[GatewayError]:
    """Return the error in the response to ``operation`` over HTTP and over gRPC."""
    return [
        refused(codec.parse_response, wire, operation, DEFAULT_LIMITS, model)
        for codec, wire in zip(CODECS, exchange, strict=True)
    ]


# ---- requests


def test_every_output_is_requested_by_name() -> None:
    header = header_of(simple(2))
    assert header == (
        'batch_size: 2 input { name: "INPUT0" dims: 16 } input { name: "INPUT1" dims: 16 } '
        'output { name: "OUTPUT0" } output { name: "OUTPUT1" }'
    )


def test_ids_sequences_and_other_parameters() -> None:
    parameters = {
        "sequence_id": "42",
        "sequence_start": True,
        "sequence_end": True,
        "priority": 3,
        "timeout": 7,
        "other": [1],
    }
    request = simple(id="9", parameters=parameters)
    assert header_of(request).endswith(" correlation_id: 42 id: 9 flags: 3")
    header = header_of(request, replace(SIMPLE, supports_scheduling=True))
    assert header.endswith("correlation_id: 42 id: 9 flags: 3 priority: 3 timeout_microseconds: 7")
    for id_ in ("", "abc", "-1", "18446744073709551616", "٣", "1" * 5000):
        assert " id: " not in header_of(simple(id=id_))


@pytest.mark.parametrize(
    ("version", "supports_scheduling"),
    [
        ("1.15.0", True),
        ("1.12", True),
        ("2.0.0dev", True),
        ("1." + "9" * 5000, True),
        *((version, False) for version in ("1.11.0", "1.9.0", "", "next", "12")),
    ],
)
def test_servers_that_support_priority_and_timeout(
    version: str, *, supports_scheduling: bool
) -> None:
    status = pb.ServerStatus(version=version)
    status.model_status["m"].version_status[1].ready_state = 1
    for metadata in parse_both(status_of(status), ModelMetadataRequest("m")):
        assert (metadata.supports_scheduling, metadata.unavailable) == (supports_scheduling, False)


def test_a_model_that_is_not_ready_gets_no_request() -> None:
    request = simple(inputs=(zeros("X", 1),))
    error = request_error(request, replace(SIMPLE, unavailable=True))
    assert (error.kind, error.origin) == (Kind.NO_BACKEND, Origin.BACKEND)
    assert error.public == "Request for unknown model: 'simple' has no available versions"
    error = request_error(replace(request, version="2"), replace(SIMPLE, unavailable=True))
    assert error.public.endswith("'simple' version 2 is not at ready state")


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"sequence_id": "abc"}, "'sequence_id' is 'abc': the backend only supports numbers"),
        ({"sequence_id": -1}, "'sequence_id' must be an integer from 0 to 2^64-1"),
        ({"sequence_id": True}, "'sequence_id' must be an integer from 0 to 2^64-1"),
        ({"sequence_start": 1}, "'sequence_start' must be true or false"),
        ({"priority": 2**32}, "'priority' must be an integer from 0 to 2^32-1"),
        ({"timeout": "5"}, "'timeout' must be an integer from 0 to 2^64-1"),
    ],
)
def test_parameters_out_of_range(parameters: dict[str, Any], expected: str) -> None:
    error = request_error(simple(parameters=parameters))
    assert (error.kind, error.public) == (Kind.BAD_REQUEST, f"parameter {expected}")


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (simple(inputs=(zeros("X", 1, 16),)), "unexpected inference input 'X' for model 'simple'"),
        (
            simple(inputs=(zeros("INPUT0", 1, 16, datatype=Datatype.FP32),)),
            "tensor 'INPUT0' is FP32, but model 'simple' expects INT32",
        ),
        (
            simple(inputs=(zeros("INPUT0"),)),
            "tensor 'INPUT0': shape [] has no batch dimension, which model",
        ),
        (
            simple(inputs=(zeros("INPUT0", 1, 16), zeros("INPUT1", 2, 16))),
            "tensor 'INPUT1' has batch size 2, but another input has 1",
        ),
        (simple(outputs=(RequestedOutput("X"),)), "unexpected inference output 'X' for model"),
        (
            simple(outputs=(RequestedOutput("OUTPUT0", {"classification": 0}),)),
            "output 'OUTPUT0': parameter 'classification' must be an integer from 1 to 2^32-1",
        ),
        (simple(version="v2"), "version 'v2' of model 'simple' is not found"),
        (simple(version="9" * 19), "version '9999999999999999999' of model"),
        (simple(version="9" * 5000), "version '999"),
    ],
)
def test_requests_that_contradict_the_model_are_refused(
    operation: InferRequest, expected: str
) -> None:
    error = request_error(operation)
    assert error.kind is Kind.BAD_REQUEST
    assert error.public.startswith(expected)


def test_a_batch_over_the_maximum_is_left_to_the_server() -> None:
    assert header_of(simple(9)).startswith("batch_size: 9 ")


def test_a_model_without_inputs() -> None:
    model = ModelMetadata("m", outputs=(TensorMetadata("O", "FP32", (-1, 2)),), max_batch_size=4)
    assert header_of(InferRequest("m"), model) == 'batch_size: 1 output { name: "O" }'


def test_an_unsupported_datatype() -> None:
    model = replace(NOBATCH, outputs=(TensorMetadata("OUTPUT0", "BF16", (1,)),))
    error = request_error(InferRequest("m", inputs=(zeros("INPUT0", 1),)), model)
    assert error.kind is Kind.UNSUPPORTED
    assert error.public == "output 'OUTPUT0': datatype 'BF16' does not exist in the legacy API"


def test_a_header_over_the_servers_limit_is_rejected() -> None:
    def model(length: int) -> ModelMetadata:
        return replace(NOBATCH, outputs=(TensorMetadata("o" * length, "INT32", (-1,)),))

    operation = InferRequest("m", inputs=(zeros("INPUT0", 1),))
    spare = MAX_REQUEST_HEADER - len(header_of(operation, model(1)))
    assert len(header_of(operation, model(1 + spare))) == MAX_REQUEST_HEADER
    with raises_kind(Kind.TOO_LARGE, match="take 8191 bytes of the header NV-InferRequest"):
        header_of(operation, model(2 + spare))
    GRPC_CODEC.build_request(operation, GENERIC, model(2 + spare))


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("", Kind.NOT_FOUND),
        ("a/b", Kind.NOT_FOUND),
        ("simple/", Kind.NOT_FOUND),
        ("a b", Kind.UNSUPPORTED),
        ("größe", Kind.UNSUPPORTED),
        ("a%zz", Kind.UNSUPPORTED),
        ("..", Kind.UNSUPPORTED),
        ("x" * 8001, Kind.UNSUPPORTED),
    ],
)
def test_names_that_cannot_be_in_a_path(model: str, kind: Kind) -> None:
    with raises_kind(kind):
        HTTP_CODEC.build_request(ModelMetadataRequest(model), GENERIC)


@PLUGINS
@pytest.mark.parametrize(
    "operation", [ModelMetadataRequest(""), ModelReadyRequest(""), ModelConfigRequest("")]
)
def test_an_empty_name_is_an_error(plugin: CodecPlugin, operation: Operation) -> None:
    with raises_kind(Kind.NOT_FOUND, match="no model has the name ''"):
        plugin.create({}).build_request(operation, GENERIC)


def test_names_are_sent_unchanged() -> None:
    wire = HTTP_CODEC.build_request(ModelMetadataRequest("sim%70le"), GENERIC)
    assert (wire.path, wire.query) == ("/api/status/sim%70le", "format=binary")
    with pytest.raises(GatewayError, match="not valid Unicode"):
        GRPC_CODEC.build_request(ModelMetadataRequest("\ud800"), GENERIC)


def test_a_number_that_protobuf_cannot_hold_is_reported() -> None:
    region = SharedMemoryRegisterRequest("r", "/r", size=1 << 64)
    with raises_kind(Kind.BAD_REQUEST, match="out of range: 18446744073709551616"):
        GRPC_CODEC.build_request(region, GENERIC)


@PLUGINS
@pytest.mark.parametrize("operation", [LogSettingsRequest(), SharedMemoryStatusRequest()])
def test_operations_that_the_api_does_not_have(plugin: Any, operation: Any) -> None:
    with raises_kind(Kind.UNSUPPORTED, match=OPERATION_NAMES[type(operation)]):
        plugin.create({}).build_request(operation, GENERIC)


def test_tensors_are_not_copied() -> None:
    operation = simple()
    wire = HTTP_CODEC.build_request(operation, GENERIC, SIMPLE)
    assert all(part is t.data for part, t in zip(wire.body, operation.inputs, strict=True))
    call = GRPC_CODEC.build_request(operation, GENERIC, SIMPLE)
    assert all(any(part is t.data for part in call.message) for t in operation.inputs)


# ---- reading responses

STATUS = 'code: SUCCESS server_id: "s" request_id: 1'
REQUEST = InferRequest("identity_nobatch", inputs=(zeros("INPUT0", 2),))


def output(**fields: Any) -> dict[str, Any]:
    return {"name": "OUTPUT0", **fields}


RAW = output(raw={"dims": [2], "batch_byte_size": 8})
CLASSES_OUTPUT = output(batch_classes=[{"cls": [{"idx": 1, "value": 0.7, "label": "dog"}]}])


def response_pair(outputs: list[dict[str, Any]], *raw: bytes, batch: int = 1) -> tuple[Any, Any]:
    """Return the same response over HTTP and gRPC."""
    header = pb.InferResponseHeader(
        model_name="m", model_version=3, batch_size=batch, output=outputs
    )
    head = pb.InferResponse(request_status={"code": 1}, meta_data=header, raw_output=raw)
    return (
        HttpResponse(200, {"nv-inferresponse": to_line(header), "nv-status": STATUS}, list(raw)),
        RpcResponse((head.SerializeToString(),)),
    )


def parse(
    exchange: tuple[Any, Any], operation: InferRequest = REQUEST, model: ModelMetadata = NOBATCH
) -> InferResponse:
    http_response, grpc_response = parse_both(exchange, operation, model)
    assert isinstance(http_response, InferResponse)
    assert http_response == grpc_response
    return http_response


def error_texts(
    exchange: tuple[Any, Any], operation: InferRequest = REQUEST, model: ModelMetadata = NOBATCH
) -> list[str]:
    errors = errors_of(exchange, operation, model)
    assert {(error.kind, error.origin) for error in errors} == {
        (Kind.BACKEND_GARBAGE, Origin.BACKEND)
    }
    return [error.public for error in errors]


def test_a_missing_trailer_and_any_order_are_accepted() -> None:
    first, second = (
        {"name": f"OUTPUT{i}", "raw": {"dims": [16], "batch_byte_size": 64}} for i in (0, 1)
    )
    data = [bytes((i,)) * 64 for i in (0, 1)]
    response = parse(response_pair([second, first], data[1], data[0]), simple(), SIMPLE)
    assert [tensor.name for tensor in response.outputs] == ["OUTPUT0", "OUTPUT1"]
    assert [bytes(tensor.data) for tensor in response.outputs] == data
    assert (response.model, response.version, response.id) == ("m", "3", "")


def test_the_response_has_the_requests_id() -> None:
    request = replace(REQUEST, id="not a number")
    assert parse(response_pair([RAW], bytes(8)), request).id == "not a number"


@pytest.mark.parametrize(
    ("outputs", "raw", "expected"),
    [
        ([RAW], b"", ""),
        (
            [output(raw={"dims": [3], "batch_byte_size": 8})],
            bytes(8),
            "shape [3] of INT32 needs 12",
        ),
        ([output(raw={"dims": [-2], "batch_byte_size": 8})], bytes(8), "shape has -2"),
        ([output(raw={"dims": [1] * 65, "batch_byte_size": 8})], bytes(8), "65 dimensions"),
        ([output()], b"", "output 'OUTPUT0' has no raw data"),
        ([RAW, RAW], bytes(8), "occurs twice"),
        ([{**RAW, "name": "X"}], bytes(8), "output 'X' was not requested"),
        ([CLASSES_OUTPUT], b"", "output 'OUTPUT0' has no raw data"),
        ([], b"", "it has no output 'OUTPUT0'"),
        ([output(raw={"dims": [0]})] * 1025, b"", "1025 outputs; the limit is 1024"),
    ],
)
def test_invalid_outputs(outputs: list[dict[str, Any]], raw: bytes, expected: str) -> None:
    for public in error_texts(response_pair(outputs, *([raw] * len(outputs)))):
        assert public.startswith("the backend's response is invalid")
        assert expected in public


def test_a_wrong_batch_size_is_refused() -> None:
    error = error_texts(response_pair([RAW], bytes(8), batch=2), simple(), SIMPLE)
    assert error == ["the backend's response is invalid: it has batch size 2, not 1"] * 2


def test_surplus_raw_output_entries_are_refused() -> None:
    _, call = response_pair([RAW], bytes(8), bytes(8))
    with pytest.raises(GatewayError, match="2 raw_output entries for 1 outputs"):
        GRPC_CODEC.parse_response(call, REQUEST, DEFAULT_LIMITS, NOBATCH)


CLASSIFIED = InferRequest(
    "classify",
    inputs=(zeros("INPUT0", 1, 4, datatype=Datatype.FP32),),
    outputs=(RequestedOutput("OUTPUT0", {"classification": 1}),),
)


def test_classes_become_strings() -> None:
    (tensor,) = parse(response_pair([CLASSES_OUTPUT], b""), CLASSIFIED, CLASSIFY).outputs
    classes = pack_bytes([b"0.700000:1:dog"])
    assert tensor == Tensor("OUTPUT0", Datatype.BYTES, (1, 1), classes)


@pytest.mark.parametrize("entries", [[], [{"cls": []}, {"cls": []}], [{"cls": [{}]}, {"cls": []}]])
def test_invalid_classes(entries: list[Any]) -> None:
    error = error_texts(response_pair([output(batch_classes=entries)], b""), CLASSIFIED, CLASSIFY)
    assert f"has classes for {len(entries)} batch entries; expected the same number" in error[0]


@pytest.mark.no_cover
def test_too_many_classes() -> None:
    for count, expected in (
        (MAX_CLASSES + 1, f"more than {MAX_CLASSES} classes"),
        (20 * MAX_CLASSES, "cannot be parsed"),
    ):
        _, call = response_pair([output(batch_classes=[{"cls": [{}] * count}])], b"")
        with pytest.raises(GatewayError, match=expected):
            GRPC_CODEC.parse_response(call, CLASSIFIED, DEFAULT_LIMITS, CLASSIFY)


def test_classes_only_in_the_trailer() -> None:
    without_classes, _ = response_pair([output()], b"")
    _, full = response_pair([CLASSES_OUTPUT], b"")
    header = pb.InferResponse.FromString(join_parts(full.message)).meta_data
    without_classes.body = [header.SerializeToString()]
    response = HTTP_CODEC.parse_response(without_classes, CLASSIFIED, DEFAULT_LIMITS, CLASSIFY)
    assert list(unpack_bytes(response.outputs[0].data)) == [b"0.700000:1:dog"]
    for trailer in ([], [b"\xff"]):
        without_classes.body = trailer
        with pytest.raises(GatewayError, match="has classes for 0 batch entries"):
            HTTP_CODEC.parse_response(without_classes, CLASSIFIED, DEFAULT_LIMITS, CLASSIFY)


ROWS = 12
CLASSES = [{"idx": k, "value": k / 7, "label": f"batch_byte_size: {k}"} for k in range(100)]
RAW_OUTPUT = {"name": "OUTPUT1", "raw": {"dims": [2], "batch_byte_size": 8 * ROWS}}
VALUES_AND_CLASSES = replace(
    CLASSIFIED,
    inputs=(zeros("INPUT0", ROWS, 4, datatype=Datatype.FP32),),
    outputs=(RequestedOutput("OUTPUT0", {"classification": 100}), RequestedOutput("OUTPUT1")),
)
TWO_OUTPUTS = replace(
    CLASSIFY,
    max_batch_size=ROWS,
    outputs=(*CLASSIFY.outputs, TensorMetadata("OUTPUT1", "INT32", (-1, 2))),
)


def test_a_long_header_is_read_from_the_binary_trailer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing text takes 1 ms per KiB, so a helper process parses headers without a trailer."""
    wire, call = response_pair(
        [output(batch_classes=[{"cls": CLASSES}] * ROWS), RAW_OUTPUT], bytes(8 * ROWS), batch=ROWS
    )
    (line,) = wire.headers["nv-inferresponse"].splitlines()
    assert len(line) > 50_000
    header = pb.InferResponse.FromString(join_parts(call.message)).meta_data.SerializeToString()
    wire.body = [bytes(8 * ROWS), header]

    def parse_with(limits: Limits) -> InferResponse:
        response: InferResponse = HTTP_CODEC.parse_response(
            wire, VALUES_AND_CLASSES, limits, TWO_OUTPUTS
        )
        return response

    with monkeypatch.context() as patch:
        patch.setattr(http_backend.text_format, "parse", lambda kind, _: kind(code=1))
        response = parse_with(DEFAULT_LIMITS)
    assert [tensor.shape for tensor in response.outputs] == [(ROWS, 100), (ROWS, 2)]
    assert next(unpack_bytes(response.outputs[0].data)) == b"0.000000:0:batch_byte_size: 0"
    for body in ([bytes(8 * ROWS)], [bytes(8 * ROWS), b"\xff"]):
        wire.body = body
        assert parse_with(DEFAULT_LIMITS) == response
        with pytest.raises(NeedsOffloadError):
            parse_with(event_loop_limits(DEFAULT_LIMITS))


def test_strings_over_the_limit() -> None:
    model = replace(NOBATCH, outputs=(TensorMetadata("OUTPUT0", "BYTES", (-1,)),))
    output_header = output(raw={"dims": [2**20 + 1], "batch_byte_size": 8})
    for error in errors_of(response_pair([output_header], bytes(8)), REQUEST, model):
        assert error.kind is Kind.TOO_LARGE
        assert error.public.startswith("the backend's response is too large")


# ---- errors


def http_error(status: int, headers: dict[str, str], body: bytes = b"") -> GatewayError:
    wire = HttpResponse(status, headers, (body,))
    return refused(HTTP_CODEC.parse_response, wire, REQUEST, DEFAULT_LIMITS, NOBATCH)


def grpc_error(wire: RpcResponse, operation: Operation = REQUEST) -> GatewayError:
    return refused(GRPC_CODEC.parse_response, wire, operation, DEFAULT_LIMITS, NOBATCH)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (200, Kind.BACKEND_GARBAGE),
        (401, Kind.UNAUTHENTICATED),
        (404, Kind.BACKEND_GARBAGE),
        (413, Kind.TOO_LARGE),
        (429, Kind.RATE_LIMITED),
        (500, Kind.BACKEND_ERROR),
        (503, Kind.NO_BACKEND),
        (504, Kind.TIMEOUT),
    ],
)
def test_a_response_without_a_status(status: int, kind: Kind) -> None:
    error = http_error(status, {"content-type": "text/html"}, b"<h1>proxy</h1>")
    assert (error.kind, error.origin) == (kind, Origin.BACKEND)
    assert error.public == f"the backend responded with HTTP {status} without NV-Status"
    assert error.detail == "<h1>proxy</h1>"


LONG_HEADER = {"nv-status": STATUS, "nv-inferresponse": "#" * 300_000}


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"nv-status": "code: X"}, "NV-Status cannot be parsed"),
        ({"nv-status": ""}, "status has no code"),
        ({"nv-status": STATUS}, "response has no NV-InferResponse"),
        (LONG_HEADER | {"nv-inferresponse": "x: 1"}, "NV-InferResponse cannot be parsed"),
        (LONG_HEADER, "NV-InferResponse has 300000 characters; the limit is 131072"),
    ],
)
def test_invalid_headers(headers: dict[str, str], expected: str) -> None:
    error = http_error(200, headers)
    assert (error.kind, error.public) == (Kind.BACKEND_GARBAGE, f"the backend's {expected}")


def test_success_with_another_http_status() -> None:
    assert "HTTP 400 and NV-Status SUCCESS" in http_error(400, {"nv-status": STATUS}).public


def test_a_bare_400_means_an_unreadable_header() -> None:
    error = http_error(400, {"content-type": "text/plain"})
    assert (error.kind, error.origin) == (Kind.BAD_REQUEST, Origin.BACKEND)
    assert error.public == "the legacy server cannot parse the request"


def test_an_error_with_http_200() -> None:
    error = http_error(200, {"nv-status": 'code: INTERNAL msg: "no"'})
    assert (error.kind, error.public) == (Kind.BACKEND_ERROR, "no")


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (2, "", Kind.BACKEND_ERROR),
        (3, "x", Kind.BACKEND_ERROR),
        (4, "x", Kind.NOT_FOUND),
        (5, "x", Kind.BAD_REQUEST),
        (6, "busy", Kind.NO_BACKEND),
        (6, "Inference request for unknown model 'm'", Kind.NOT_FOUND),
        (6, "Request for unknown model: 'm' is not found", Kind.NOT_FOUND),
        (5, "no status available for unknown model 'm'", Kind.NOT_FOUND),
        (7, "x", Kind.UNSUPPORTED),
        (8, "x", Kind.ALREADY_EXISTS),
        (77, "x", Kind.BACKEND_ERROR),
    ],
)
def test_status_codes_become_error_kinds(code: int, text: str, kind: Kind) -> None:
    message = pb.InferResponse(request_status={"code": code, "msg": text})
    error = grpc_error(RpcResponse((message.SerializeToString(),)))
    assert (error.kind, error.origin) == (kind, Origin.BACKEND)
    assert error.public == text or not text


def test_errors_have_the_servers_retry_after() -> None:
    """A proxy in front of the server, or another gateway, may send Retry-After."""
    headers = {"retry-after": "7"}
    proxy_error = http_error(503, {"Retry-After": "7"}, b"busy")
    server_error = http_error(400, {**headers, "nv-status": 'code: UNAVAILABLE msg: "busy"'})
    assert (proxy_error.retry_after, server_error.retry_after) == (7.0, 7.0)
    status = pb.RequestStatus(code=6, msg="busy")
    for operation, message in (
        (ServerMetadataRequest(), pb.StatusResponse(request_status=status)),
        (REQUEST, pb.InferResponse(request_status=status)),
    ):
        error = grpc_error(RpcResponse((message.SerializeToString(),), metadata=headers), operation)
        assert (error.kind, error.retry_after) == (Kind.NO_BACKEND, 7.0)
    error = grpc_error(RpcResponse(code=14, metadata=headers), ServerLiveRequest())
    assert (error.kind, error.retry_after) == (Kind.NO_BACKEND, 7.0)


@pytest.mark.parametrize("operation", [ServerLiveRequest(), REQUEST])
def test_messages_that_cannot_be_parsed(operation: Operation) -> None:
    error = grpc_error(RpcResponse((b"\xff",)), operation)
    assert error.kind is Kind.BACKEND_GARBAGE
    assert "cannot be parsed" in error.public


# ---- health, status


def test_health_over_http() -> None:
    def health(status: int, headers: dict[str, str]) -> Any:
        wire = HttpResponse(status, headers)
        return HTTP_CODEC.parse_response(wire, ServerReadyRequest(), DEFAULT_LIMITS)

    assert health(200, {}) == HealthStatus(ok=True)
    assert health(400, {"nv-status": STATUS}) == HealthStatus(ok=False)
    with pytest.raises(GatewayError, match="starting"):
        health(400, {"nv-status": 'code: UNAVAILABLE msg: "starting"'})
    with pytest.raises(GatewayError, match="HTTP 400 without NV-Status"):
        health(400, {})


def status_of(message: Any) -> tuple[Any, Any]:
    response = pb.StatusResponse(request_status={"code": 1}, server_status=message)
    return (
        HttpResponse(200, {"nv-status": STATUS}, (message.SerializeToString(),)),
        RpcResponse((response.SerializeToString(),)),
    )


SERVER_STATUS = pb.ServerStatus(id="s", version="1.9.0", ready_state=2)
SERVER_STATUS.model_status["m"].config.input.add(name="I", data_type=0, dims=[1])
SERVER_STATUS.model_status["m"].version_status[-1].ready_state = 1
SERVER_STATUS.model_status["m"].version_status[2].ready_state = 9
SERVER_STATUS.model_status["n"].SetInParent()


def parse_status(operation: Any) -> list[Any]:
    return parse_both(status_of(SERVER_STATUS), operation)


def test_a_status_response_is_parsed_by_operation() -> None:
    assert parse_status(ServerMetadataRequest()) == [ServerMetadata("s", "1.9.0")] * 2
    model = ModelMetadata(
        "m",
        inputs=(TensorMetadata("I", "TYPE_INVALID", (1,)),),
        max_batch_size=0,
        unavailable=True,
    )
    assert parse_status(ModelMetadataRequest("m")) == [model] * 2
    for version in ("", "1", "-1"):
        assert parse_status(ModelReadyRequest("m", version)) == [HealthStatus(ok=False)] * 2
    index = ModelIndex((ModelIndexEntry("m", "2", ""), ModelIndexEntry("n")))
    assert parse_status(ModelIndexRequest()) == [index] * 2
    assert parse_status(ModelIndexRequest(ready_only=True)) == [ModelIndex()] * 2


@pytest.mark.parametrize(
    ("operation", "kind", "expected"),
    [
        (ModelMetadataRequest("m", "1"), Kind.NOT_FOUND, "model 'm' has no version 1"),
        (ModelConfigRequest("m", "1"), Kind.NOT_FOUND, "model 'm' has no version 1"),
        (ModelConfigRequest("x"), Kind.BACKEND_GARBAGE, "does not contain model 'x'"),
        (ModelReadyRequest("x"), Kind.BACKEND_GARBAGE, "does not contain model 'x'"),
    ],
)
def test_status_of_an_unknown_model(operation: Any, kind: Kind, expected: str) -> None:
    for error in errors_of(status_of(SERVER_STATUS), operation):
        assert error.kind is kind
        assert expected in error.public


STATEFUL = pb.ServerStatus(id="s")
STATEFUL_CONFIG = STATEFUL.model_status["m"].config
STATEFUL_CONFIG.name = "m"
STATEFUL_CONFIG.platform = "custom"
STATEFUL_CONFIG.input.add(name="I", data_type=8, dims=[2**40])
STATEFUL_CONFIG.instance_group.add(count=3)
STATEFUL_CONFIG.sequence_batching.max_sequence_idle_microseconds = 5
STATEFUL_CONFIG.sequence_batching.direct.SetInParent()


def test_the_model_configuration_comes_from_the_status() -> None:
    exchange = status_of(STATEFUL)
    for config, model in zip(
        parse_both(exchange, ModelConfigRequest("m")),
        parse_both(exchange, ModelMetadataRequest("m")),
        strict=True,
    ):
        assert isinstance(config, ModelConfig)
        settings = dict(config.settings)
        assert (config.name, settings["name"], settings["platform"]) == ("m", "m", "custom")
        assert settings["input"][0]["data_type"] == "TYPE_INT32"
        assert settings["input"][0]["dims"] == [2**40]
        assert settings["instance_group"][0]["count"] == 3
        batching = settings["sequence_batching"]
        assert (batching["max_sequence_idle_microseconds"], batching["direct"]) == (5, {})
        assert model.sequence_batching == batching
    request = GRPC_CODEC.build_request(ModelConfigRequest("m", "1"), GENERIC)
    assert request == GRPC_CODEC.build_request(ModelMetadataRequest("m"), GENERIC)


@pytest.mark.no_cover
def test_an_expensive_configuration_is_rejected() -> None:
    """A control input takes two bytes in the message, but hundreds of bytes as plain values."""
    status = pb.ServerStatus()
    batching = status.model_status["m"].config.sequence_batching
    for _ in range(MAX_VALUES // 2 + 1):
        batching.control_input.add()
    for operation in (ModelConfigRequest("m"), ModelMetadataRequest("m")):
        for error in errors_of(status_of(status), operation):
            assert error.kind is Kind.BACKEND_GARBAGE
            assert "of model 'm' is too long" in error.public


def test_an_unreadable_status_is_refused() -> None:
    wire = HttpResponse(200, {"nv-status": STATUS}, (b"\xff",))
    with pytest.raises(GatewayError, match="the backend's status cannot be parsed"):
        HTTP_CODEC.parse_response(wire, ServerMetadataRequest(), DEFAULT_LIMITS)


def field(number: int, value: bytes) -> bytes:
    return field_prefix(number, len(value)) + value


@pytest.mark.no_cover
def test_an_expensive_status_is_rejected() -> None:
    """An input takes two bytes in the message, but two hundred in protobuf and in canonical
    form."""
    inputs = b"\x2a\x00" * (MAX_FIELDS + 1)
    config = field(1, inputs)
    status = field(4, field(1, b"m") + field(2, config))
    exchange = (
        HttpResponse(200, {"nv-status": STATUS}, (status,)),
        RpcResponse((field(1, b"\x08\x01") + field(2, status),)),
    )
    for error in errors_of(exchange, ModelMetadataRequest("m")):
        assert error.kind is Kind.BACKEND_GARBAGE
        assert "status cannot be parsed" in error.public
    long = HttpResponse(200, {"nv-status": STATUS}, (field(2, b"x" * MAX_BYTES),))
    with pytest.raises(GatewayError, match=f"status has {MAX_BYTES + 5} bytes; the limit is"):
        HTTP_CODEC.parse_response(long, ServerMetadataRequest(), DEFAULT_LIMITS)


def test_the_status_of_many_models_is_parsed() -> None:
    message = pb.ServerStatus(id="s")
    for number in range(2000):
        model = message.model_status[f"model{number}"]
        model.CopyFrom(SERVER_STATUS.model_status["m"])
        model.config.output.add(name="O", data_type=9, dims=[1, 2, 3])
    for index in parse_both(status_of(message), ModelIndexRequest()):
        assert len(index.models) == 2000


def test_a_status_passes_through_unchanged() -> None:
    """The status keeps counters by batch size, and configuration fields that clients do not
    read."""
    status = pb.ServerStatus(id="s", version="1.9.0", uptime_ns=7, ready_state=2)
    model = status.model_status["m"]
    config = model.config
    config.name, config.platform, config.max_batch_size = "m", "ensemble", 4
    config.version_policy.latest.num_versions = 2
    config.instance_group.add(name="g", count=3)
    config.ensemble_scheduling.step.add(model_name="x", model_version=-1)
    config.input.add(name="I", data_type=11, dims=[2]).reshape.shape.append(1)
    config.output.add(name="O", data_type=11, dims=[3], label_filename="labels.txt")
    version = model.version_status[1]
    version.ready_state = 1
    version.ready_state_reason.SetInParent()
    version.model_execution_count, version.model_inference_count = 5, 11
    for size, count in ((1, 3), (4, 2)):
        stats = version.infer_stats[size]
        for name in ("success", "queue", "compute_infer", "compute"):
            duration = getattr(stats, name)
            duration.count, duration.total_time_ns = count, 10 * count
        stats.failed.count = 1
    for model_statistics, server, model_config in zip(
        parse_both(status_of(status), ModelStatisticsRequest("m")),
        parse_both(status_of(status), ServerStatusRequest("m")),
        parse_both(status_of(status), ModelConfigRequest("m")),
        strict=True,
    ):
        (statistics,) = model_statistics.models
        assert statistics["inference_stats"]["queue"] == {"count": 5, "ns": 50}
        assert [entry["batch_size"] for entry in statistics["batch_stats"]] == [1, 4]
        (model_status,) = server.models
        model_status = replace(model_status, statistics=(statistics,), config=model_config.settings)
        assert write_status(replace(server, models=(model_status,)), "s") == status


def test_statistics_of_servers_without_detailed_times() -> None:
    status = pb.ServerStatus(version="1.9.0")
    stats = status.model_status["m"].version_status[1].infer_stats[2]
    stats.success.count, stats.compute.count, stats.compute.total_time_ns = 3, 3, 9
    for response in parse_both(status_of(status), ModelStatisticsRequest("m")):
        (statistics,) = response.models
        assert statistics["inference_count"] == 6
        assert statistics["inference_stats"]["compute_infer"] == {"count": 3, "ns": 9}


@PLUGINS
def test_statistics_are_supported(plugin: CodecPlugin) -> None:
    assert plugin.create({}).capabilities.reports_statistics
