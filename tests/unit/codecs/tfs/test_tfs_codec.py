"""The gRPC codec for TensorFlow Serving: errors, mapped names, metadata, status and forwarding."""

from typing import Any

import pytest

from gateway_errors import raises_kind, refused
from infergate.codecs.profiles import GENERIC
from infergate.codecs.protos import SCHEMA
from infergate.codecs.protos.statuses import CODE_BY_KIND
from infergate.codecs.protos.wire_scanner import string_field
from infergate.codecs.tfs import GRPC, backend
from infergate.codecs.tfs import messages as pb
from infergate.core import messages
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, Origin, RepositoryControlDisabledError
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.memory import IN_FLIGHT_BYTES
from infergate.core.messages import InferRequest, InferResponse, ModelIndex, ModelIndexEntry
from infergate.core.tensor import NO_PARAMETERS, OpaqueParameters, Tensor
from infergate.core.wire import RpcRequest, RpcResponse, join_parts

PredictRequest: Any = SCHEMA.message_class("tensorflow.serving.PredictRequest")
PredictResponse: Any = SCHEMA.message_class("tensorflow.serving.PredictResponse")
ClassificationRequest: Any = SCHEMA.message_class("tensorflow.serving.ClassificationRequest")
ClassificationResponse: Any = SCHEMA.message_class("tensorflow.serving.ClassificationResponse")
MultiInferenceRequest: Any = SCHEMA.message_class("tensorflow.serving.MultiInferenceRequest")
MultiInferenceResponse: Any = SCHEMA.message_class("tensorflow.serving.MultiInferenceResponse")
CODEC: Any = GRPC.create({})
MAPPING: Any = GRPC.create(
    {
        "labels": {"m": {"stable": "3"}},
        "signatures": {"m": {"embed": "m-embed", "scores": "m"}},
    }
)
Y = Tensor("y", Datatype.FP32, (1,), b"\0\0\x80\x3f")


def request(method: str = pb.PREDICT, kind: Any = PredictRequest, **spec: Any) -> RpcRequest:
    version = spec.pop("version", None)
    message = kind(model_spec=spec)
    if version is not None:
        message.model_spec.version.value = version
        message.model_spec.version.SetInParent()
    return RpcRequest(method, (message.SerializeToString(),))


def parse(codec: Any, wire: RpcRequest) -> Any:
    return codec.parse_request(wire, DEFAULT_LIMITS)


def response_of(message: Any) -> RpcResponse:
    return RpcResponse((message.SerializeToString(),))


def parsed_message(kind: Any, wire: RpcResponse) -> Any:
    assert wire.code == 0
    return kind.FromString(bytes(join_parts(wire.message)))


# ---- errors


def status_of(error: GatewayError, wire: RpcRequest | None = None) -> tuple[int, str]:
    response = CODEC.build_error(error, wire)
    return response.code, response.details


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_has_a_code(kind: Kind) -> None:
    assert status_of(GatewayError(kind, "why")) == (CODE_BY_KIND[kind], "why")


@pytest.mark.parametrize(
    ("wire", "text"),
    [
        (request(name="m"), "Servable not found for request: Latest(m)"),
        (request(name="m", version=7), "Servable not found for request: Specific(m, 7)"),
        (request(name="m", version=0), "Servable not found for request: Latest(m)"),
        (
            request(pb.METADATA, pb.GetModelMetadataRequest, name="m"),
            "Servable not found for request: Latest(m)",
        ),
        (
            request(pb.STATUS, pb.GetModelStatusRequest, name="m", version=7),
            "Could not find version 7 of model m",
        ),
        (
            request(pb.STATUS, pb.GetModelStatusRequest, name="m"),
            "Could not find any versions of model m",
        ),
        (RpcRequest(pb.PREDICT, (b"\xff",)), "no route"),
        (RpcRequest("/a.B/C", (b"",)), "no route"),
    ],
)
def test_an_unknown_model_has_the_servers_text(wire: RpcRequest, text: str) -> None:
    assert status_of(GatewayError(Kind.NOT_FOUND, "no route"), wire) == (5, text)


