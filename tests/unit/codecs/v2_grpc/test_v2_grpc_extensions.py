"""Repository, configuration, statistics and settings over gRPC, and KServe's own messages."""

from typing import Any

import pytest
from tritonclient.grpc import model_config_pb2, service_pb2

from gateway_errors import refused
from infergate.codecs.base import ParsedRequest
from infergate.codecs.profiles import GENERIC, KSERVE, MLSERVER, TRITON
from infergate.codecs.v2_grpc import PLUGIN
from infergate.codecs.v2_grpc import messages as pb
from infergate.core.errors import Kind
from infergate.core.limits import DEFAULT_LIMITS, MIB, Limits
from infergate.core.messages import (
    Acknowledgement,
    LogSettingsRequest,
    ModelConfig,
    ModelConfigRequest,
    ModelLoadRequest,
    ModelStatisticsRequest,
    ModelUnloadRequest,
    Operation,
    Response,
    Settings,
    TraceSettingsRequest,
)
from infergate.core.wire import RpcRequest, RpcResponse, join_parts

CODEC = PLUGIN.create({})
SERVICE = "/inference.GRPCInferenceService/"


def parse(method: str, message: Any) -> ParsedRequest:
    wire = RpcRequest(SERVICE + method, [message.SerializeToString()])
    parsed = CODEC.parse_request(wire, DEFAULT_LIMITS)
    summary = CODEC.summarize(wire)
    assert (summary.operation, summary.model) == (
        type(parsed.operation),
        getattr(parsed.operation, "model", ""),
    )
    return parsed


def build_request_message(operation: Operation, kind: Any, profile: Any = TRITON) -> Any:
    return kind.FromString(join_parts(CODEC.build_request(operation, profile).message))


def parse_response(message: Any, operation: Operation) -> Response:
    wire = RpcResponse([message.SerializeToString()])
    return CODEC.parse_response(wire, operation, DEFAULT_LIMITS)


def build_response_message(response: Response, parsed: ParsedRequest, kind: Any) -> Any:
    return kind.FromString(join_parts(CODEC.build_response(response, parsed).message))


# ---- loading


def load_request() -> Any:
    message = service_pb2.RepositoryModelLoadRequest(repository_name="r", model_name="m")
    message.parameters["config"].string_param = "{}"
    message.parameters["file:1/m"].bytes_param = b"\x00\xff"
    message.parameters["n"].int64_param = -1
    message.parameters["b"].bool_param = True
    message.parameters["nothing"].SetInParent()
    return message


def test_tritons_load_request() -> None:
    parsed = parse("RepositoryModelLoad", load_request())
    parameters = {"config": "{}", "file:1/m": b"\x00\xff", "n": -1, "b": True}
    assert parsed.operation == ModelLoadRequest("m", "r", parameters)
    response = build_response_message(
        Acknowledgement(), parsed, service_pb2.RepositoryModelLoadResponse
    )
    assert response.SerializeToString() == b""
    rebuilt = build_request_message(parsed.operation, service_pb2.RepositoryModelLoadRequest)
    expected = load_request()
    del expected.parameters["nothing"]
    assert rebuilt == expected


def test_tritons_unload_request() -> None:
    message = service_pb2.RepositoryModelUnloadRequest(model_name="m")
    message.parameters["unload_dependents"].bool_param = False
    parsed = parse("RepositoryModelUnload", message)
    assert parsed.operation == ModelUnloadRequest("m", "", {"unload_dependents": False})
    assert (
        build_request_message(parsed.operation, service_pb2.RepositoryModelUnloadRequest) == message
    )


@pytest.mark.parametrize(
    ("method", "kind"),
    [("RepositoryModelLoad", ModelLoadRequest), ("RepositoryModelUnload", ModelUnloadRequest)],
)
def test_kserves_messages_round_trip(method: str, kind: Any) -> None:
    message = pb.KServeModelRequest(model_name="m")
    parsed = parse(method, message)
    assert parsed.operation == kind("m")
    response = build_response_message(Acknowledgement(), parsed, pb.KServeModelResponse)
    assert response == pb.KServeModelResponse(model_name="m", is_done=True)
    ignored = {"unload_dependents": False}
    assert build_request_message(kind("m", "", ignored), pb.KServeModelRequest, KSERVE) == message
    assert parse_response(response, kind("m")) == Acknowledgement()
    # Triton's response is empty
    assert parse_response(pb.KServeModelResponse(), kind("m")) == Acknowledgement()
    failed = pb.KServeModelResponse(model_name="m")
    assert refused(lambda: parse_response(failed, kind("m"))).kind is Kind.BACKEND_ERROR


