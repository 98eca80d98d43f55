"""Comparison rules: defaults, overrides, and rules that are rejected."""

from __future__ import annotations

import math
from typing import Any

import pytest

from comparison_kit import compare_arrays
from infergate.comparison.rules import (
    DEFAULT_TOLERANCES,
    ComparisonRuleError,
    ComparisonRules,
    OutputRule,
    Tolerance,
)
from infergate.core.datatypes import FLOATS, Datatype


@pytest.mark.parametrize("datatype", Datatype)
def test_only_floats_have_a_tolerance_by_default(datatype: Datatype) -> None:
    tolerance = ComparisonRules().resolve("x", datatype).tolerance
    assert tolerance == DEFAULT_TOLERANCES.get(datatype)
    assert (tolerance is not None) == (datatype in FLOATS)


def test_narrower_datatypes_have_wider_tolerances() -> None:
    fp32, fp16, bf16 = (
        DEFAULT_TOLERANCES[each] for each in (Datatype.FP32, Datatype.FP16, Datatype.BF16)
    )
    assert fp32 == Tolerance(1e-5, 1e-4)
    assert fp32.rtol < fp16.rtol < bf16.rtol
    assert fp32.atol < fp16.atol < bf16.atol


def test_output_tolerances_override_datatype_tolerances_and_defaults() -> None:
    rules = ComparisonRules({Datatype.FP32: Tolerance(0.1, 0.2)}, {"x": OutputRule(atol=0.5)})
    assert rules.resolve("y", Datatype.FP32).tolerance == Tolerance(0.1, 0.2)
    assert rules.resolve("x", Datatype.FP32).tolerance == Tolerance(0.5, 0.2)
    assert rules.resolve("x", Datatype.FP64).tolerance == Tolerance(0.5, 1e-4)


@pytest.mark.parametrize("datatype", sorted(set(Datatype) - FLOATS, key=lambda each: each.value))
@pytest.mark.parametrize("rule", [OutputRule(atol=0.0), OutputRule(rtol=1e-3)])
def test_a_tolerance_for_an_output_that_is_compared_exactly_is_rejected(
    datatype: Datatype, rule: OutputRule
) -> None:
    value = b"1" if datatype is Datatype.BYTES else 1
    with pytest.raises(ComparisonRuleError, match=f"'x' is {datatype.value}, which is compared ex"):
        compare_arrays(datatype, [value], [value], rule)


@pytest.mark.parametrize("datatype", [Datatype.BOOL, Datatype.BYTES])
@pytest.mark.parametrize("rule", [OutputRule(cosine=0.9), OutputRule(top_k=1)])
def test_cosine_and_top_k_apply_to_numbers_only(datatype: Datatype, rule: OutputRule) -> None:
    with pytest.raises(ComparisonRuleError, match="applies to numbers only"):
        ComparisonRules(outputs={"x": rule}).resolve("x", datatype)


def test_a_tolerance_for_integers_is_rejected() -> None:
    with pytest.raises(ComparisonRuleError, match="INT8 is compared exactly"):
        ComparisonRules({Datatype.INT8: Tolerance(1, 0)})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"atol": -1.0}, "atol is -1"),
        ({"rtol": math.inf}, "rtol is inf"),
        ({"atol": math.nan}, "atol is nan"),
        ({"quantile": 0.0}, "quantile is 0"),
        ({"quantile": 1.1}, "quantile is 1.1"),
        ({"cosine": 1.5}, "cosine is 1.5"),
        ({"cosine": math.nan}, "cosine is nan"),
        ({"top_k": 0}, "top_k is 0"),
    ],
)
def test_values_out_of_range_are_rejected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ComparisonRuleError, match=message):
        OutputRule(**fields)


@pytest.mark.parametrize(
    ("rule", "datatype", "text"),
    [
        (OutputRule(), Datatype.FP32, "atol 1e-05, rtol 0.0001"),
        (OutputRule(), Datatype.INT8, "exact"),
        (OutputRule(quantile=0.999), Datatype.INT8, "exact, 99.9 % of elements"),
        (OutputRule(top_k=5, cosine=0.99), Datatype.FP32, "cosine >= 0.99, top 5"),
        (OutputRule(top_k=1, rtol=0.5), Datatype.FP32, "atol 1e-05, rtol 0.5, top 1"),
        (OutputRule(ignore=True), Datatype.BOOL, "exact, ignored"),
    ],
)
def test_a_check_is_described_as_text(rule: OutputRule, datatype: Datatype, text: str) -> None:
    assert ComparisonRules(outputs={"x": rule}).resolve("x", datatype).describe() == text
