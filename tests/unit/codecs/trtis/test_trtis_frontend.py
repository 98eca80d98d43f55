"""The legacy frontends beyond the captured traffic: levels, formats, errors, limits and status."""

import json
from dataclasses import replace
from typing import Any

import pytest
from trtis_gateway import MODELS, respond

from gateway_errors import raises_kind
from infergate.codecs.base import ParsedRequest, PartialInferRequest
from infergate.codecs.profiles import GENERIC
from infergate.codecs.trtis import GRPC, HTTP, text_format
from infergate.codecs.trtis import messages as pb
from infergate.codecs.trtis.grpc_infer import MAX_REQUEST_FIELDS
from infergate.codecs.trtis.request_status import CODE_BY_KIND, KIND_BY_CODE, TrtisStatusError
from infergate.core.classification import CLASSIFICATION
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS, NeedsOffloadError, event_loop_limits
from infergate.core.messages import (
    HealthStatus,
    InferResponse,
    ModelIndexEntry,
    ModelMetadata,
    ModelStatus,
    ServerMetadata,
    ServerReadyRequest,
    ServerStatus,
    SharedMemoryRegion,
    SharedMemoryRegisterRequest,
    SharedMemoryStatus,
    TensorMetadata,
)
from infergate.core.tensor import Buffer, Tensor, pack_bytes
from infergate.core.wire import HttpRequest, HttpResponse, RpcRequest, join_parts

INT32 = bytes(64)
BOTH_INPUTS = 'batch_size: 1 input { name: "INPUT0" } input { name: "INPUT1" }'
REPEATED_OUTPUT = "output 'OUTPUT0' already requested"
SERVICE = "/nvidia.inferenceserver.GRPCService/"


def get(path: str, query: str = "", **headers: str) -> HttpRequest:
    return HttpRequest("GET", path, query, headers)


def infer(
    header: str | None, path: str = "/api/infer/simple", body: Buffer = 2 * INT32
) -> HttpRequest:
    headers = {} if header is None else {"nv-inferrequest": header}
    return HttpRequest("POST", path, "", headers, (body,))


def call(method: str, message: Any) -> RpcRequest:
    return RpcRequest(SERVICE + method, (message.SerializeToString(),))


def status_of(response: HttpResponse) -> Any:
    return text_format.parse(pb.RequestStatus, response.headers["NV-Status"])


def http(wire: HttpRequest, **options: Any) -> HttpResponse:
    response = respond(HTTP.create(options), wire)
    assert isinstance(response, HttpResponse)
    return response


def test_the_event_loop_leaves_a_long_header_to_a_helper() -> None:
    """``summarize``, which runs before the access check, does not parse the header."""
    codec: Any = HTTP.create({})
    limits = event_loop_limits(DEFAULT_LIMITS)
    short, long = (infer(BOTH_INPUTS + " " * (size - len(BOTH_INPUTS))) for size in (8192, 8193))
    for read in (codec.parse_request, codec.validate):
        read(short, limits)
        with pytest.raises(NeedsOffloadError):
            read(long, limits)
    assert codec.summarize(infer("input{" * 9000)).model == "simple"


# ---- levels


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/api/infer/nosuch", "'nosuch' is not found"),
        ("/api/infer/simple/99", "'simple' version 99 is not found"),
    ],
)
def test_the_error_of_v1_15_for_an_unknown_model(path: str, expected: str) -> None:
    """The captured traffic has the error of v1.9."""
    status = status_of(http(infer(BOTH_INPUTS, path), level="1.15"))
    assert status.code == pb.CODES["UNAVAILABLE"]
    assert status.msg == f"Request for unknown model: {expected}"


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("1.9", "Inference request for unknown model 'simple'"),
        ("1.15", "Request for unknown model: 'simple' has no available versions"),
    ],
)
def test_an_unready_model_is_reported_before_its_tensors(level: str, expected: str) -> None:
    codec = HTTP.create({"level": level})
    wire = infer("batch_size: 0 input { name: 'X' }")
    partial = codec.parse_request(wire, DEFAULT_LIMITS)
    assert isinstance(partial, PartialInferRequest)
    with raises_kind(Kind.NO_BACKEND) as caught:
        partial.complete(replace(MODELS["simple"].metadata, unavailable=True))
    status = status_of(codec.build_error(caught.value, wire))
    assert (status.code, status.msg) == (pb.CODES["UNAVAILABLE"], expected)


