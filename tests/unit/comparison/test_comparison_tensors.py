"""The comparison of elements, checked against numpy and the documented rules of Polygraphy."""

from __future__ import annotations

import math
import pickle
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from comparison_kit import compare_arrays
from infergate.comparison.elements import CHUNK_ELEMENTS
from infergate.comparison.error_stats import INFINITE_BIN, ZERO_BIN
from infergate.comparison.rules import DEFAULT_TOLERANCES, OutputRule
from infergate.comparison.tensors import OutputComparison
from infergate.core.datatypes import INTEGERS, NUMPY_DTYPES, Datatype
from infergate.core.tensor import bf16_from_float32, float32_from_bf16

WIDTHS = {Datatype.FP16: 16, Datatype.FP32: 32, Datatype.FP64: 64}
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 5e-324, 1e-45, 6e-8, 1.7e308, -3.4e38)
Pair = tuple[float, float]
Floats = npt.NDArray[np.float64]


@st.composite
def pairs(draw: st.DrawFn, datatype: Datatype) -> list[Pair]:
    """Draw pairs of elements of ``datatype`` that are equal, close, or unrelated."""
    values = st.one_of(
        st.floats(width=32 if datatype is Datatype.BF16 else WIDTHS[datatype]),
        st.floats(-2, 2, width=16),
        st.sampled_from(SPECIAL),
    )
    result = []
    for _ in range(draw(st.integers(0, 12))):
        expected = draw(values)
        close = expected * (1 + draw(st.sampled_from((1e-16, 1e-9, 1e-6, 1e-4, 1e-2, -5e-2))))
        actual = draw(st.one_of(st.just(expected), st.just(close), st.just(-expected), values))
        result.append((expected, actual))
    return result


def round_to(datatype: Datatype, values: Sequence[float]) -> Floats:
    """Return ``values`` as FP64 after rounding to ``datatype``."""
    with np.errstate(over="ignore", invalid="ignore"):
        if datatype is Datatype.BF16:
            bits = bf16_from_float32(np.array(values, np.float32))
            return float32_from_bf16(np.ascontiguousarray(bits)).astype(np.float64)
        return np.array(values, NUMPY_DTYPES[datatype]).astype(np.float64)


def arrays(datatype: Datatype, drawn: list[Pair]) -> tuple[Floats, Floats]:
    expected, actual = zip(*drawn, strict=True) if drawn else ((), ())
    return round_to(datatype, expected), round_to(datatype, actual)


def is_close(expected: Floats, actual: Floats, atol: float, rtol: float) -> Any:
    with np.errstate(all="ignore"):
        return np.isclose(actual, expected, rtol=rtol, atol=atol, equal_nan=True)


TOLERANCES = st.sampled_from((0.0, 1e-9, 1e-5, 1e-3, 0.1, 0.5))


@pytest.mark.parametrize("datatype", sorted(DEFAULT_TOLERANCES, key=lambda each: each.value))
@given(data=st.data(), atol=TOLERANCES, rtol=TOLERANCES)
def test_elements_pass_as_in_numpy_isclose(
    data: st.DataObject, atol: float, rtol: float, datatype: Datatype
) -> None:
    expected, actual = arrays(datatype, data.draw(pairs(datatype)))
    result = compare_arrays(datatype, expected, actual, OutputRule(atol=atol, rtol=rtol))
    passing = is_close(expected, actual, atol, rtol)
    assert result.stats.elements == expected.size
    assert result.stats.failing == np.count_nonzero(~passing)
    assert (result.cause == "") == passing.all()
    failing = np.flatnonzero(~passing)
    assert (result.first is None) == (not failing.size)
    if result.first is not None:
        assert result.first.index == (failing[0],)