@pytest.mark.parametrize("profile", [KSERVE, MLSERVER])
def test_fields_that_a_server_would_ignore_are_refused(profile: Any) -> None:
    for operation in (
        ModelLoadRequest("m", "r"),
        ModelLoadRequest("m", "", {"config": "{}"}),
        ModelUnloadRequest("m", "", {"unload_dependents": True}),
    ):
        error = refused(lambda request=operation: CODEC.build_request(request, profile))
        assert error.kind is Kind.UNSUPPORTED


@pytest.mark.parametrize("value", [1.5, 2**63, [], {}])
def test_unrepresentable_parameters_are_rejected(value: Any) -> None:
    operation = ModelLoadRequest("m", "", {"x": value, "y": None})
    error = refused(lambda: CODEC.build_request(operation, GENERIC))
    assert (error.kind, "'x'" in error.public) == (Kind.BAD_REQUEST, True)


@pytest.mark.parametrize("method", ["RepositoryModelLoad", "RepositoryModelUnload"])
@pytest.mark.parametrize(
    "message", [b"", b"\xff", b"\x0a\x05m", b"\x12\x02\xff\xfe", b"\x12\x01m" * 5000]
)
def test_malformed_messages_are_refused(method: str, message: bytes) -> None:
    wire = RpcRequest(SERVICE + method, [message])
    if method == "RepositoryModelUnload" and len(message) > 10:
        return  # 15 kB are short enough to be parsed
    error = refused(lambda: CODEC.parse_request(wire, DEFAULT_LIMITS))
    assert error.kind is Kind.BAD_REQUEST


def test_files_and_names_have_different_limits() -> None:
    message = service_pb2.RepositoryModelLoadRequest(model_name="m")
    message.parameters["file:m"].bytes_param = bytes(MIB)
    parsed = parse("RepositoryModelLoad", message)
    assert parsed.operation.parameters["file:m"] == bytes(MIB)
    wire = RpcRequest(SERVICE + "RepositoryModelLoad", [message.SerializeToString()])
    error = refused(lambda: CODEC.parse_request(wire, Limits(body=MIB)))
    assert error.kind is Kind.TOO_LARGE
    unload = RpcRequest(SERVICE + "RepositoryModelUnload", wire.message)
    assert refused(lambda: CODEC.summarize(unload)).kind is Kind.TOO_LARGE


# ---- configuration and statistics


def config() -> Any:
    model_config = model_config_pb2.ModelConfig(name="real", platform="onnx", max_batch_size=8)
    model_config.input.add(name="data", data_type="TYPE_FP32", dims=[-1, 3])
    model_config.output.add(name="prob", data_type=99, dims=[2**40])  # a datatype of the future
    model_config.dynamic_batching.max_queue_delay_microseconds = 2**63
    model_config.parameters["k"].string_value = "v"
    model_config.version_policy.specific.versions.extend([1, 3])
    return model_config


FUTURE_FIELD = b"\xfa\x3f\x03new"
"""Field 1023, which no release has."""


def test_a_configuration_uses_proto_field_names() -> None:
    message = service_pb2.ModelConfigResponse(config=config())
    parsed = parse_response(message, ModelConfigRequest("m"))
    settings = parsed.settings
    assert (parsed.name, settings["max_batch_size"], settings["platform"]) == ("real", 8, "onnx")
    assert settings["input"][0]["data_type"] == "TYPE_FP32"
    assert settings["output"][0]["data_type"] == 99
    assert settings["input"][0]["dims"] == [-1, 3]
    assert settings["dynamic_batching"]["max_queue_delay_microseconds"] == 2**63
    assert settings["parameters"] == {"k": {"string_value": "v"}}
    assert settings["version_policy"] == {"specific": {"versions": [1, 3]}}
    assert "sequence_batching" not in settings


def test_unknown_fields_are_kept_and_names_are_the_clients() -> None:
    raw = config().SerializeToString() + FUTURE_FIELD
    wire = RpcResponse([b"\x0a" + bytes([len(raw) & 0x7F | 0x80, len(raw) >> 7]) + raw])
    parsed = CODEC.parse_response(wire, ModelConfigRequest("m"), DEFAULT_LIMITS)
    inputs = [{**parsed.settings["input"][0], "name": "image"}]
    renamed = ModelConfig("m", {**parsed.settings, "name": "m", "input": inputs}, parsed.message)
    response = CODEC.build_response(renamed, ParsedRequest(ModelConfigRequest("m")))
    assert FUTURE_FIELD in bytes(join_parts(response.message))
    actual = build_response_message(
        renamed, ParsedRequest(ModelConfigRequest("m")), service_pb2.ModelConfigResponse
    ).config
    expected = config()
    expected.name, expected.input[0].name = "m", "image"
    actual.ClearField("input"), expected.ClearField("input")  # compared without the unknown field
    assert (actual.name, actual.output[0].name) == (expected.name, expected.output[0].name)
    assert actual.dynamic_batching == expected.dynamic_batching


