"""The sequence of a request is read from the parameters of the request, not of its inputs."""

from typing import Any

import pytest
from tritonclient.grpc import service_pb2 as pb

from gateway_errors import raises_kind
from infergate.codecs.v2_grpc import PLUGIN
from infergate.core.errors import Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.wire import RpcRequest

CODEC = PLUGIN.create({})
INFER = "/inference.GRPCInferenceService/ModelInfer"


def sequence_of(message: bytes) -> Any:
    return CODEC.sequence_of(RpcRequest(INFER, (message,)), DEFAULT_LIMITS)


def message(size: int, **parameter: Any) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="m")
    request.inputs.add(name="X", datatype="UINT8", shape=[size])
    request.inputs[0].parameters["sequence_id"].int64_param = 9
    request.parameters["other"].string_param = "sequence_id"
    if parameter:
        request.parameters["sequence_id"].CopyFrom(pb.InferParameter(**parameter))
    request.raw_input_contents.append(b"x" * size)
    return request


@pytest.mark.parametrize("size", [1, 100_000])
def test_a_sequence_id_of_each_type_is_read(size: int) -> None:
    for field, value in (("int64_param", 5), ("uint64_param", 2**64 - 1), ("string_param", "five")):
        assert sequence_of(message(size, **{field: value}).SerializeToString()) == value
    assert sequence_of(message(size).SerializeToString()) is None


@pytest.mark.parametrize("parameter", [{"bool_param": True}, {"double_param": 1.0}], ids=str)
def test_sequence_ids_of_other_types_are_rejected(parameter: dict[str, Any]) -> None:
    wire = RpcRequest(INFER, (message(1, **parameter).SerializeToString(),))
    for read in (CODEC.parse_request, CODEC.validate, CODEC.sequence_of):
        with raises_kind(Kind.BAD_REQUEST, match="'sequence_id' must be an integer"):
            read(wire, DEFAULT_LIMITS)


def test_the_last_duplicate_parameter_wins_as_in_protobuf() -> None:
    first, last = (pb.ModelInferRequest() for _ in range(2))
    first.parameters["sequence_id"].int64_param = 1
    last.parameters["sequence_id"].int64_param = 2
    data = first.SerializeToString() + message(1).SerializeToString() + last.SerializeToString()
    assert sequence_of(data) == 2
    operation = CODEC.parse_request(RpcRequest(INFER, (data,)), DEFAULT_LIMITS).operation
    assert operation.parameters["sequence_id"] == 2


@pytest.mark.parametrize("data", [b"sequence_id", b"\x22\x0d\x0a\x0bsequence_id\x12\x7f"])
def test_malformed_messages(data: bytes) -> None:
    with raises_kind(Kind.BAD_REQUEST):
        sequence_of(data)