def test_an_unknown_signature_is_a_failed_precondition() -> None:
    parameters = parse(CODEC, request(name="m", signature_name="x")).operation.parameters
    assert parameters.is_passed_to("tfs-grpc")
    error = refused(parameters.is_passed_to, "v2-grpc")
    assert status_of(error) == (9, 'Serving signature key "x" not found.')


def test_an_unknown_label_is_an_invalid_argument() -> None:
    wire = request(name="m", signature_name="x", version_label="canary")
    error = refused(parse(MAPPING, wire).operation.parameters.is_passed_to, "v2-rest")
    assert status_of(error) == (3, "Unrecognized servable version label: canary")


def test_long_error_texts_are_truncated() -> None:
    code, text = status_of(GatewayError(Kind.BAD_REQUEST, "ß" * 1000))
    assert code == 3
    assert text == "ß" * 512 + "...TRUNCATED"
    assert status_of(GatewayError(Kind.BAD_REQUEST, "x" * 1024))[1] == "x" * 1024


def test_an_exhausted_memory_budget_has_a_retry_after() -> None:
    error = GatewayError(Kind.OVERLOADED, "full", limit=IN_FLIGHT_BYTES, retry_after=1.2)
    response = CODEC.build_error(error, None)
    assert (response.code, response.metadata) == (8, {"retry-after": "2"})


def test_errors_about_a_tensor_begin_like_the_servers_errors() -> None:
    message = PredictRequest(model_spec={"name": "m"})
    message.inputs["a"].dtype = 1
    message.inputs["a"].tensor_content = b"123"
    with raises_kind(
        Kind.BAD_REQUEST,
        r"^tensor parsing error: a: shape \[\] of FP32 needs 4 bytes, but the data holds 3$",
    ):
        parse(CODEC, RpcRequest(pb.PREDICT, (message.SerializeToString(),)))


def test_too_many_tensors_are_refused() -> None:
    entry = b"\x12\x0a\x0a\x04%04d\x12\x02\x08\x01"
    message = string_field(1, "") + b"".join(entry % index for index in range(1025))
    wire = RpcRequest(pb.PREDICT, (b"\x0a\x03\x0a\x01m" + message,))
    with raises_kind(Kind.BAD_REQUEST, "over 1024 inputs") as caught:
        parse(CODEC, wire)
    assert caught.value.limit == "tensors"
    outputs = b"".join(string_field(3, str(index)) for index in range(1025))
    with raises_kind(Kind.BAD_REQUEST, "over 1024 outputs"):
        parse(CODEC, RpcRequest(pb.PREDICT, (b"\x0a\x03\x0a\x01m" + outputs,)))


# ---- the model that a request names


@pytest.mark.parametrize(
    ("spec", "model", "version"),
    [
        ({"name": "m"}, "m", ""),
        ({"name": "m", "version": 0}, "m", ""),
        ({"name": "m", "version": -1}, "m", "-1"),
        ({"name": "m", "version_label": "stable"}, "m", "3"),
        ({"name": "m", "version_label": "canary"}, "m", ""),
        ({"name": "n", "version_label": "stable"}, "n", ""),
        ({"name": "m", "signature_name": "embed", "version_label": "stable"}, "m-embed", "3"),
        ({"name": "m", "signature_name": "serving_default"}, "m", ""),
    ],
)
def test_the_access_check_sees_the_mapped_names(
    spec: dict[str, Any], model: str, version: str
) -> None:
    wire = request(**spec)
    summary = MAPPING.summarize(wire)
    assert (summary.model, summary.version) == (model, version)
    operation = parse(MAPPING, wire).operation
    assert (operation.model, operation.version) == (model, version)


def test_a_mapped_signature_leaves_no_parameter() -> None:
    for signature in ("embed", "scores", "serving_default", ""):
        operation = parse(MAPPING, request(name="m", signature_name=signature)).operation
        assert operation.parameters is NO_PARAMETERS


