import dataclasses
import pickle
from typing import Any, get_args

import pytest

from infergate.core import messages
from infergate.core.limits import DEFAULT_LIMITS, MIB, Limits
from infergate.core.tensor import NO_PARAMETERS


def test_every_operation_has_a_name_for_metrics_and_logs() -> None:
    assert set(messages.OPERATION_NAMES) == set(get_args(messages.Operation))


@pytest.mark.parametrize("kind", [*get_args(messages.Operation), *get_args(messages.Response)])
def test_messages_are_records(kind: type) -> None:
    values = {each.name: None for each in dataclasses.fields(kind)}
    created = kind(**values)
    assert created == kind(**values)
    assert hash(created) == hash(kind(**values))
    assert hasattr(kind, "__slots__")


@pytest.mark.parametrize("kind", [messages.InferRequest, messages.InferResponse])
def test_inference_messages_are_empty_by_default(kind: type) -> None:
    created = kind("m")
    assert (created.model, created.version, created.id) == ("m", "", "")
    assert created.parameters is NO_PARAMETERS


def test_the_empty_mapping_stays_empty() -> None:
    parameters: Any = NO_PARAMETERS
    for change in (lambda: parameters.update(a=1), lambda: parameters.setdefault("a", 1)):
        with pytest.raises(TypeError, match="stays empty"):
            change()
    with pytest.raises(TypeError, match="stays empty"):
        parameters["a"] = 1
    assert pickle.loads(pickle.dumps(parameters)) is parameters


def test_default_limits_are_consistent() -> None:
    assert Limits() == DEFAULT_LIMITS
    assert DEFAULT_LIMITS.body == 64 * MIB
    assert DEFAULT_LIMITS.json <= DEFAULT_LIMITS.body <= DEFAULT_LIMITS.in_flight_bytes