@pytest.mark.parametrize("datatype", sorted(DEFAULT_TOLERANCES, key=lambda each: each.value))
@given(data=st.data(), rtol=TOLERANCES)
def test_the_required_atol_passes_and_no_much_smaller_one_does(
    data: st.DataObject, rtol: float, datatype: Datatype
) -> None:
    expected, actual = arrays(datatype, data.draw(pairs(datatype)))
    required = compare_arrays(datatype, expected, actual, OutputRule(rtol=rtol)).required_atol
    if required == math.inf:
        with np.errstate(all="ignore"):
            overflows = np.isinf(expected - actual) & np.isfinite(expected) & np.isfinite(actual)
        assert overflows.any() or not is_close(expected, actual, 1.7e308, rtol).all() or rtol == 0
        return
    rule = OutputRule(atol=required, rtol=rtol)
    assert compare_arrays(datatype, expected, actual, rule).cause == ""
    if required:
        # The largest error has a rounding error of its own.
        with np.errstate(all="ignore"):
            errors = np.abs(expected - actual)
            rounding = 4 * np.spacing(np.max(errors[np.isfinite(errors)]))
        rule = OutputRule(atol=max(0.0, required - float(rounding)), rtol=rtol)
        if rule.atol != required and rule.atol:
            assert compare_arrays(datatype, expected, actual, rule).cause == "values"


def test_the_required_atol_is_corrected_for_rounding() -> None:
    expected, actual, rtol = 0.12428327649956394, 1.0163501236769787, 0.5
    error, accepted = actual - expected, rtol * expected
    assert (error - accepted) + accepted < error
    rule = OutputRule(rtol=rtol)
    required = compare_arrays(Datatype.FP64, [expected], [actual], rule).required_atol
    assert required + accepted >= error
    passing = OutputRule(rtol=rtol, atol=required)
    assert compare_arrays(Datatype.FP64, [expected], [actual], passing).cause == ""


def polygraphy_passes(expected: Floats, actual: Floats, atol: float, rtol: float) -> Any:
    """Return which elements pass Polygraphy's rule ``elemwise``. An element fails if its error
    exceeds both tolerances. NaN always fails; the machine epsilon replaces expected zeros."""
    with np.errstate(all="ignore"):
        absolute = np.abs(actual - expected)
        relative = absolute / np.abs(np.where(expected == 0, np.finfo(np.float64).eps, expected))
        return ~(~(absolute <= atol) & ~(relative <= rtol))


@given(drawn=pairs(Datatype.FP32), atol=TOLERANCES, rtol=TOLERANCES)
@example(drawn=[(0.0, 2e-17)], atol=0.0, rtol=0.1)
def test_every_element_that_passes_in_polygraphy_passes(
    drawn: list[Pair], atol: float, rtol: float
) -> None:
    """Polygraphy accepts errors up to the larger tolerance, and numpy up to the sum of both. Only
    Polygraphy has a relative tolerance for an expected 0, so the test omits zeros."""
    expected, actual = arrays(Datatype.FP32, drawn)
    passing = polygraphy_passes(expected, actual, atol, rtol) & (expected != 0)
    rule = OutputRule(atol=atol, rtol=rtol * (1 + 1e-15))
    result = compare_arrays(Datatype.FP32, expected[passing], actual[passing], rule)
    assert result.cause == ""


@given(drawn=pairs(Datatype.FP32))
def test_without_rtol_the_required_atol_is_the_maximum_absolute_error(drawn: list[Pair]) -> None:
    expected, actual = arrays(Datatype.FP32, drawn)
    finite = np.isfinite(expected) & np.isfinite(actual)
    result = compare_arrays(
        Datatype.FP32, expected[finite], actual[finite], OutputRule(atol=0.0, rtol=0.0)
    )
    absolute = np.abs(actual[finite] - expected[finite])
    largest = float(absolute.max()) if absolute.size else 0.0
    assert result.required_atol == result.stats.max_absolute == largest
    assert result.distance == largest
    assert result.stats.mean_absolute == pytest.approx(absolute.mean() if absolute.size else 0.0)