def test_long_names_are_refused_before_the_access_check() -> None:
    with raises_kind(Kind.BAD_REQUEST, "over 4096 bytes"):
        CODEC.summarize(request(name="m" * 5000))
    with raises_kind(Kind.BAD_REQUEST, "over 16384 bytes"):
        CODEC.summarize(request(name="m" * 20_000))
    with raises_kind(Kind.BAD_REQUEST, "more than 24576 fields"):
        CODEC.summarize(RpcRequest(pb.PREDICT, (b"\x1a\0" * 25_000,)))


def test_invalid_versions_and_signatures_are_refused() -> None:
    with raises_kind(Kind.BAD_REQUEST, "version 'v2' of model 'm' is not a number"):
        CODEC.build_request(InferRequest("m", "v2"), GENERIC)
    with raises_kind(Kind.BAD_REQUEST, "is not a number"):
        CODEC.build_request(messages.ModelReadyRequest("m", str(2**63)), GENERIC)
    with raises_kind(Kind.BAD_REQUEST, "parameter 'signature_name' must be a string"):
        CODEC.build_request(InferRequest("m", parameters={"signature_name": 1}), GENERIC)


# ---- responses


def test_a_response_names_model_version_and_signature() -> None:
    for spec, expected in (
        ({"name": "m"}, ("m", "serving_default")),
        ({"name": "m", "signature_name": "embed"}, ("m", "embed")),
        ({"name": "m", "signature_name": "scores"}, ("m", "scores")),
    ):
        parsed = parse(MAPPING, request(**spec))
        response = InferResponse(parsed.operation.model, "3", outputs=(Y,))
        wire = MAPPING.build_response(response, parsed)
        model_spec = parsed_message(PredictResponse, wire).model_spec
        assert (model_spec.name, model_spec.signature_name) == expected
        assert model_spec.version.value == 3


def test_a_version_that_is_not_a_number_is_left_out() -> None:
    parsed = parse(CODEC, request(name="m"))
    response = CODEC.build_response(InferResponse("m", "v1", outputs=(Y,)), parsed)
    assert not parsed_message(PredictResponse, response).model_spec.HasField("version")


def test_outputs_are_read_in_the_order_of_the_request() -> None:
    message = PredictResponse(model_spec={"name": "m"})
    for name in "ab":
        message.outputs[name].dtype = 1
    outputs = tuple(parse(CODEC, request_with_filter("b", "a")).operation.outputs)
    wire = RpcResponse((message.SerializeToString(deterministic=True),))
    response = CODEC.parse_response(wire, InferRequest("m", outputs=outputs), DEFAULT_LIMITS)
    assert [tensor.name for tensor in response.outputs] == ["b", "a"]


def request_with_filter(*names: str) -> RpcRequest:
    message = PredictRequest(model_spec={"name": "m"}, output_filter=names)
    return RpcRequest(pb.PREDICT, (message.SerializeToString(),))


def test_an_output_that_expands_beyond_the_limit() -> None:
    message = PredictResponse(model_spec={"name": "m"})
    message.outputs["y"].dtype = 1
    message.outputs["y"].tensor_shape.dim.add(size=2**40)
    wire = response_of(message)
    with raises_kind(Kind.TOO_LARGE, "tensor 'y'") as caught:
        CODEC.parse_response(wire, InferRequest("m"), DEFAULT_LIMITS)
    assert caught.value.origin is Origin.BACKEND


def test_messages_that_the_api_cannot_express() -> None:
    parsed = parse(CODEC, request(name="m"))
    tensor = Tensor("\ud800", Datatype.FP32, (0,), b"")
    with raises_kind(Kind.UNSUPPORTED, "cannot express the response"):
        CODEC.build_response(InferResponse("m", outputs=(tensor,)), parsed)
    with raises_kind(Kind.BAD_REQUEST, "not valid Unicode"):
        CODEC.build_request(InferRequest("m", inputs=(tensor,)), GENERIC)
    with raises_kind(Kind.UNSUPPORTED, "there is no message for ModelIndexEntry"):
        CODEC.build_response(ModelIndexEntry("m"), parsed)  # the API has no such response


