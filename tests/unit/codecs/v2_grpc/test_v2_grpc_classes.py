"""Requests for classification are forwarded unchanged only to servers that support it."""

from typing import Any

import pytest
from tritonclient.grpc import service_pb2 as pb

from gateway_errors import raises_kind
from infergate.codecs.profiles import GENERIC, KSERVE, TRITON
from infergate.codecs.v2_grpc import PLUGIN
from infergate.core.errors import Kind
from infergate.core.wire import RpcRequest

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
        field = "int64_param" if isinstance(value, int) else "string_param"
        setattr(requested.parameters[key], field, value)
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
def test_only_servers_that_support_classes_get_requests_for_them(outputs: Any, length: int) -> None:
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
    """A route without validation forwards the request unread to servers that support classes."""
    output_bytes = b"\x12\xffclassification"
    wire = RpcRequest(INFER, [b"\x0a\x01m", bytes((6 << 3 | 2, len(output_bytes))), output_bytes])
    with raises_kind(Kind.BAD_REQUEST):
        CODEC.rewrite_request(wire, "n", "", GENERIC)
    assert is_passed_through(wire, TRITON)
