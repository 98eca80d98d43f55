from typing import Any

import pytest

from gateway_errors import raises_kind
from infergate.core.errors import Kind
from infergate.core.messages import InferRequest
from infergate.core.sequences import sequence_id, sequence_key


@pytest.mark.parametrize("value", [1, 2**64 - 1, "1", "by name", "é"])
def test_the_key_of_a_sequence_has_the_model_and_the_id(value: Any) -> None:
    assert sequence_id({"sequence_id": value}) == value
    assert sequence_key(InferRequest("m", "2", parameters={"sequence_id": value})) == ("m", value)


@pytest.mark.parametrize("value", [None, True, False, 1.5, 0.0, [], [1], {"a": 1}])
def test_ids_of_other_types_are_rejected(value: Any) -> None:
    with raises_kind(Kind.BAD_REQUEST, match="'sequence_id' must be an integer or a string"):
        sequence_id({"sequence_id": value})


@pytest.mark.parametrize("value", [0, ""])
def test_zero_and_empty_ids_mean_no_sequence(value: Any) -> None:
    assert sequence_id({"sequence_id": value}) is None
    assert sequence_key(InferRequest("m", parameters={"sequence_id": value})) is None


def test_a_request_without_an_id_has_no_sequence() -> None:
    assert sequence_key(InferRequest("m", parameters={"sequence_start": True})) is None