# ---- metadata and status


FLOATS = messages.TensorMetadata("x", "FP32", (-1, 3))
MODEL = messages.ModelMetadata(
    "m", ("1", "3", "v4"), "onnx", (FLOATS,), (messages.TensorMetadata("y", "X", ()),)
)


def test_metadata_has_the_default_signature() -> None:
    wire = request(pb.METADATA, pb.GetModelMetadataRequest, name="m")
    parsed = parse_metadata_request(wire)
    message = parsed_message(pb.GetModelMetadataResponse, CODEC.build_response(MODEL, parsed))
    assert message.model_spec.version.value == 3  # the latest version
    assert message.metadata["signature_def"].type_url == (
        "type.googleapis.com/tensorflow.serving.SignatureDefMap"
    )
    signatures = pb.SignatureDefMap.FromString(message.metadata["signature_def"].value)
    (name,) = signatures.signature_def
    signature = signatures.signature_def[name]
    assert (name, signature.method_name) == ("serving_default", "tensorflow/serving/predict")
    info = signature.inputs["x"]
    assert (info.name, info.dtype) == ("x:0", 1)
    assert [dim.size for dim in info.tensor_shape.dim] == [-1, 3]
    assert signature.outputs["y"].dtype == 0  # TensorFlow has no such datatype


def parse_metadata_request(wire: RpcRequest, codec: Any = CODEC) -> Any:
    message = pb.GetModelMetadataRequest.FromString(bytes(join_parts(wire.message)))
    message.metadata_field.append("signature_def")
    return parse(codec, RpcRequest(pb.METADATA, (message.SerializeToString(),)))


def test_metadata_of_a_mapped_signature() -> None:
    wire = request(pb.METADATA, pb.GetModelMetadataRequest, name="m", signature_name="embed")
    parsed = parse_metadata_request(wire, MAPPING)
    assert parsed.operation == messages.ModelMetadataRequest("m-embed")
    message = parsed_message(pb.GetModelMetadataResponse, MAPPING.build_response(MODEL, parsed))
    signatures = pb.SignatureDefMap.FromString(message.metadata["signature_def"].value)
    assert message.model_spec.name == "m"
    assert list(signatures.signature_def) == ["embed"]


def test_all_signatures_of_a_server_reach_its_clients() -> None:
    complex_ = messages.TensorMetadata("c", "DT_COMPLEX64", (1,))
    other = messages.ModelSignature("other", "tensorflow/serving/classify", (complex_,), (FLOATS,))
    model = messages.ModelMetadata(
        "m", ("2",), "tensorflow_serving", (FLOATS,), (FLOATS,), signatures=(other,)
    )
    operation = messages.ModelMetadataRequest("m")
    parsed = parse(CODEC, CODEC.build_request(operation, GENERIC))
    wire = CODEC.build_response(model, parsed)
    assert CODEC.parse_response(wire, operation, DEFAULT_LIMITS) == model


def test_metadata_of_any_rank() -> None:
    signatures = pb.SignatureDefMap()
    info = signatures.signature_def["only"].inputs["x"]
    info.dtype, info.tensor_shape.unknown_rank = 7, True
    message = pb.GetModelMetadataResponse()
    message.metadata["signature_def"].value = signatures.SerializeToString()
    wire = response_of(message)
    metadata = CODEC.parse_response(wire, messages.ModelMetadataRequest("m"), DEFAULT_LIMITS)
    assert metadata.inputs == (messages.TensorMetadata("x", "BYTES", (-1,)),)
    assert (metadata.versions, metadata.signatures) == ((), ())


def status(response: Any, **spec: Any) -> list[tuple[int, int, int, str]]:
    wire = request(pb.STATUS, pb.GetModelStatusRequest, **spec)
    message = parsed_message(
        pb.GetModelStatusResponse, CODEC.build_response(response, parse(CODEC, wire))
    )
    return [
        (entry.version, entry.state, entry.status.error_code, entry.status.error_message)
        for entry in message.model_version_status
    ]