@pytest.mark.parametrize("prefix", ["", "[request id: 7] "])
def test_a_sequence_without_an_id_gets_the_legacy_error(prefix: str) -> None:
    expected = "inference request to model 'm' must specify a non-zero or non-empty correlation ID"
    wire = infer(BOTH_INPUTS)
    response = HTTP.create({}).build_error(GatewayError(Kind.BAD_REQUEST, prefix + expected), wire)
    legacy_text = "inference request to model 'm' must specify a non-zero correlation ID"
    assert status_of(response).msg == legacy_text


def test_v1_15_rejects_a_duplicate_output() -> None:
    header = BOTH_INPUTS + ' output { name: "OUTPUT0" } output { name: "OUTPUT0" }'
    assert http(infer(header)).status == 200
    status = status_of(http(infer(header), level="1.15"))
    assert (status.code, status.msg) == (pb.CODES["INVALID_ARG"], REPEATED_OUTPUT)


def test_an_output_requested_as_values_and_as_classes_is_refused() -> None:
    header = BOTH_INPUTS + ' output { name: "OUTPUT0" } output { name: "OUTPUT0" cls { count: 1 } }'
    assert status_of(http(infer(header))).msg == REPEATED_OUTPUT


@pytest.mark.parametrize(
    ("level", "query", "accept", "status_format"),
    [
        ("1.15", "format=json", "*/*", "json"),
        ("1.15", "", "application/json", "json"),
        ("1.15", "", "application/json, */*", "text"),
        ("1.15", "format=text", "application/json", "text"),
        ("1.15", "format=binary", "application/json", "binary"),
        ("1.9", "format=json", "application/json", "text"),
        ("1.9", "a=b&format=binary&format=text", "*/*", "binary"),
    ],
)
def test_status_formats(level: str, query: str, accept: str, status_format: str) -> None:
    response = http(get("/api/status/simple", query, accept=accept), level=level)
    body = bytes(join_parts(response.body))
    if status_format == "json":
        document = json.loads(body)
        assert document["ready_state"] == "SERVER_READY"
        config = document["model_status"]["simple"]["config"]
        assert config["max_batch_size"] == 8
        assert config["input"][0] == {"name": "INPUT0", "data_type": "TYPE_INT32", "dims": ["16"]}
        assert response.headers["Content-Type"] == "text/plain"
    elif status_format == "binary":
        assert pb.ServerStatus.FromString(body).id == "inference:0"
    else:
        assert body.startswith(b'id: "inference:0"\n')


def test_a_missing_header_is_reported_without_a_status() -> None:
    response = http(infer(None))
    assert (response.status, dict(response.headers)) == (400, {"Content-Type": "text/plain"})
    assert response.body == [b"The request header should contain 'NV-InferRequest'"]


def test_an_unreadable_header_is_reported_before_an_unknown_model() -> None:
    response = http(infer("batch_size: x", "/api/infer/nosuch"))
    assert (response.status, list(response.headers), response.body) == (400, ["Content-Type"], ())


def test_datatypes_are_returned_on_request() -> None:
    header = BOTH_INPUTS + ' output { name: "OUTPUT0" }'
    assert "data_type" not in http(infer(header)).headers["NV-InferResponse"]
    headers = http(infer(header), data_type=True).headers["NV-InferResponse"]
    assert headers.endswith("raw { dims: 16 batch_byte_size: 64 } data_type: TYPE_INT32 }")


def test_requests_that_reach_a_handler_are_numbered() -> None:
    codec = HTTP.create({})
    paths = get("/api/foo"), get("/api/status/nosuch")
    responses = [respond(codec, w) for w in (infer(BOTH_INPUTS), *paths, infer("?"), infer(""))]
    assert [
        status_of(response).request_id if "NV-Status" in response.headers else None
        for response in responses
    ] == [1, None, 2, None, 3]


def test_not_ready_is_a_400_with_status_success() -> None:
    for plugin in (HTTP, GRPC):
        codec = plugin.create({})
        response = codec.build_response(
            HealthStatus(ok=False),
            codec.parse_request(codec.build_request(ServerReadyRequest(), GENERIC), DEFAULT_LIMITS),
        )
        if plugin is HTTP:
            assert response.status == 400
            assert status_of(response).code == pb.CODES["SUCCESS"]
        else:
            health = pb.HealthResponse.FromString(join_parts(response.message))
            assert (health.request_status.code, health.health) == (pb.CODES["SUCCESS"], False)