@given(drawn=pairs(Datatype.FP64))
def test_statistics_match_numpy(drawn: list[Pair]) -> None:
    expected, actual = arrays(Datatype.FP64, drawn)
    stats = compare_arrays(Datatype.FP64, expected, actual).stats
    same = (expected == actual) | (np.isnan(expected) & np.isnan(actual))
    with np.errstate(all="ignore"):
        errors = np.where(same, 0.0, np.abs(actual - expected))
        errors[np.isnan(errors)] = math.inf
        relative = np.where(same, 0.0, errors / np.abs(expected))
    finite, relative = errors[np.isfinite(errors)], relative[np.isfinite(relative)]
    assert stats.bins.total() == errors.size
    assert stats.bins[ZERO_BIN] == np.count_nonzero(same)
    assert stats.bins[INFINITE_BIN] == errors.size - finite.size
    assert stats.max_absolute == max(finite, default=0.0)
    assert stats.max_relative == max(relative, default=0.0)
    assert stats.without_relative == errors.size - relative.size
    for share in (0.1, 0.5, 0.9, 1.0):
        if errors.size:
            exact = float(np.quantile(errors, share, method="inverted_cdf"))
            bound = stats.quantile(share)
            assert exact <= bound <= max(2 * exact, 2.0**-63) or exact >= 2.0**64


@pytest.mark.parametrize("datatype", sorted(INTEGERS, key=lambda each: each.value))
@given(data=st.data())
def test_integers_are_compared_exactly(data: st.DataObject, datatype: Datatype) -> None:
    info = np.iinfo(NUMPY_DTYPES[datatype])  # type: ignore[arg-type]
    elements = st.one_of(
        st.integers(int(info.min), int(info.max)),
        st.sampled_from((int(info.min), int(info.max), int(info.max) - 1, 0, 1)),
    )
    drawn = data.draw(st.lists(st.tuples(elements, elements), max_size=8))
    errors = [abs(expected - actual) for expected, actual in drawn]
    result = compare_arrays(datatype, [a for a, _ in drawn], [b for _, b in drawn])
    assert result.stats.failing == sum(map(bool, errors))
    assert (result.cause == "") == (not any(errors))
    assert result.stats.max_absolute == float(max(errors, default=0))
    if result.worst is not None:
        expected, actual = drawn[result.worst.index[0]]
        assert abs(expected - actual) >= max(errors) * (1 - 2**-52)
        assert (result.worst.expected, result.worst.actual) == (str(expected), str(actual))
    assert result.required_atol == (math.inf if any(errors) else 0.0)
    assert result.distance == (np.count_nonzero(errors) / len(drawn) if drawn else 0.0)


@given(drawn=st.lists(st.tuples(st.binary(max_size=4), st.binary(max_size=4)), max_size=6))
def test_bytes_are_compared_element_by_element(drawn: list[tuple[bytes, bytes]]) -> None:
    result = compare_arrays(Datatype.BYTES, [a for a, _ in drawn], [b for _, b in drawn])
    differing = [index for index, (a, b) in enumerate(drawn) if a != b]
    assert result.stats.failing == len(differing)
    assert (result.first.index if result.first else None) == (
        (differing[0],) if differing else None
    )


def test_differing_bool_elements_are_counted() -> None:
    result = compare_arrays(Datatype.BOOL, [True, False, True], [True, True, True])
    assert (result.stats.failing, result.first and result.first.expected) == (1, "False")


def test_long_bytes_are_shortened_in_the_result() -> None:
    result = compare_arrays(Datatype.BYTES, [b"\xff" * 10_000], [b"<b>"])
    assert result.first is not None
    assert len(result.first.expected) <= 64
    assert result.first.actual == "b'<b>'"


@pytest.mark.parametrize(
    ("expected", "actual", "passes"),
    [
        (math.nan, math.nan, True),
        (math.nan, 1.0, False),
        (1.0, math.nan, False),
        (math.inf, math.inf, True),
        (-math.inf, -math.inf, True),
        (math.inf, -math.inf, False),
        (math.inf, 6e4, False),
        (0.0, math.inf, False),
        (math.nan, math.inf, False),
        (0.0, -0.0, True),
    ],
)
@pytest.mark.parametrize("datatype", sorted(DEFAULT_TOLERANCES, key=lambda each: each.value))
def test_nan_and_infinity_equal_only_themselves_whatever_the_tolerance(
    datatype: Datatype, expected: float, actual: float, passes: bool
) -> None:
    rule = OutputRule(atol=1e300, rtol=0.9)
    result = compare_arrays(datatype, [expected, 0.5], [actual, 0.5], rule)
    assert (result.cause == "") == passes
    assert result.required_atol == (0.0 if passes else math.inf)