def test_the_status_of_all_versions() -> None:
    ready = ModelIndexEntry("m", "1", "READY")
    failed = ModelIndexEntry("m", "3", "UNAVAILABLE", "out of memory")
    text_version = ModelIndexEntry("m", "v4", "READY")
    assert status(ModelIndex((ready, failed, text_version)), name="m") == [
        (3, 50, 14, "out of memory"),
        (1, 30, 0, ""),
    ]
    assert status(ModelIndex((text_version,)), name="m") == [(1, 30, 0, "")]  # "v4" is not a number
    assert status(ModelIndex(), name="m") == []


def test_the_status_of_a_version() -> None:
    unavailable = ModelIndexEntry("m", "7", "UNAVAILABLE")
    assert status(ModelIndex((unavailable,)), name="m", version=7) == [
        (7, 50, 14, "the version is not ready")
    ]


def test_all_states_of_a_server_reach_its_clients() -> None:
    message = pb.GetModelStatusResponse()
    for version, state in enumerate((0, 10, 20, 30, 40, 50, 99), 1):
        entry = message.model_version_status.add(version=version, state=state)
        entry.status.error_message = "" if state == 30 else "why"
    operation = messages.ModelIndexRequest(model="m")
    wire = response_of(message)
    index = CODEC.parse_response(wire, operation, DEFAULT_LIMITS)
    assert [entry.state for entry in index.models] == [
        "UNKNOWN", "START", "LOADING", "READY", "UNLOADING", "UNAVAILABLE", "UNKNOWN"
    ]  # fmt: skip
    assert status(index, name="m") == [
        (7, 0, 14, "why"), (6, 50, 14, "why"), (5, 40, 14, "why"), (4, 30, 0, ""),
        (3, 20, 14, "why"), (2, 10, 14, "why"), (1, 0, 14, "why"),
    ]  # fmt: skip


def test_readiness_of_a_server() -> None:
    wire = CODEC.build_request(messages.ServerReadyRequest(), GENERIC)
    assert (wire.method, bytes(join_parts(wire.message))) == (pb.STATUS, b"")
    parsed = parse(CODEC, wire)
    ready = CODEC.build_response(messages.HealthStatus(ok=True), parsed)
    assert ready == RpcResponse(code=3, details="Missing ModelSpec")
    assert CODEC.build_response(messages.HealthStatus(ok=False), parsed).code == 14
    for code, ok in ((0, True), (3, True), (12, True), (14, False)):
        health = CODEC.parse_response(
            RpcResponse(code=code), messages.ServerReadyRequest(), DEFAULT_LIMITS
        )
        assert health == messages.HealthStatus(ok=ok)
    with raises_kind(Kind.BACKEND_ERROR):
        CODEC.parse_response(RpcResponse(code=13), messages.ServerReadyRequest(), DEFAULT_LIMITS)


@pytest.mark.parametrize(
    "operation",
    [
        messages.ServerMetadataRequest(),
        messages.ModelIndexRequest(),
        messages.ModelLoadRequest("m"),
        messages.ModelReadyRequest(""),
        messages.ModelMetadataRequest(""),
        messages.ServerStatusRequest("m"),
    ],
)
def test_operations_without_a_request(operation: messages.Operation) -> None:
    with raises_kind(Kind.UNSUPPORTED):
        CODEC.build_request(operation, GENERIC)


# ---- a new list of models


def reload_request(*names: str) -> RpcRequest:
    message = pb.ReloadConfigRequest()
    for name in names:
        message.config.model_config_list.config.add(name=name, base_path="/models")
    return RpcRequest(pb.RELOAD, (message.SerializeToString(),))


