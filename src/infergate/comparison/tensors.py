"""Comparison of two tensors of the same name.

Tensors are read in place, in chunks, so that a comparison takes only a few additional megabytes.
Two NaNs are equal, and so are two infinities of the same sign, and 0 and -0. If NaN or infinity is
compared with any other value, the error is infinite, and no tolerance accepts it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

import numpy as np
import numpy.typing as npt
from pydantic import Field

from infergate.comparison.elements import Array, ElementReader, as_text, chunk_bounds
from infergate.comparison.error_stats import ZERO_BIN, ErrorStats, Floats
from infergate.comparison.json_types import Count, Size, Text
from infergate.comparison.rows import RowStats, compare_rows
from infergate.comparison.rules import OutputCheck, Tolerance
from infergate.core.datatypes import Datatype
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.records import record
from infergate.core.tensor import Tensor, unpack_bytes

MISSING: Final = "missing"
EXTRA: Final = "extra"
DATATYPE: Final = "datatype"
SHAPE: Final = "shape"
VALUES: Final = "values"
CAUSES: Final = (MISSING, EXTRA, DATATYPE, SHAPE, VALUES)
"""The causes of a difference. The output is missing in the actual response, exists only in the
actual response, or differs in its datatype, shape or values."""
Index = Annotated[tuple[Count, ...], Field(max_length=DEFAULT_LIMITS.rank)]


@record
class ElementDifference:
    """An element with both values as text, or descriptions of two outputs that cannot be compared.
    ``error`` is the absolute error, and ``required_atol`` is the smallest ``atol`` with which the
    element passes; both may be infinite. ``response`` is the position of the response in a
    stream."""

    index: Index
    expected: Text
    actual: Text
    error: Size = math.inf
    required_atol: Size = math.inf
    response: Count = 0


@record
class OutputComparison:
    """The result of comparing an output, or the outputs of the same name in a stream.

    ``cause`` is one of CAUSES, or an empty string if the output is equal within its rule. ``rule``
    is ``OutputCheck.describe()``. ``is_known`` is true for outputs that the rules ignore.
    ``required_atol`` is the smallest ``atol`` with which the output passes, or infinity if no
    ``atol`` suffices. ``distance`` is the size of the difference, which is weighed against the
    noise. If the elements are checked with a tolerance, the distance is the smallest ``atol`` with
    which they pass. Otherwise, it is the largest of the share of failing elements (if checked), the
    share of differing rows, and one minus ``cosine``. ``cosine`` is the smallest similarity of all
    ``rows``, or None if the rule has no ``cosine``. ``differing_rows`` is the number of rows whose
    largest elements differ."""

    name: str
    cause: str = ""
    is_known: bool = False
    datatype: str = ""
    rule: str = ""
    stats: ErrorStats = field(default_factory=ErrorStats)
    required_atol: float = 0.0
    distance: float = 0.0
    cosine: float | None = None
    rows: int = 0
    differing_rows: int = 0
    first: ElementDifference | None = None
    """The first failing element."""
    worst: ElementDifference | None = None
    """The element that requires the largest ``atol`` or, without a tolerance, the element with the
    largest error. For BYTES, it is the first failing element."""


def compare_tensors(check: OutputCheck, expected: Tensor, actual: Tensor) -> OutputComparison:
    """Compare the values of two tensors of the same datatype and shape."""
    rule = check.rule
    elements = _compare_elements(check, expected, actual)
    rows = RowStats()
    if rule.cosine is not None or rule.top_k is not None:
        rows = compare_rows(rule, expected, actual)
    rows_pass = rows.passes(rule)
    distance = rows.distance(rule)
    elements_pass, required = True, 0.0
    if rule.checks_elements:
        elements_pass = elements.stats.failing <= elements.accepted
        required = elements.required_atol
        is_tolerant = check.tolerance is not None
        distance = required if is_tolerant else max(distance, elements.failing_share)
    return OutputComparison(
        expected.name,
        "" if elements_pass and rows_pass else VALUES,
        rule.ignore,
        expected.datatype.value,
        check.describe(),
        elements.stats,
        required if rows_pass else math.inf,
        distance,
        rows.min_cosine,
        rows.rows,
        rows.differing,
        elements.first,
        elements.worst,
    )


def merge_outputs(first: OutputComparison, second: OutputComparison) -> OutputComparison:
    """Return the merged result of two comparisons. ``first`` is the earlier comparison."""
    stats = ErrorStats()
    stats.merge(first.stats)
    stats.merge(second.stats)
    cosines = [each for each in (first.cosine, second.cosine) if each is not None]
    differences = [each for each in (first.worst, second.worst) if each is not None]
    decisive = max(first, second, key=_decisiveness)
    return replace(
        first,
        cause=decisive.cause,
        is_known=decisive.is_known,
        stats=stats,
        required_atol=max(first.required_atol, second.required_atol),
        distance=max(first.distance, second.distance),
        cosine=min(cosines, default=None),
        rows=first.rows + second.rows,
        differing_rows=first.differing_rows + second.differing_rows,
        first=first.first or second.first,
        worst=max(differences, key=severity, default=None),
    )


def _decisiveness(output: OutputComparison) -> tuple[bool, bool]:
    return bool(output.cause) and not output.is_known, bool(output.cause)


def severity(difference: ElementDifference) -> tuple[float, float]:
    """Return a sort key by which the worst element is the largest."""
    return difference.required_atol, difference.error


@dataclass(slots=True)
class _Elements:
    """The state of comparing all elements. ``accepted`` is the number of elements that may fail."""

    shape: tuple[int, ...]
    accepted: int
    stats: ErrorStats
    first: ElementDifference | None = None
    worst: ElementDifference | None = None
    required_atol: float = 0.0

    @property
    def failing_share(self) -> float:
        return self.stats.failing / self.stats.elements if self.stats.elements else 0.0

    def difference(
        self,
        position: int,
        values: tuple[Any, Any],
        error: float = math.inf,
        required_atol: float = math.inf,
    ) -> ElementDifference:
        expected, actual = map(as_text, values)
        index = tuple(map(int, np.unravel_index(position, self.shape)))
        return ElementDifference(index, expected, actual, error, required_atol)

    def add_worst(self, worst: ElementDifference) -> None:
        if self.worst is None or severity(worst) > severity(self.worst):
            self.worst = worst


def _compare_elements(check: OutputCheck, expected: Tensor, actual: Tensor) -> _Elements:
    count = math.prod(expected.shape)
    accepted = _accepted_failures(count, check.rule.quantile)
    elements = _Elements(expected.shape, accepted, ErrorStats(count))
    if expected.datatype is Datatype.BYTES:
        _compare_bytes(elements, expected, actual)
    else:
        _compare_numbers(elements, check.tolerance, expected, actual)
    return elements


def _accepted_failures(count: int, quantile: float | None) -> int:
    """Return how many of ``count`` elements may fail if the share ``quantile`` must pass."""
    if quantile is None or not count:
        return 0
    failures = math.floor(count * (1 - quantile)) + 1
    # Only this division is correctly rounded: 9 / 10 >= 0.9, but 10 * (1 - 0.9) < 1.
    while failures and (count - failures) / count < quantile:
        failures -= 1
    return min(failures, count)


def _compare_bytes(elements: _Elements, expected: Tensor, actual: Tensor) -> None:
    expected_data, actual_data = (np.frombuffer(tensor.data, "u1") for tensor in (expected, actual))
    if expected_data.size == actual_data.size and all(
        np.array_equal(expected_data[start:stop], actual_data[start:stop])
        for start, stop in chunk_bounds(expected_data.size)
    ):
        return
    pairs = zip(unpack_bytes(expected.data), unpack_bytes(actual.data), strict=True)
    for position, (first, second) in enumerate(pairs):
        if first != second:
            elements.stats.failing += 1
            if elements.first is None:
                elements.first = elements.difference(position, (first, second))
    elements.worst = elements.first
    elements.required_atol = math.inf if elements.stats.failing > elements.accepted else 0.0


def _compare_numbers(
    elements: _Elements, tolerance: Tolerance | None, expected: Tensor, actual: Tensor
) -> None:
    expected_reader, actual_reader = ElementReader(expected), ElementReader(actual)
    largest = _LargestValues(elements.accepted + 1)
    for start, stop in chunk_bounds(elements.stats.elements):
        if expected_reader.is_identical(actual_reader, start, stop):
            elements.stats.bins[ZERO_BIN] += stop - start
            continue
        first, second = expected_reader.read(start, stop), actual_reader.read(start, stop)
        with np.errstate(all="ignore"):
            if tolerance is None:
                errors, required = _exact_errors(first, second)
                failing = np.flatnonzero(required)
            else:
                errors, required, failing = _float_errors(first, second, tolerance)
            elements.stats.add_errors(errors, first.astype(np.float64))
        largest.add(required)
        worst = int(np.where(required == required.max(), errors, -1.0).argmax())
        for position in {*map(int, failing[:1]), worst}:
            difference = elements.difference(
                start + position,
                (first[position], second[position]),
                float(errors[position]),
                float(required[position]),
            )
            if failing.size and position == failing[0]:
                elements.first = elements.first or difference
            if position == worst and difference.error > 0:
                elements.add_worst(difference)
        elements.stats.failing += failing.size
    elements.required_atol = largest.threshold()


def _exact_errors(expected: Array, actual: Array) -> tuple[Floats, Floats]:
    """Return the absolute error and the smallest ``atol`` of each element. The smallest ``atol`` is
    infinite for elements that differ."""
    differs = expected != actual
    # The difference of 64-bit integers may exceed INT64, but not UINT64: subtract modulo 2**64.
    larger, smaller = np.maximum(expected, actual), np.minimum(expected, actual)
    errors = larger.astype(np.uint64) - smaller.astype(np.uint64)
    return errors.astype(np.float64), np.where(differs, math.inf, 0.0)


def _float_errors(
    first: Array, second: Array, tolerance: Tolerance
) -> tuple[Floats, Floats, npt.NDArray[np.intp]]:
    """Return the absolute error and the smallest ``atol`` of each element, and the positions of
    the elements that fail."""
    expected, actual = first.astype(np.float64), second.astype(np.float64)
    errors: Floats = np.abs(actual - expected)
    accepted = tolerance.rtol * np.abs(expected)
    if not math.isfinite(errors.max()):
        errors[np.isnan(errors)] = math.inf
        errors[(expected == actual) | (np.isnan(expected) & np.isnan(actual))] = 0.0
        # An infinite error fails even if the expected value is infinite.
        accepted[~np.isfinite(errors) | ~np.isfinite(accepted)] = 0.0
    failing = np.flatnonzero(errors > tolerance.atol + accepted)
    required = errors - accepted
    # Round up: the rounded sum of required and accepted may be less than the error.
    too_small = required + accepted < errors
    required[too_small] += np.spacing(errors[too_small])
    return errors, np.maximum(required, 0.0), failing


class _LargestValues:
    def __init__(self, count: int) -> None:
        self._count: Final = count
        self._values: Floats = np.empty(0)

    def add(self, values: Floats) -> None:
        if self._count == 1:  # the usual case
            values = values[[values.argmax()]]
        values = np.concatenate((self._values, values[values > 0]))
        if values.size > self._count:
            values = np.partition(values, -self._count)[-self._count :]
        self._values = values

    def threshold(self) -> float:
        """Return the smallest of the ``count`` largest values, or 0 if fewer are positive."""
        return float(self._values.min()) if self._values.size == self._count else 0.0