# ---- errors


def test_every_kind_has_a_code() -> None:
    assert set(CODE_BY_KIND) == set(Kind)
    assert set(CODE_BY_KIND.values()) <= set(pb.CODES)
    assert set(KIND_BY_CODE) == set(pb.CODES) - {"SUCCESS"}


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_has_a_status_code(kind: Kind) -> None:
    error = GatewayError(kind, "what 'went' wrong é\n\ud800" + "x" * 9000)
    status = status_of(HTTP.create({}).build_error(error, get("/api/health/live")))
    assert status.code == pb.CODES[CODE_BY_KIND[kind]]
    assert status.msg.startswith("what 'went' wrong é\n?xxx")
    assert len(status.msg.encode()) <= 1500
    for wire in (None, get("/api/health/live"), infer(BOTH_INPUTS + " id: 5"), get("/api")):
        response = HTTP.create({}).build_error(error, wire)
        assert response.status == 400
        assert all(len(value) < 8190 and value.isascii() for value in response.headers.values())
    infer_call = call("Infer", pb.InferRequest(meta_data={"id": 5}))
    for wire in (None, infer_call, RpcRequest(SERVICE + "Health"), RpcRequest(SERVICE + "X")):
        response = GRPC.create({}).build_error(error, wire)
        assert response.code == (12 if wire is not None and wire.method.endswith("X") else 0)


def test_the_response_to_a_refused_inference_has_the_requests_id() -> None:
    error = GatewayError(Kind.OVERLOADED, "busy")
    http_response = HTTP.create({}).build_error(error, infer("id: 18446744073709551615"))
    assert http_response.headers["NV-InferResponse"] == "id: 18446744073709551615"
    message = pb.InferRequest(model_name="m", model_version=-1, meta_data={"id": 2**64 - 1})
    grpc_response = GRPC.create({}).build_error(error, call("Infer", message))
    response = pb.InferResponse.FromString(join_parts(grpc_response.message))
    status = response.request_status
    assert response.meta_data.id == 2**64 - 1
    assert (status.code, status.msg) == (pb.CODES["UNAVAILABLE"], "busy")


def test_an_unknown_status_code_is_a_bad_request() -> None:
    assert TrtisStatusError("UNKNOWN", "x").kind is Kind.BAD_REQUEST


def test_the_error_for_a_truncated_request_has_metadata() -> None:
    error = GatewayError(Kind.OVERLOADED, "busy")
    response = GRPC.create({}).build_error(error, RpcRequest(SERVICE + "StreamInfer", (b"\x0a",)))
    assert pb.InferResponse.FromString(join_parts(response.message)).HasField("meta_data")


@pytest.mark.parametrize(
    "message", [b"\xff", b"\x0a\x01\xff", b"\x1a\x02\x12\x05", b"\x1a\x01\x0a"]
)
@pytest.mark.parametrize("method", ["Infer", "StreamInfer"])
def test_malformed_messages_fail_with_internal(method: str, message: bytes) -> None:
    version = b"\x10\x01"
    wire = respond(GRPC.create({}), RpcRequest(SERVICE + method, (version + message,)))
    if not wire.code:  # the name can be read, so the unknown model is reported first
        response = pb.InferResponse.FromString(join_parts(wire.message))
        assert response.request_status.code == pb.CODES["UNAVAILABLE"]
        message = b"\x0a\x06simple" + version + message
        wire = respond(GRPC.create({}), RpcRequest(SERVICE + method, (message,)))
    assert (wire.code, wire.details) == (13, "Unable to parse request")


def test_requests_to_other_methods_have_a_size_limit() -> None:
    wire = RpcRequest(SERVICE + "Status", (b"\x0a" * 70_000,))
    status = pb.StatusResponse.FromString(join_parts(respond(GRPC.create({}), wire).message))
    assert status.request_status.code == pb.CODES["INVALID_ARG"]
    assert "larger than 65536 bytes" in status.request_status.msg
    assert respond(GRPC.create({}), RpcRequest(SERVICE + "Status", (b"\xff",))).code == 13


# ---- limits


def partial_request(header: str, body: Buffer = b"") -> PartialInferRequest:
    request = HTTP.create({}).parse_request(infer(header, body=body), DEFAULT_LIMITS)
    assert isinstance(request, PartialInferRequest)
    return request


