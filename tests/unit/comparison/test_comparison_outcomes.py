"""The comparison of complete outcomes: errors, outputs, streams, limits and redaction."""

from __future__ import annotations

import json
import math
import pickle
from unittest.mock import ANY

import numpy as np
import pytest

from comparison_kit import NO_RULES, compare_values, failure, fp32, outcome, stream
from infergate.comparison.batch import compare_batch, pack_pair
from infergate.comparison.outcomes import MAX_OUTPUTS, OTHER, Comparison, compare
from infergate.comparison.rules import ComparisonRuleError, ComparisonRules, OutputRule
from infergate.comparison.tensors import ElementDifference
from infergate.core.datatypes import Datatype
from infergate.core.errors import Kind
from infergate.core.exchange import Exchange, Outcome
from infergate.core.messages import InferRequest
from infergate.core.tensor import OpaqueParameters, Tensor, pack_bytes, tensor_from_array

INT64 = tensor_from_array("x", Datatype.INT64, np.array([1]))


def causes(comparison: Comparison) -> dict[str, str]:
    return {each.name: each.cause for each in comparison.outputs}


def test_equal_values_give_an_equal_comparison_with_both_durations() -> None:
    comparison = compare_values(1.0, 1.0)
    assert comparison.is_equal
    assert comparison.required_atol == 0
    assert (comparison.expected_kind, comparison.actual_kind) == ("ok", "ok")
    assert comparison.expected_duration == comparison.actual_duration == 0.01


@pytest.mark.parametrize(
    ("expected", "actual", "cause"),
    [
        (failure(Kind.TIMEOUT), failure(Kind.TIMEOUT), ""),
        (failure(Kind.TIMEOUT), failure(Kind.OVERLOADED), "outcome"),
        (outcome(fp32("x", 1)), failure(Kind.TIMEOUT), "outcome"),
        (failure(Kind.NOT_FOUND), outcome(fp32("x", 1)), "outcome"),
        (stream(fp32("x", 1), fp32("x", 2)), stream(fp32("x", 1)), "responses"),
        (stream(fp32("x", 1)), stream(fp32("x", 1), kind=Kind.TIMEOUT), "outcome"),
        (stream(kind=Kind.TIMEOUT), stream(fp32("x", 1), kind=Kind.TIMEOUT), "responses"),
    ],
)
def test_kinds_and_lengths_are_compared(expected: Outcome, actual: Outcome, cause: str) -> None:
    comparison = compare(NO_RULES, expected, actual)
    assert (comparison.cause, comparison.is_equal) == (cause, not cause)
    assert comparison.required_atol == (math.inf if cause else 0)


@pytest.mark.parametrize(
    ("expected", "actual", "cause", "values"),
    [
        ((fp32("x", 1),), (), "missing", ("FP32 [1]", "no output")),
        ((), (fp32("x", 1),), "extra", ("no output", "FP32 [1]")),
        ((fp32("x", 1),), (INT64,), "datatype", ("FP32 [1]", "INT64 [1]")),
        ((fp32("x", 1),), (fp32("x", 1, 1),), "shape", ("FP32 [1]", "FP32 [2]")),
        ((fp32("x", 1),), (fp32("x", 2),), "values", ("1.0", "2.0")),
    ],
)
def test_outputs_are_compared_by_name_datatype_and_shape_first(
    expected: tuple[Tensor, ...], actual: tuple[Tensor, ...], cause: str, values: tuple[str, str]
) -> None:
    unchanged = fp32("y", 5)
    comparison = compare(NO_RULES, outcome(*expected, unchanged), outcome(unchanged, *actual))
    assert causes(comparison) == {"x": cause, "y": ""}
    worst = comparison.outputs[0].worst
    assert worst is not None
    assert (worst.expected, worst.actual) == values
    assert not comparison.is_equal


@pytest.mark.parametrize("actual", [fp32("x", 2), fp32("y", 1), INT64, fp32("x", 1, 1)])
def test_an_ignored_output_is_a_known_difference(actual: Tensor) -> None:
    rules = ComparisonRules(outputs={"x": OutputRule(ignore=True), "y": OutputRule(ignore=True)})
    comparison = compare(rules, outcome(fp32("x", 1)), outcome(actual))
    assert comparison.is_equal
    assert comparison.has_known_difference
    assert comparison.required_atol == 0