def test_settings_from_another_protocol_are_encoded() -> None:
    settings = {
        "name": "m",
        "max_batch_size": 8,
        "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [3]}],
        "unknown": {"field": ["x"]},
        "output": [{"name": "OUT", "data_type": "TYPE_NEWER"}],
        "backend": None,
    }
    response = build_response_message(
        ModelConfig("m", settings),
        ParsedRequest(ModelConfigRequest("m")),
        service_pb2.ModelConfigResponse,
    )
    assert response.config.input[0].dims == [3]
    assert response.config.input[0].data_type == model_config_pb2.TYPE_FP32
    assert response.config.output[0].data_type == model_config_pb2.TYPE_INVALID
    assert response.config.max_batch_size == 8


@pytest.mark.parametrize(
    "settings",
    [
        {"max_batch_size": "many"},
        {"max_batch_size": 2**40},
        {"input": {"a": 1}},
        {"input": [7]},
        {"parameters": ["k"]},
        {"name": 7},
    ],
)
def test_unrepresentable_settings_are_rejected(settings: dict[str, Any]) -> None:
    response = ModelConfig("m", settings)
    error = refused(lambda: CODEC.build_response(response, ParsedRequest(ModelConfigRequest("m"))))
    assert error.kind is Kind.UNSUPPORTED


def test_statistics_round_trip() -> None:
    message = service_pb2.ModelStatisticsResponse()
    model = message.model_stats.add(name="m", version="1", last_inference=2**63, inference_count=3)
    model.inference_stats.success.count = 3
    model.batch_stats.add(batch_size=8).compute_infer.ns = 7
    model.memory_usage.add(type="CPU", byte_size=9)
    model.response_stats["0"].success.count = 1
    request = service_pb2.ModelStatisticsRequest(name="m", version="1")
    operation = parse("ModelStatistics", request).operation
    assert operation == ModelStatisticsRequest("m", "1")
    assert build_request_message(operation, service_pb2.ModelStatisticsRequest) == request
    parsed = parse_response(message, operation)
    assert parsed.models[0]["inference_stats"] == {"success": {"count": 3, "ns": 0}}
    assert parsed.models[0]["last_inference"] == 2**63
    rebuilt = build_response_message(
        parsed, ParsedRequest(operation), service_pb2.ModelStatisticsResponse
    )
    assert rebuilt == message


# ---- settings


def test_trace_settings_round_trip() -> None:
    message = service_pb2.TraceSettingRequest(model_name="m")
    message.settings["trace_level"].value.extend(["A", "B"])
    message.settings["trace_file"].SetInParent()
    parsed = parse("TraceSetting", message)
    assert parsed.operation == TraceSettingsRequest(
        "m", {"trace_file": [], "trace_level": ["A", "B"]}
    )
    assert build_request_message(parsed.operation, service_pb2.TraceSettingRequest) == message
    settings = Settings({"trace_level": ["OFF"]})
    response = build_response_message(settings, parsed, service_pb2.TraceSettingResponse)
    assert response.settings["trace_level"].value == ["OFF"]
    assert parse_response(response, parsed.operation) == settings


def test_log_settings_round_trip() -> None:
    message = service_pb2.LogSettingsRequest()
    message.settings["log_info"].bool_param = False
    message.settings["log_verbose_level"].uint32_param = 1
    message.settings["log_file"].string_param = "f"
    parsed = parse("LogSettings", message)
    values = {"log_file": "f", "log_info": False, "log_verbose_level": 1}
    assert parsed.operation == LogSettingsRequest(values)
    assert build_request_message(parsed.operation, service_pb2.LogSettingsRequest) == message
    response = build_response_message(Settings(values), parsed, service_pb2.LogSettingsResponse)
    assert parse_response(response, parsed.operation) == Settings(values)
    message.settings["nothing"].SetInParent()
    assert parse("LogSettings", message).operation == LogSettingsRequest(values)


@pytest.mark.parametrize(
    "operation",
    [
        TraceSettingsRequest("", {"x": "text"}),
        TraceSettingsRequest("", {"x": [1]}),
        LogSettingsRequest({"x": -1}),
        LogSettingsRequest({"x": 2**32}),
        LogSettingsRequest({"x": 1.5}),
    ],
)
def test_setting_values_of_wrong_types_are_rejected(operation: Operation) -> None:
    error = refused(lambda: CODEC.build_request(operation, TRITON))
    assert (error.kind, "'x'" in error.public) == (Kind.BAD_REQUEST, True)
