"""Canonical values round trip through JSON, and ``is_same`` compares them."""

import json

import pytest
from hypothesis import given

from infergate.core import messages
from infergate.core.datatypes import Datatype
from infergate.core.messages import InferRequest
from infergate.core.tensor import Tensor
from infergate.testing import from_json, is_same, to_json
from infergate.testing.strategies import infer_requests, infer_responses


@given(infer_requests())
def test_requests_round_trip(request: InferRequest) -> None:
    assert from_json(json.loads(json.dumps(to_json(request)))) == request


@given(infer_responses())
def test_responses_round_trip(response: messages.InferResponse) -> None:
    assert from_json(json.loads(json.dumps(to_json(response)))) == response


@pytest.mark.parametrize(
    "value",
    [
        messages.ServerLiveRequest(),
        messages.HealthStatus(ok=False),
        messages.ServerMetadata("n", "1", ("a", "b")),
        messages.ModelIndex((messages.ModelIndexEntry("m", state="READY"),)),
        messages.ModelMetadata(
            "m", inputs=(messages.TensorMetadata("X", "FP32", (-1,), {"k": [1]}),)
        ),
    ],
)
def test_other_operations_and_responses_round_trip(value: object) -> None:
    assert from_json(to_json(value)) == value  # type: ignore[arg-type]


def test_defaults_are_omitted_and_data_is_written_in_hex() -> None:
    tensor = Tensor("X", Datatype.INT8, (2,), memoryview(b"\x01\xff"))
    assert to_json(InferRequest("m", inputs=(tensor,))) == {
        "type": "InferRequest",
        "model": "m",
        "inputs": [{"name": "X", "datatype": "INT8", "shape": [2], "data": "01ff"}],
    }


def test_comparison_distinguishes_types_and_equates_nan() -> None:
    def request(value: object, data: bytes | memoryview = b"\1") -> InferRequest:
        tensor = Tensor("X", Datatype.INT8, (1,), data)
        return InferRequest("m", parameters={"k": value}, inputs=(tensor,))

    assert is_same(request(1), request(1, memoryview(b"\1")))
    assert not is_same(request(1), request(1, b"\2"))
    assert not is_same(request(1), request(True))
    assert not is_same(request(1), request(1.0))
    assert is_same(request(float("nan")), request(float("nan")))


@pytest.mark.parametrize(
    "fields", [{"type": "Nothing"}, {"type": "HealthStatus", "okay": True}, {}]
)
def test_unknown_types_and_fields_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError)):
        from_json(fields)