def test_a_list_of_one_model_loads_the_model() -> None:
    wire = reload_request("m")
    assert CODEC.summarize(wire).operation is messages.ModelLoadRequest
    parsed = parse(CODEC, wire)
    assert parsed.operation == messages.ModelLoadRequest("m")
    response = CODEC.build_response(messages.Acknowledgement(), parsed)
    assert parsed_message(pb.ReloadConfigResponse, response).status.error_code == 0


def test_invalid_lists_of_models_are_refused() -> None:
    for names in ((), ("m", "n")):
        with raises_kind(Kind.UNSUPPORTED, f"this list has {len(names)} models"):
            CODEC.summarize(reload_request(*names))
    with raises_kind(Kind.BAD_REQUEST, "has no name"):
        CODEC.summarize(reload_request(""))
    large = RpcRequest(pb.RELOAD, (bytes(70_000),))
    with raises_kind(Kind.TOO_LARGE, "over 65536 bytes"):
        CODEC.summarize(large)


def test_reloading_is_unimplemented_while_it_is_off() -> None:
    error = RepositoryControlDisabledError()
    assert status_of(error, reload_request("m"))[0] == 12
    assert status_of(GatewayError(Kind.NO_BACKEND, "down"), reload_request("m"))[0] == 14


# ---- messages that pass through


def test_a_passed_request_changes_only_the_model() -> None:
    message = PredictRequest(model_spec={"name": "m", "signature_name": "x"}, output_filter=["y"])
    message.inputs["x"].dtype = 1
    message.inputs["x"].float_val.append(1)
    unknown = b"\x32\x02id"  # client_id
    wire = RpcRequest(pb.PREDICT, (message.SerializeToString() + unknown,), {"a": "b"})
    assert CODEC.validate(wire, DEFAULT_LIMITS) is wire
    rewritten = CODEC.rewrite_request(wire, "other", "7", GENERIC)
    assert rewritten.metadata == {}
    data = bytes(join_parts(rewritten.message))
    assert data.endswith(unknown)
    sent = PredictRequest.FromString(data)
    assert (sent.model_spec.name, sent.model_spec.version.value) == ("other", 7)
    assert sent.model_spec.signature_name == "x"
    assert sent.inputs["x"].float_val == [1]
    assert sent.output_filter == ["y"]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"version_label": "canary"}, 'name: "m" version_label: "canary"'),
        ({"version_label": "stable"}, 'name: "m" version { value: 3 }'),
        ({"signature_name": "other"}, 'name: "m" signature_name: "other"'),
        ({"signature_name": "embed"}, 'name: "m-embed"'),
        ({"version": 0}, 'name: "m"'),
    ],
)
def test_a_passed_request_has_the_mapped_names(spec: dict[str, Any], expected: str) -> None:
    wire = request(name="m", **spec)
    summary = MAPPING.summarize(wire)
    rewritten = MAPPING.rewrite_request(wire, summary.model, summary.version, GENERIC)
    model_spec = PredictRequest.FromString(bytes(join_parts(rewritten.message))).model_spec
    assert " ".join(str(model_spec).split()) == expected


def test_a_passed_response_has_the_clients_names() -> None:
    reply = PredictResponse(model_spec={"name": "m-embed", "signature_name": "serving_default"})
    reply.model_spec.version.value = 9
    wire = response_of(reply)
    for codec, spec, expected in (
        (MAPPING, {"signature_name": "embed"}, ("m", "embed")),
        (CODEC, {"signature_name": "serving_default"}, ("m-embed", "serving_default")),
    ):
        rewritten = codec.rewrite_response(wire, request(name="m", **spec), "", "", DEFAULT_LIMITS)
        model_spec = parsed_message(PredictResponse, rewritten).model_spec
        assert (model_spec.name, model_spec.signature_name) == expected
        assert model_spec.version.value == 9
    for wire, kind in (
        (RpcResponse(code=5, details="gone"), Kind.NOT_FOUND),
        (RpcResponse((b"\xff",)), Kind.BACKEND_GARBAGE),
    ):
        with raises_kind(kind):
            CODEC.rewrite_response(wire, request(name="m"), "", "", DEFAULT_LIMITS)