@pytest.mark.parametrize("tensor", ["input", "output"])
def test_too_many_tensors(tensor: str) -> None:
    with pytest.raises(GatewayError, match=f"there are 1025 {tensor}s; the limit is 1024"):
        partial_request(f"{tensor} {{}} " * 1025)


def call_with(message: Any) -> RpcRequest:
    message.model_name, message.model_version = "simple", -1
    return call("Infer", message)


def test_a_call_with_too_many_tensors_or_fields_is_refused() -> None:
    many = pb.InferRequest(model_version=-1)
    for _ in range(5000):
        many.meta_data.input.add()
    deep = pb.InferRequest(model_version=-1)
    deep.meta_data.input.add(name="x" * 500, dims=[1] * 65)
    for message, expected in ((many, "there are 5000 inputs"), (deep, "has 65 dimensions")):
        with pytest.raises(GatewayError, match=expected):
            GRPC.create({}).parse_request(call_with(message), DEFAULT_LIMITS)
    for _ in range(MAX_REQUEST_FIELDS):
        many.meta_data.input.add()
    long = pb.InferRequest()
    long.meta_data.input.add(name="x" * (4 << 20))
    for message in (many, long, pb.InferRequest(raw_input=[b""] * 3000)):
        assert respond(GRPC.create({}), call_with(message)).code == 13


MODEL = MODELS["identity_nobatch"].metadata


@pytest.mark.parametrize(
    ("datatype", "shape", "dims", "expected"),
    [
        ("INT32", (1,) * 65, "", "shape has 65 dimensions; the limit is 64"),
        ("INT32", (-1, -1), "dims: 4294967296 " * 2, f"expecting {4 * 2**64} bytes"),
        ("BYTES", (3,), "", "needs 3 BYTES elements, but the data holds 0"),
    ],
    ids=["rank", "more than 64 bits", "strings without data"],
)
def test_shapes_that_do_not_fit(
    datatype: str, shape: tuple[int, ...], dims: str, expected: str
) -> None:
    model = replace(MODEL, inputs=(TensorMetadata("INPUT0", datatype, shape),))
    with pytest.raises(GatewayError, match=expected):
        partial_request(f'batch_size: 1 input {{ name: "INPUT0" {dims}}}').complete(model)


def test_an_unsupported_datatype() -> None:
    for datatype in ("BF16", "FP8", "TYPE_INVALID"):
        model = replace(MODEL, inputs=(TensorMetadata("INPUT0", datatype, (1,)),))
        with raises_kind(Kind.UNSUPPORTED, match=f"input 'INPUT0': datatype '{datatype}'"):
            partial_request('batch_size: 1 input { name: "INPUT0" }').complete(model)


def test_metadata_without_a_batch_size_has_full_shapes() -> None:
    model = ModelMetadata(
        "m", inputs=(TensorMetadata("INPUT0", "UINT8", (-1, 2)),), max_batch_size=None
    )
    header = 'batch_size: 1 input { name: "INPUT0" dims: [3, 2] }'
    parsed = partial_request(header, bytes(6)).complete(model)
    assert parsed.operation.inputs[0].shape == (3, 2)  # type: ignore[union-attr]
    with pytest.raises(GatewayError, match="batch-size must be <= 0 for 'm'"):
        partial_request(header.replace("1", "2", 1), bytes(6)).complete(model)


def test_inputs_are_views_of_the_body() -> None:
    body = bytearray(8)
    header = 'batch_size: 1 input { name: "INPUT0" dims: 2 }'
    data = partial_request(header, body).complete(MODEL).operation.inputs[0].data  # type: ignore[union-attr]
    body[0] = 7
    assert data[0] == 7


# ---- invalid responses


def parse_request(header: str, model: str = "classify", body: bytes = bytes(16)) -> ParsedRequest:
    request = HTTP.create({}).parse_request(
        infer(header, f"/api/infer/{model}", body), DEFAULT_LIMITS
    )
    return request.complete(MODELS[model].metadata)


def classes(*elements: bytes, datatype: Datatype = Datatype.BYTES) -> InferResponse:
    shape = (1, len(elements))
    return InferResponse("m", outputs=(Tensor("OUTPUT0", datatype, shape, pack_bytes(elements)),))


CLASSIFY = 'batch_size: 1 input { name: "INPUT0" } output { name: "OUTPUT0" cls { count: 2 } }'
VALUES = CLASSIFY.replace("cls { count: 2 }", "")


