"""Classification and configuration requests are sent only to servers that support them."""

from typing import Any

import pytest
from tritonclient.grpc import service_pb2 as pb

from gateway_errors import raises_kind
from infergate.codecs.profiles import GENERIC, KSERVE, TRITON
from infergate.codecs.v2_grpc import PLUGIN
from infergate.core.errors import Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import ModelConfig, ModelConfigRequest
from infergate.core.wire import RpcRequest, RpcResponse, join_parts

CODEC = PLUGIN.create({})
INFER = "/inference.GRPCInferenceService/ModelInfer"


def request(*outputs: pb.ModelInferRequest.InferRequestedOutputTensor, data: bytes = b"") -> Any:
    message = pb.ModelInferRequest(model_name="m", outputs=outputs)
    message.inputs.add(name="X", datatype="UINT8", shape=[len(data)])
    message.raw_input_contents.append(data)
    return RpcRequest(INFER, [message.SerializeToString()])


def output(name: str, **parameters: int | str) -> pb.ModelInferRequest.InferRequestedOutputTensor:
    requested = pb.ModelInferRequest.InferRequestedOutputTensor(name=name)
    for key, value in parameters.items():
        if isinstance(value, int):
            requested.parameters[key].int64_param = value
        else:
            requested.parameters[key].string_param = value
    return requested


def is_passed_through(wire: RpcRequest, profile: Any) -> bool:
    return CODEC.rewrite_request(wire, "n", "", profile) is not None


@pytest.mark.parametrize(
    "outputs",
    [
        (output("Y", classification=2),),
        (output("X"), output("Y", other=1, classification=2, more="text")),
        (output("classification", classification=2),),
    ],
)
@pytest.mark.parametrize("length", [0, 100_000])
def test_classes_are_requested_only_from_servers_that_support_them(
    outputs: Any, length: int
) -> None:
    wire = request(*outputs, data=bytes(length))
    assert is_passed_through(wire, TRITON)
    assert not is_passed_through(wire, KSERVE)
    assert not is_passed_through(wire, GENERIC)  # an unknown server


@pytest.mark.parametrize(
    "outputs",
    [
        (),
        (output("Y"),),
        (output("classification"),),
        (output("Y", kind="classification", classification_of=1),),
    ],
)
@pytest.mark.parametrize("length", [0, 1, 10_000])
def test_requests_without_classes_are_forwarded_to_any_server(outputs: Any, length: int) -> None:
    """A tensor's data, a name or a value may contain the word "classification"."""
    data = b"\x0a\x0eclassification\x12\x02\x10\x02" * length
    wire = request(*outputs, data=data)
    for profile in (TRITON, KSERVE, GENERIC):
        assert is_passed_through(wire, profile)


def test_an_unreadable_output_is_a_bad_request() -> None:
    """Routes without validation forward such messages."""
    output_bytes = b"\x12\xffclassification"
    wire = RpcRequest(INFER, [b"\x0a\x01m", bytes((6 << 3 | 2, len(output_bytes))), output_bytes])
    with raises_kind(Kind.BAD_REQUEST):
        CODEC.rewrite_request(wire, "n", "", GENERIC)
    assert is_passed_through(wire, TRITON)


def test_a_configuration_request_is_built() -> None:
    wire = CODEC.build_request(ModelConfigRequest("m", "3"), TRITON)
    assert wire.method == "/inference.GRPCInferenceService/ModelConfig"
    config_request = pb.ModelConfigRequest.FromString(bytes(join_parts(wire.message)))
    assert (config_request.name, config_request.version) == ("m", "3")


def test_a_configuration_is_parsed() -> None:
    config = pb.ModelConfigResponse()
    config.config.name, config.config.platform, config.config.max_batch_size = "m", "ensemble", 8
    config.config.input.add(name="X", dims=[3])
    parsed = CODEC.parse_response(
        RpcResponse([config.SerializeToString()]), ModelConfigRequest("m"), DEFAULT_LIMITS
    )
    assert isinstance(parsed, ModelConfig)
    assert parsed.name == "m"
    settings = {name: parsed.settings[name] for name in ("name", "platform", "max_batch_size")}
    assert settings == {"name": "m", "platform": "ensemble", "max_batch_size": 8}
    assert parsed.settings["input"][0]["dims"] == [3]


def test_an_unreadable_configuration_is_garbage() -> None:
    with raises_kind(Kind.BACKEND_GARBAGE, match="ModelConfig"):
        CODEC.parse_response(RpcResponse([b"\x0a\x05"]), ModelConfigRequest("m"), DEFAULT_LIMITS)
