"""Builds outcomes and comparisons for the tests of ``infergate.comparison``."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from infergate.comparison.outcomes import Comparison, compare
from infergate.comparison.rules import ComparisonRules, OutputRule
from infergate.comparison.tensors import OutputComparison
from infergate.core.datatypes import NUMPY_DTYPES, Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.exchange import Outcome
from infergate.core.messages import InferResponse
from infergate.core.tensor import Tensor, tensor_from_array

NO_RULES = ComparisonRules()


def fp32(name: str, *values: float) -> Tensor:
    return tensor_from_array(name, Datatype.FP32, np.array(values, np.float32))


def outcome(*outputs: Tensor, duration: float = 0.01) -> Outcome:
    """Return an outcome with one response."""
    return Outcome((InferResponse("m", outputs=outputs),), None, duration)


def stream(*outputs: Tensor, kind: Kind | None = None) -> Outcome:
    """Return an outcome with a response for each output, and an error if ``kind`` is set."""
    error = GatewayError(kind, "failed") if kind else None
    return Outcome(tuple(InferResponse("m", outputs=(each,)) for each in outputs), error)


def failure(kind: Kind) -> Outcome:
    return Outcome((), GatewayError(kind, "failed"), 0.01)


def compare_values(
    expected: float, actual: float, rules: ComparisonRules = NO_RULES, name: str = "x"
) -> Comparison:
    """Compare two outcomes whose only output, ``name``, has one FP32 element."""
    return compare(rules, outcome(fp32(name, expected)), outcome(fp32(name, actual)))


def compare_arrays(
    datatype: Datatype,
    expected: npt.ArrayLike,
    actual: npt.ArrayLike,
    rule: OutputRule | None = None,
) -> OutputComparison:
    """Compare two arrays as outputs named ``x``, by ``rule`` or by the default rules."""
    dtype: Any = NUMPY_DTYPES.get(datatype, np.object_)
    if datatype is Datatype.BF16:
        dtype = np.float32
    first, second = (
        outcome(tensor_from_array("x", datatype, np.asarray(each, dtype)))
        for each in (expected, actual)
    )
    rules = ComparisonRules(outputs={"x": rule} if rule else {})
    (result,) = compare(rules, first, second).outputs
    return result