def infer_header(response: InferResponse, parsed: ParsedRequest) -> str:
    return HTTP.create({}).build_response(response, parsed).headers["NV-InferResponse"]


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (classes(b"0.5"), "has a class that is not of the form value:index:label"),
        (classes(b"x:1"), "has a class that is not of the form value:index:label"),
        (classes(b"1:\xff"), "has a class that is not of the form value:index:label"),
        (classes(b"1:-1"), "index is out of range"),
        (classes(b"1:2147483648"), "index is out of range"),
        (classes(b"1:" + b"9" * 5000), "index is out of range"),
        (classes(datatype=Datatype.FP32), "should contain classes, but is FP32"),
        (InferResponse("m"), "the response has no output 'OUTPUT0'"),
    ],
)
def test_invalid_classes(response: InferResponse, expected: str) -> None:
    with raises_kind(Kind.BACKEND_GARBAGE, match=expected):
        infer_header(response, parse_request(CLASSIFY))


def test_classes_are_grouped_by_batch_row() -> None:
    two_rows = parse_request(CLASSIFY.replace("1", "2", 1), body=bytes(32))
    assert two_rows.operation.outputs[0].parameters == {CLASSIFICATION: 2}  # type: ignore[union-attr]
    with pytest.raises(GatewayError, match="3 classes for 2 batch entries"):
        infer_header(classes(b"1:0", b"1:1", b"1:2"), two_rows)
    for parsed in (two_rows, parse_request(CLASSIFY)):
        header = infer_header(classes(), parsed)
        assert header.count("batch_classes { }") == parsed.response_options.batch_size


def test_class_values_are_float32() -> None:
    header = infer_header(classes(b"1e300:0:a:b", b"-0.0:1:"), parse_request(CLASSIFY))
    assert header.endswith('batch_classes { cls { value: inf label: "a:b" } cls { idx: 1 } } }')


@pytest.mark.parametrize(
    ("datatype", "shape", "expected"),
    [
        (Datatype.INT32, (1, 4), "is INT32; the model's metadata declares FP32"),
        (Datatype.FP32, (4,), r"has shape \[4\], but the batch size is 1"),
        (Datatype.FP32, (), r"has shape \[\], but the batch size is 1"),
    ],
)
def test_invalid_values(datatype: Datatype, shape: tuple[int, ...], expected: str) -> None:
    response = InferResponse("m", outputs=(Tensor("OUTPUT0", datatype, shape, bytes(16)),))
    with pytest.raises(GatewayError, match=expected):
        infer_header(response, parse_request(VALUES))


@pytest.mark.parametrize(
    ("version", "field"),
    [
        *((version, "") for version in ("", "v2", "2.1", "9" * 30, str(2**63))),
        *((version, f"model_version: {version} ") for version in ("7", str(2**63 - 1))),
    ],
)
def test_only_versions_that_are_int64_are_written(version: str, field: str) -> None:
    values = Tensor("OUTPUT0", Datatype.FP32, (1, 4), bytes(16))
    response = InferResponse("m", version, outputs=(values,))
    header = infer_header(response, parse_request(VALUES))
    assert header.startswith(f'model_name: "classify" {field}batch_size: 1 output')


def test_responses_that_the_api_cannot_express() -> None:
    with pytest.raises(GatewayError, match="API cannot express ServerMetadata"):
        HTTP.create({}).build_response(
            ServerMetadata("a", "b"), ParsedRequest(ServerReadyRequest())
        )
    codec = GRPC.create({})
    parsed = codec.parse_request(codec.build_request(ServerReadyRequest(), GENERIC), DEFAULT_LIMITS)
    with pytest.raises(GatewayError, match="cannot express ServerMetadata"):
        codec.build_response(ServerMetadata("a", "b"), parsed)


def model_status(model: ModelStatus, *, ready: bool = True) -> Any:
    """Return the message for the status of a server with ``model``. The message is the same over
    HTTP and over gRPC."""
    status = ServerStatus("", "", ready, (model,))
    http_codec, grpc_codec = HTTP.create({}), GRPC.create({})
    http_request, rpc_request = (
        get("/api/status", "format=binary"),
        call("Status", pb.StatusRequest()),
    )
    http_response, rpc_response = (
        codec.build_response(status, codec.parse_request(wire, DEFAULT_LIMITS))
        for codec, wire in ((http_codec, http_request), (grpc_codec, rpc_request))
    )
    message = pb.ServerStatus.FromString(join_parts(http_response.body))
    assert pb.StatusResponse.FromString(join_parts(rpc_response.message)).server_status == message
    return message


