"""The hook rejects tensors with NaN and infinity, and marks all other responses."""

import numpy as np
import pytest
from infergate_finite import FiniteHook, Options

from infergate.plugins import Datatype, GatewayError, InferRequest, InferResponse, tensor_from_array
from infergate.testing import check_hook


def request(*values: float) -> InferRequest:
    array = np.array(values, np.float32)
    return InferRequest("m", inputs=(tensor_from_array("x", Datatype.FP32, array),))


def response(*values: float) -> InferResponse:
    array = np.array(values, np.float64)
    return InferResponse("m", outputs=(tensor_from_array("y", Datatype.FP64, array),))


def test_finite_tensors_pass() -> None:
    checked = check_hook(FiniteHook, Options(), request(1, 2), response(3))
    assert checked.parameters == {"finite": True}
    assert checked.outputs == response(3).outputs


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_inputs_with_nan_or_infinity_are_rejected(value: float) -> None:
    with pytest.raises(GatewayError, match="input 'x' contains NaN"):
        check_hook(FiniteHook, Options(), request(1, value), response(3))


def test_outputs_are_checked_if_configured() -> None:
    with pytest.raises(GatewayError, match="output 'y'"):
        check_hook(FiniteHook, Options(), request(1), response(np.nan))
    unchecked = check_hook(FiniteHook, Options(outputs=False), request(1), response(np.nan))
    assert unchecked.parameters == {}


def test_large_tensors_are_checked_too() -> None:
    large = np.zeros(1 << 20, np.float32)
    large[-1] = np.nan
    wrong = InferRequest("m", inputs=(tensor_from_array("x", Datatype.FP32, large),))
    with pytest.raises(GatewayError, match="input 'x'"):
        check_hook(FiniteHook, Options(), wrong, response(1))
