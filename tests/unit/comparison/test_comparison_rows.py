"""Cosine similarity and largest elements along the last dimension."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comparison_kit import compare_arrays
from infergate.comparison.elements import CHUNK_ELEMENTS
from infergate.comparison.rules import OutputRule
from infergate.core.datatypes import Datatype

Row = list[int]


def choices(row: Row, k: int) -> set[frozenset[int]]:
    """Return every set of indexes of ``k`` largest elements."""
    threshold = sorted(row, reverse=True)[k - 1]
    return {
        frozenset(each)
        for each in itertools.combinations(range(len(row)), k)
        if sum(row[index] for index in each) == sum(sorted(row, reverse=True)[:k])
        and all(row[index] >= threshold for index in each)
    }


@st.composite
def row_pairs(draw: st.DrawFn) -> list[tuple[Row, Row]]:
    length = draw(st.integers(1, 5))
    row = st.lists(st.integers(0, 3), min_size=length, max_size=length)
    return draw(st.lists(st.tuples(row, row), min_size=1, max_size=4))


@pytest.mark.parametrize("datatype", [Datatype.FP32, Datatype.BF16, Datatype.UINT8])
@given(rows=row_pairs(), k=st.integers(1, 6))
def test_a_row_agrees_if_some_choice_of_the_largest_elements_is_the_same(
    rows: list[tuple[Row, Row]], k: int, datatype: Datatype
) -> None:
    expected, actual = [a for a, _ in rows], [b for _, b in rows]
    result = compare_arrays(datatype, expected, actual, OutputRule(top_k=k))
    k = min(k, len(expected[0]))
    differing = sum(not choices(first, k) & choices(second, k) for first, second in rows)
    assert (result.rows, result.differing_rows) == (len(rows), differing)
    assert (result.cause == "") == (not differing)
    assert result.distance == differing / len(rows)


def test_rows_without_a_common_choice_of_largest_elements_differ() -> None:
    rule = OutputRule(top_k=3)
    result = compare_arrays(Datatype.INT8, [5, 5, 1, 1], [1, 1, 5, 5], rule)
    assert result.differing_rows == 1


def test_errors_of_elements_do_not_matter_if_only_the_class_is_compared() -> None:
    expected, actual = [[0.1, 0.9], [0.8, 0.2]], [[0.3, 0.7], [0.51, 0.49]]
    result = compare_arrays(Datatype.FP32, expected, actual, OutputRule(top_k=1))
    assert (result.cause, result.stats.failing) == ("", 4)
    with_atol = OutputRule(top_k=1, atol=0.1, rtol=0.0)
    assert compare_arrays(Datatype.FP32, expected, actual, with_atol).cause == "values"


def test_rows_of_different_classes_differ_with_any_atol() -> None:
    rule = OutputRule(top_k=1, atol=1.0)
    result = compare_arrays(Datatype.FP32, [0.4, 0.6], [0.6, 0.4], rule)
    assert (result.cause, result.required_atol, result.differing_rows) == ("values", math.inf, 1)


@pytest.mark.parametrize("rule", [OutputRule(top_k=1), OutputRule(cosine=0.5)])
def test_nan_in_a_row_agrees_only_with_nan(rule: OutputRule) -> None:
    for actual, cause in (
        ([math.nan, 1.0, 2.0], ""),
        ([0.0, 1.0, 2.0], "values"),
        ([math.nan, math.nan, math.nan], "values"),
    ):
        assert compare_arrays(Datatype.FP32, [math.nan, 1.0, 2.0], actual, rule).cause == cause


@given(
    rows=st.lists(
        st.tuples(*[st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=3)] * 2),
        min_size=1,
        max_size=3,
    ),
    scale=st.sampled_from((1.0, 2.0**-1000, 2.0**1000)),
)
def test_cosine_is_the_smallest_of_all_rows_whatever_their_scale(
    rows: list[tuple[list[float], list[float]]], scale: float
) -> None:
    expected, actual = (np.array(each) for each in zip(*rows, strict=True))
    expected[np.abs(expected) < 1e-3] = 0
    actual[np.abs(actual) < 1e-3] = 0
    exact = []
    for first, second in zip(expected, actual, strict=True):
        norms = np.linalg.norm(first) * np.linalg.norm(second)
        is_zero = not first.any(), not second.any()
        exact.append(float(all(is_zero)) if any(is_zero) else float(first @ second / norms))
    result = compare_arrays(
        Datatype.FP64, expected * scale, actual * scale, OutputRule(cosine=-1.0)
    )
    assert result.cosine == pytest.approx(min(exact), abs=1e-9)
    assert result.distance == pytest.approx(1 - min(exact), abs=1e-9)


@given(
    rows=st.integers(1, 6).flatmap(
        lambda length: st.lists(
            st.lists(st.floats(), min_size=length, max_size=length), min_size=1, max_size=3
        )
    )
)
def test_identical_rows_always_pass(rows: list[list[float]]) -> None:
    result = compare_arrays(Datatype.FP64, rows, rows, OutputRule(cosine=1.0))
    assert (result.cause, result.cosine, result.distance) == ("", 1.0, 0.0)


@pytest.mark.parametrize("datatype", [Datatype.FP16, Datatype.BF16, Datatype.FP32])
def test_the_rounding_of_a_cosine_does_not_make_identical_rows_differ(datatype: Datatype) -> None:
    rows = np.random.default_rng(0).normal(size=(1000, 100))
    assert compare_arrays(datatype, rows, rows, OutputRule(cosine=1.0)).cause == ""


def test_rows_pass_if_their_cosine_reaches_the_minimum() -> None:
    angle = math.acos(0.95)
    actual = [math.cos(angle), math.sin(angle)]
    for minimum, cause in ((0.949, ""), (0.951, "values")):
        rule = OutputRule(cosine=minimum)
        assert compare_arrays(Datatype.FP64, [1.0, 0.0], actual, rule).cause == cause


def test_equal_infinities_do_not_change_the_cosine() -> None:
    rule = OutputRule(cosine=0.999)
    expected = [math.inf, 1.0, 2.0]
    assert compare_arrays(Datatype.FP32, expected, [math.inf, 2.0, 4.0], rule).cause == ""
    assert compare_arrays(Datatype.FP32, expected, [-math.inf, 1.0, 2.0], rule).cosine == -1


@pytest.mark.parametrize(
    "shape", [(5, CHUNK_ELEMENTS // 2 + 1), (2, 3 * CHUNK_ELEMENTS), (7, 1), ()]
)
def test_rows_of_any_length_are_compared(shape: tuple[int, ...]) -> None:
    expected = np.zeros(shape, np.float32)
    expected[(..., -1) if shape else ()] = 1
    result = compare_arrays(
        Datatype.FP32, expected, expected * 2, OutputRule(top_k=1, cosine=0.999)
    )
    assert (result.cause, result.rows, result.cosine) == ("", math.prod(shape[:-1]), 1)