def test_a_status_that_protobuf_cannot_hold() -> None:
    huge = ModelMetadata("m", inputs=(TensorMetadata("I", "FP32", (2**63,)),))
    with pytest.raises(GatewayError, match="legacy API cannot express the status"):
        model_status(ModelStatus(huge))


# ---- shared memory


REGIONS = SharedMemoryStatus(
    (
        SharedMemoryRegion("a", "/key", 8, 64),
        SharedMemoryRegion("b", size=32, device=0),
        SharedMemoryRegion("c", size=32, device=2),
    )
)
REGION_LIST = (
    'shared_memory_region { name: "a" system_shared_memory { shared_memory_key: "/key" offset: 8 } '
    'byte_size: 64 } shared_memory_region { name: "b" cuda_shared_memory { } byte_size: 32 } '
    'shared_memory_region { name: "c" cuda_shared_memory { device_id: 2 } byte_size: 32 }'
)


def test_regions_are_listed_in_the_field_that_clients_read() -> None:
    codec = HTTP.create({})
    parsed = codec.parse_request(get("/api/sharedmemorycontrol/status"), DEFAULT_LIMITS)
    body = bytes(join_parts(codec.build_response(REGIONS, parsed).body)).decode()
    assert text_format.to_line(text_format.parse(pb.SharedMemoryStatus, body)) == REGION_LIST
    grpc = GRPC.create({})
    wire = call("SharedMemoryControl", pb.SharedMemoryControlRequest(status={}))
    rpc_response = grpc.build_response(REGIONS, grpc.parse_request(wire, DEFAULT_LIMITS))
    response = pb.SharedMemoryControlResponse.FromString(join_parts(rpc_response.message))
    # clients parse the bytes of one message type as the other type
    status = pb.SharedMemoryStatus.FromString(response.shared_memory_status.SerializeToString())
    assert text_format.to_line(status) == REGION_LIST


def test_gpu_memory_is_registered_with_its_handle() -> None:
    wire = HttpRequest("POST", "/api/sharedmemorycontrol/cudaregister/r/64/1", body=(b"ab", b"c"))
    operation = HTTP.create({}).parse_request(wire, DEFAULT_LIMITS).operation
    register = {"name": "r", "byte_size": 64}
    register["cuda_shared_memory"] = {"raw_handle": b"abc", "device_id": 1}  # type: ignore[assignment]
    rpc = call("SharedMemoryControl", pb.SharedMemoryControlRequest(register=register))
    assert operation == GRPC.create({}).parse_request(rpc, DEFAULT_LIMITS).operation
    assert operation == SharedMemoryRegisterRequest("r", size=64, device=1, handle=b"abc")


# ---- status


@pytest.mark.parametrize(
    ("version", "expected"),
    [("", [1]), ("3", [3]), ("v2", []), ("9" * 30, []), (str(2**63), [2**63 - 1])],
)
def test_versions_are_numbers(version: str, expected: list[int]) -> None:
    entry = ModelIndexEntry("m", version, "READY", "because")
    message = model_status(ModelStatus(ModelMetadata("m"), (entry,)), ready=False)
    assert message.ready_state == 1  # initializing
    assert list(message.model_status["m"].version_status) == expected
    for status in message.model_status["m"].version_status.values():
        assert status.ready_state_reason.message == "because"


@pytest.mark.parametrize(
    ("batching", "expected"),
    [
        (None, None),
        ({}, ""),
        (
            {
                "oldest": {"max_candidate_sequences": 3, "preserve_ordering": True},
                "control_input": [{"name": "S"}],
                "state": [{"input_name": "S"}],
            },
            'control_input { name: "S" } oldest { max_candidate_sequences: 3 }',
        ),
        ({"max_sequence_idle_microseconds": "x"}, ""),  # an invalid value is omitted
        ({"oldest": 5, "direct": {}}, ""),
    ],
)
def test_the_status_contains_the_sequence_batching(batching: Any, expected: str | None) -> None:
    message = model_status(ModelStatus(ModelMetadata("m", sequence_batching=batching)))
    config = message.model_status["m"].config
    assert config.HasField("sequence_batching") == (expected is not None)
    assert text_format.to_line(config.sequence_batching) == (expected or "")