def test_the_option_contents_prevents_pass_through() -> None:
    assert CODEC.can_pass_through
    assert not GRPC.create({"contents": "raw"}).can_pass_through
    assert not GRPC.create({"contents": "typed"}).can_pass_through


# ---- Classify, Regress, MultiInference


def test_a_forwarded_call_reaches_servers_of_the_same_api_only() -> None:
    wire = request(pb.CLASSIFY, ClassificationRequest, name="m", signature_name="classify_x")
    parsed = parse(MAPPING, wire)
    with raises_kind(Kind.UNSUPPORTED, "Classify needs a backend that speaks TensorFlow Serving"):
        parsed.operation.parameters.is_passed_to("v2-grpc")
    upstream = CODEC.build_request(parsed.operation, GENERIC)
    assert upstream.method == pb.CLASSIFY
    sent = ClassificationRequest.FromString(bytes(join_parts(upstream.message)))
    assert (sent.model_spec.name, sent.model_spec.signature_name) == ("m", "classify_x")
    reply = ClassificationResponse(model_spec={"name": "m"})
    reply.result.classifications.add().classes.add(label="cat", score=0.5)
    reply.model_spec.version.value = 4
    response = CODEC.parse_response(response_of(reply), parsed.operation, DEFAULT_LIMITS)
    assert response.version == "4"
    message = parsed_message(ClassificationResponse, MAPPING.build_response(response, parsed))
    assert message == reply
    rewritten = MAPPING.rewrite_request(wire, "n", "2", GENERIC)
    sent = ClassificationRequest.FromString(bytes(join_parts(rewritten.message)))
    assert (sent.model_spec.name, sent.model_spec.version.value) == ("n", 2)


def test_multi_inference_renames_every_task() -> None:
    message = MultiInferenceRequest()
    message.input.example_list.examples.add()
    for signature in ("a", "b"):
        message.tasks.add(
            model_spec={"name": "m", "signature_name": signature}, method_name=signature
        )
    wire = RpcRequest(pb.MULTI_INFERENCE, (message.SerializeToString(),))
    assert CODEC.summarize(wire).model == "m"
    rewritten = CODEC.rewrite_request(wire, "n", "2", GENERIC)
    sent = MultiInferenceRequest.FromString(bytes(join_parts(rewritten.message)))
    assert [task.model_spec.name for task in sent.tasks] == ["n", "n"]
    assert [task.model_spec.signature_name for task in sent.tasks] == ["a", "b"]
    assert sent.input == message.input
    reply = MultiInferenceResponse()
    result = reply.results.add(model_spec={"name": "n", "signature_name": "a"})
    result.regression_result.regressions.add(value=1.5)
    response = CODEC.rewrite_response(response_of(reply), wire, "m", "", DEFAULT_LIMITS)
    (task,) = parsed_message(MultiInferenceResponse, response).results
    assert (task.model_spec.name, task.regression_result) == ("m", result.regression_result)
    many = b"\x0a\x05\x0a\x03\x0a\x01m" * 1025
    with raises_kind(Kind.BAD_REQUEST, "over 1024 tasks"):
        CODEC.summarize(RpcRequest(pb.MULTI_INFERENCE, (many,)))


def test_the_config_of_graphpipe_is_no_forwarded_call() -> None:
    parameters = OpaqueParameters({"p": 1}, ("graphpipe",), b'{"p": 1}')
    upstream = CODEC.build_request(InferRequest("m", parameters=parameters), GENERIC)
    assert upstream.method == pb.PREDICT
    with raises_kind(Kind.BACKEND_GARBAGE, "no message"):
        backend.forwarded_calls.response_message(InferResponse("m"))
    with raises_kind(Kind.BAD_REQUEST, "name of the model is missing"):
        CODEC.build_request(InferRequest(""), GENERIC)


def test_sequences_are_unsupported() -> None:
    assert not CODEC.capabilities.supports_sequences
    assert CODEC.sequence_of(request(name="m"), DEFAULT_LIMITS) is None
