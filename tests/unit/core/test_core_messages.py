import dataclasses
from typing import get_args

import pytest

from infergate.core import messages
from infergate.core.limits import DEFAULT_LIMITS, MIB, Limits
from infergate.core.tensor import NO_PARAMETERS


def test_every_operation_has_a_name_for_metrics_and_logs() -> None:
    assert set(messages.OPERATION_NAMES) == set(get_args(messages.Operation))


@pytest.mark.parametrize("noun", [*get_args(messages.Operation), *get_args(messages.Response)])
def test_nouns_are_records(noun: type) -> None:
    values = {each.name: None for each in dataclasses.fields(noun)}
    made = noun(**values)
    for name in values:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, name, None)
    assert made == noun(**values)
    assert hash(made) == hash(noun(**values))
    assert hasattr(noun, "__slots__")


@pytest.mark.parametrize("noun", [messages.InferRequest, messages.InferResponse])
def test_an_inference_is_empty_by_default(noun: type) -> None:
    made = noun("m")
    assert (made.model, made.version, made.id) == ("m", "", "")
    assert made.parameters is NO_PARAMETERS
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.model = "other"


def test_limits_are_those_documented() -> None:
    assert Limits() == DEFAULT_LIMITS
    assert DEFAULT_LIMITS.body == 64 * MIB
    assert DEFAULT_LIMITS.json <= DEFAULT_LIMITS.body <= DEFAULT_LIMITS.in_flight_bytes