def duration(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": ns}


TRITON_STATISTICS = {
    "name": "m",
    "version": "3",
    "last_inference": 1789,
    "inference_count": 12,
    "execution_count": 4,
    "inference_stats": {
        "success": duration(5, 500),
        "fail": duration(1, 70),
        "queue": duration(5, 50),
        "compute_input": duration(5, 10),
        "compute_infer": duration(5, 300),
        "compute_output": duration(5, 20),
        "cache_hit": duration(0, 0),
    },
    "batch_stats": [{"batch_size": 3, "compute_infer": duration(4, 240)}],
}
VERSION_STATUS = """\
ready_state: MODEL_READY infer_stats { key: 1 value { success { count: 5 total_time_ns: 500 } \
failed { count: 1 total_time_ns: 70 } compute { count: 5 total_time_ns: 330 } \
queue { count: 5 total_time_ns: 50 } compute_input { count: 5 total_time_ns: 10 } \
compute_infer { count: 5 total_time_ns: 300 } compute_output { count: 5 total_time_ns: 20 } } } \
model_execution_count: 4 model_inference_count: 12 ready_state_reason { } \
last_inference_timestamp_milliseconds: 1789"""


def version_statuses(statistics: dict[str, Any], *versions: str) -> dict[int, str]:
    """Return each version's part of the status."""
    entries = tuple(ModelIndexEntry("m", version, "READY") for version in versions)
    message = model_status(ModelStatus(ModelMetadata("m"), entries, (statistics,)))
    statuses = message.model_status["m"].version_status
    return {number: text_format.to_line(statuses[number]) for number in statuses}


def test_counts_are_reported_per_version() -> None:
    without_counts = "ready_state: MODEL_READY ready_state_reason { }"
    assert version_statuses(TRITON_STATISTICS, "2", "3") == {2: without_counts, 3: VERSION_STATUS}
    without_version = TRITON_STATISTICS | {"version": ""}
    assert version_statuses(without_version, "2", "3") == {2: without_counts, 3: VERSION_STATUS}
    assert version_statuses(TRITON_STATISTICS, "2") == {2: without_counts}
    assert version_statuses(TRITON_STATISTICS) == {}
    assert version_statuses(TRITON_STATISTICS | {"version": "v1"}, "2") == {2: without_counts}


@pytest.mark.parametrize(
    "statistics",
    [
        {"version": "2"},
        {"version": 2, "inference_stats": {"success": duration(1, 1)}},
        {"version": "2", "inference_stats": None, "execution_count": -1},
        {"version": "2", "inference_stats": {"success": 5, "fail": {"count": 2**64}}},
        {"version": "2", "inference_stats": {"success": {"count": True}}, "last_inference": "x"},
        {"version": "2", "inference_stats": {"queue": duration(1, 1)}, "inference_count": 1.5},
    ],
)
def test_invalid_counts_are_left_out(statistics: dict[str, Any]) -> None:
    (entry,) = version_statuses(statistics, "2").values()
    if statistics["version"] == 2:  # not a string, so the version counts as missing
        assert entry.count("count: 1") == 1
    else:
        assert entry == "ready_state: MODEL_READY ready_state_reason { }"


def test_times_over_64_bits_are_clamped() -> None:
    stats = {name: duration(1, 2**63) for name in ("success", "compute_infer", "compute_output")}
    (entry,) = version_statuses({"version": "2", "inference_stats": stats}, "2").values()
    assert f"compute {{ count: 1 total_time_ns: {2**64 - 1} }}" in entry


def test_a_header_value_joined_from_two_headers_is_refused() -> None:
    assert http(infer(f"{BOTH_INPUTS}, {BOTH_INPUTS}")).headers == {"Content-Type": "text/plain"}


@pytest.mark.parametrize(("seconds", "headers"), [(2.5, {"retry-after": "3"}), (None, {})])
def test_retry_after_is_sent_as_a_header_or_metadata(
    seconds: float | None, headers: dict[str, str]
) -> None:
    """The API has no field for Retry-After, but HTTP has a header and gRPC has metadata."""
    error = GatewayError(Kind.RATE_LIMITED, "too many", retry_after=seconds)
    response = HTTP.create({}).build_error(error, infer(BOTH_INPUTS))
    assert list(response.headers) == ["NV-InferResponse", "NV-Status", "Content-Type", *headers]
    assert headers.items() <= response.headers.items()
    assert GRPC.create({}).build_error(error, RpcRequest(SERVICE + "Health")).metadata == headers
