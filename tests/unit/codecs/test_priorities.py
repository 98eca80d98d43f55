"""The priority that an inference requests by Triton's parameter or by a header."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infergate.codecs.v2_grpc import PLUGIN as V2_GRPC
from infergate.codecs.v2_grpc.messages import ModelInferRequest
from infergate.codecs.v2_rest import PLUGIN as V2_REST
from infergate.core.limits import DEFAULT_LIMITS, KIB
from infergate.core.priorities import parse_priority, requested_priority
from infergate.core.wire import HttpRequest, RpcRequest

INFER = "/inference.GRPCInferenceService/ModelInfer"


@pytest.mark.parametrize(
    ("value", "priority"),
    [(1, 1), (9, 9), (2**64 - 1, 9), (0, 0), (-1, 0), (True, 0), ("1", 0), (1.0, 0)],
)
def test_positive_integers_are_priorities(value: Any, priority: int) -> None:
    assert requested_priority({"priority": value}) == priority
    assert requested_priority({}) == 0


@pytest.mark.parametrize(
    ("text", "priority"),
    [
        ("1", 1),
        ("9", 9),
        ("10", 9),
        ("0", 0),
        ("", 0),
        ("-1", 0),
        (" 1", 0),
        ("²", 0),
        ("9" * 21, 0),
    ],
)
def test_only_positive_decimal_headers_are_priorities(text: str, priority: int) -> None:
    assert parse_priority(text) == priority


def grpc_request(padding: int = 0, **parameters: int) -> RpcRequest:
    message = ModelInferRequest(model_name="m", raw_input_contents=[bytes(4)])
    message.inputs.add(name="x", datatype="INT32", shape=[1])
    for name, value in parameters.items():
        message.parameters[name].uint64_param = value
    for number in range(padding):
        message.parameters[f"p{number}"].string_param = "x" * KIB
    return RpcRequest(INFER, (message.SerializeToString(),))


def test_the_priority_of_a_grpc_message_is_found_in_new_and_in_cached_heads() -> None:
    codec = V2_GRPC.create({})
    for _ in range(4):
        assert codec.priority_of(codec.validate(grpc_request(priority=3), DEFAULT_LIMITS)) == 3
        assert codec.priority_of(codec.validate(grpc_request(other=3), DEFAULT_LIMITS)) == 0
    assert codec.priority_of(grpc_request(priority=4)) == 4  # not validated
    assert codec.priority_of(RpcRequest("/inference.GRPCInferenceService/ServerLive", (b"",))) == 0


def test_the_priority_of_a_long_or_malformed_grpc_message_is_not_read() -> None:
    codec = V2_GRPC.create({})
    assert codec.priority_of(grpc_request(padding=15, priority=3)) == 3
    assert codec.priority_of(grpc_request(padding=17, priority=3)) == 0
    assert codec.priority_of(RpcRequest(INFER, (b"\xffpriority",))) == 0


@pytest.mark.parametrize(("parameters", "priority"), [({"priority": 3}, 3), ({}, 0)])
def test_the_priority_of_a_rest_message(parameters: dict[str, int], priority: int) -> None:
    codec = V2_REST.create({})
    tensor = {"name": "x", "datatype": "INT32", "shape": [1], "data": [1]}
    body = json.dumps({"parameters": parameters, "inputs": [tensor]}).encode()
    wire = HttpRequest("POST", "/v2/models/m/infer", body=(body,))
    assert codec.priority_of(codec.validate(wire, DEFAULT_LIMITS)) == priority
    assert codec.priority_of(wire) == 0  # not validated