def test_nan_payloads_do_not_matter() -> None:
    nan = np.array([0x7FC00000, 0x7F800001, 0xFFC12345], np.uint32).view(np.float32)
    assert compare_arrays(Datatype.FP32, nan, nan[::-1]).cause == ""


def test_denormals_are_not_zero() -> None:
    rule = OutputRule(atol=0.0, rtol=0.0)
    result = compare_arrays(Datatype.FP64, [5e-324, 5e-324], [0.0, 5e-324], rule)
    assert (result.stats.failing, result.required_atol) == (1, 5e-324)


@pytest.mark.parametrize("datatype", Datatype)
@pytest.mark.parametrize("shape", [(0,), (2, 0, 3)])
def test_empty_tensors_are_equal(datatype: Datatype, shape: tuple[int, ...]) -> None:
    rules = [OutputRule(), OutputRule(quantile=0.5)]
    if datatype not in (Datatype.BOOL, Datatype.BYTES):
        rules.append(OutputRule(cosine=1.0, top_k=3))
    for rule in rules:
        result = compare_arrays(datatype, np.zeros(shape), np.zeros(shape), rule)
        assert (result.cause, result.required_atol, result.stats.elements) == ("", 0.0, 0)


@pytest.mark.parametrize("quantile", [0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99, 1.0])
def test_a_quantile_is_the_minimum_share_of_passing_elements(quantile: float) -> None:
    def compare_with(atol: float) -> OutputComparison:
        rule = OutputRule(atol=atol, rtol=0.0, quantile=quantile)
        return compare_arrays(Datatype.FP64, np.zeros(count), actual, rule)

    for count in range(1, 21):
        for failing in range(count + 1):
            actual = np.array([10.0 + each for each in range(failing)] + [0.0] * (count - failing))
            result = compare_with(1.0)
            assert (result.cause == "") == ((count - failing) / count >= quantile)
            assert compare_with(result.required_atol).cause == ""
            if result.required_atol:
                assert compare_with(result.required_atol * 0.99).cause == "values"


def test_a_quantile_applies_to_elements_that_are_compared_exactly() -> None:
    rule = OutputRule(quantile=0.5)
    assert compare_arrays(Datatype.INT8, [1, 2], [1, 3], rule).cause == ""
    assert compare_arrays(Datatype.BYTES, [b"a", b"b"], [b"c", b"d"], rule).cause == "values"


@pytest.mark.parametrize("datatype", [Datatype.FP32, Datatype.BF16, Datatype.INT32, Datatype.BOOL])
def test_positions_are_right_in_every_chunk(datatype: Datatype) -> None:
    shape = (3, CHUNK_ELEMENTS + 5)
    expected = np.zeros(shape)
    actual = expected.copy()
    positions = [(0, 7), (1, CHUNK_ELEMENTS - 1), (2, 1), (2, CHUNK_ELEMENTS + 4)]
    for number, position in enumerate(positions, 1):
        actual[position] = number
    result = compare_arrays(datatype, expected, actual)
    assert result.stats.failing == len(positions)
    assert result.first is not None
    assert result.worst is not None
    assert result.first.index == positions[0]
    assert result.worst.index == positions[0 if datatype is Datatype.BOOL else -1]
    assert result.stats.bins.total() == expected.size


def test_a_comparison_takes_little_memory_and_its_result_is_small() -> None:
    rng = np.random.default_rng(1)
    expected = rng.normal(size=(64, 65_536)).astype(np.float32)
    actual = expected * np.float32(1.001)
    compare_arrays(Datatype.FP32, expected[:1], actual[:1])  # the first call fills caches
    tracemalloc.start()
    try:
        result = compare_arrays(Datatype.FP32, expected, actual)
        copied = 2 * expected.nbytes  # tensor_from_array copies both arrays
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert result.stats.failing
    assert peak - copied < 8 * 2**20
    assert len(pickle.dumps(result)) < 2048