def test_a_rule_that_does_not_apply_is_an_error_even_if_the_output_is_missing() -> None:
    rules = ComparisonRules(outputs={"x": OutputRule(atol=1)})
    with pytest.raises(ComparisonRuleError, match="'x' is INT64"):
        compare(rules, outcome(INT64), outcome())


def test_responses_of_streams_are_compared_in_pairs() -> None:
    expected = stream(fp32("x", 1), fp32("x", 2, 3), fp32("x", 4))
    actual = stream(fp32("x", 1), fp32("x", 2, 3.5), fp32("x", 4.25))
    (result,) = compare(NO_RULES, expected, actual).outputs
    assert (result.cause, result.stats.elements, result.stats.failing) == ("values", 4, 2)
    assert result.first is not None
    assert result.worst is not None
    assert (result.first.response, result.first.index) == (1, (1,))
    assert (result.worst.response, result.worst.actual) == (1, "3.5")
    assert result.required_atol == pytest.approx(0.5, rel=1e-3)


def test_the_first_cause_of_a_stream_is_kept() -> None:
    expected = stream(fp32("x", 1), fp32("x", 1), fp32("x", 1))
    actual = stream(fp32("x", 1), fp32("x", 1, 2), fp32("x", 2))
    assert causes(compare(NO_RULES, expected, actual)) == {"x": "shape"}


def test_only_outputs_that_differ_determine_the_required_atol() -> None:
    rules = ComparisonRules(outputs={"tolerant": OutputRule(atol=10.0, rtol=0.0)})
    expected = outcome(fp32("x", 0), fp32("tolerant", 0))
    assert compare(rules, expected, outcome(fp32("x", 1), fp32("tolerant", 5))).required_atol == 1
    assert compare(rules, expected, outcome(fp32("x", 0), fp32("tolerant", 5))).required_atol == 0


def test_outputs_over_the_limit_are_combined_in_a_small_result() -> None:
    outputs = [fp32(f"{number:04}", 1) for number in range(1000)]
    changed = [*outputs[:-1], fp32("0999", 2)]
    comparison = compare(NO_RULES, outcome(*outputs), outcome(*changed))
    assert len(comparison.outputs) == MAX_OUTPUTS + 1
    others = comparison.outputs[-1]
    assert (others.name, others.cause) == (OTHER, "values")
    assert (others.stats.elements, others.stats.failing) == (1000 - MAX_OUTPUTS, 1)
    assert len(pickle.dumps(comparison)) < 64 * 1024


def test_a_comparison_can_be_pickled() -> None:
    comparison = compare_values(1, 2)
    assert pickle.loads(pickle.dumps(comparison)) == comparison


def test_values_of_redacted_outputs_are_not_in_the_summary() -> None:
    served = Exchange(InferRequest("m"), outcome(fp32("secret", 1234.5), fp32("open", 7777)))
    mirrored = outcome(fp32("secret", 4321.5), fp32("open", 8888))
    noise = outcome(fp32("secret", 5678.5), fp32("open", 7777))
    pair = pack_pair(served, mirrored, noise)
    batch = compare_batch("r", NO_RULES, ["sec*"], [pair])
    text = json.dumps(batch.summary.as_json()) + repr(batch.different)
    assert not any(value in text for value in ("1234.5", "4321.5", "5678.5"))
    assert "7777" in text
    assert "8888" in text
    (_, secret) = batch.different[0].outputs
    assert secret.worst == ElementDifference((0,), "(hidden)", "(hidden)", 3087.0, ANY)


def test_response_bodies_are_not_in_the_summary_if_anything_is_redacted() -> None:
    body = OpaqueParameters({}, ("tfs-unchanged",), b"classify\0{}")
    served, mirrored = (
        outcome(Tensor("response", Datatype.BYTES, (1,), pack_bytes([text])))
        for text in (b"PATIENT 1", b"PATIENT 2")
    )
    pair = pack_pair(Exchange(InferRequest("m", parameters=body), served), mirrored, None)
    assert "PATIENT" in repr(compare_batch("r", NO_RULES, [], [pair]))
    batch = compare_batch("r", NO_RULES, ["image"], [pair])
    assert "PATIENT" not in json.dumps(batch.summary.as_json()) + repr(batch.different)
