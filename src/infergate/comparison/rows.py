"""Comparison of rows along the last dimension: cosine similarity and largest elements."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from infergate.comparison.elements import CHUNK_ELEMENTS, Array, ElementReader, chunk_bounds
from infergate.comparison.rules import OutputRule
from infergate.core.tensor import Tensor


@dataclass(slots=True)
class RowStats:
    """The result for all rows. ``min_cosine`` is None if no similarity was computed. ``differing``
    is the number of rows whose largest elements differ."""

    rows: int = 0
    differing: int = 0
    min_cosine: float | None = None

    def passes(self, rule: OutputRule) -> bool:
        if rule.top_k is not None and self.differing:
            return False
        return rule.cosine is None or self.min_cosine is None or self.min_cosine >= rule.cosine

    def distance(self, rule: OutputRule) -> float:
        """Return the share of rows whose largest elements differ or, if larger, one minus the
        smallest similarity."""
        distance = 0.0
        if rule.top_k is not None and self.rows:
            distance = self.differing / self.rows
        return distance if self.min_cosine is None else max(distance, 1 - self.min_cosine)


def compare_rows(rule: OutputRule, expected: Tensor, actual: Tensor) -> RowStats:
    """Compare the rows of two numeric tensors of the same datatype and shape by ``rule.cosine`` and
    ``rule.top_k``. The rows are read in chunks of at least one row."""
    stats = RowStats()
    length = expected.shape[-1] if expected.shape else 1
    count = math.prod(expected.shape)
    if not count:
        return stats
    size = length * max(1, CHUNK_ELEMENTS // length)
    expected_reader, actual_reader = ElementReader(expected), ElementReader(actual)
    for start, stop in chunk_bounds(count, size):
        first = expected_reader.read(start, stop).reshape(-1, length)
        second = actual_reader.read(start, stop).reshape(-1, length)
        stats.rows += len(first)
        if rule.top_k is not None:
            stats.differing += len(first) - _count_agreeing(first, second, min(rule.top_k, length))
        if rule.cosine is not None:
            cosine = float(_cosines(first, second).min())
            stats.min_cosine = min(cosine, 1.0 if stats.min_cosine is None else stats.min_cosine)
    return stats


def _count_agreeing(expected: Array, actual: Array, k: int) -> int:
    """Return the number of rows for which some choice of the ``k`` largest elements is the same in
    both arrays. NaN is less than any number, and must be at the same indexes."""
    valid: npt.NDArray[np.bool_] = np.ones(len(expected), np.bool_)
    if expected.dtype.kind == "f":
        nan, other_nan = np.isnan(expected), np.isnan(actual)
        valid = (nan == other_nan).all(axis=1)
        expected, actual = np.where(nan, -np.inf, expected), np.where(other_nan, -np.inf, actual)
    threshold, other_threshold = _kth_largest(expected, k), _kth_largest(actual, k)
    # Elements above the k-th largest value belong to every choice; elements equal to it may belong.
    required = (expected > threshold) | (actual > other_threshold)
    possible = (expected >= threshold) & (actual >= other_threshold)
    agrees = valid & ~(required & ~possible).any(axis=1)
    agrees &= required.sum(axis=1) <= k
    agrees &= possible.sum(axis=1) >= k
    return int(agrees.sum())


def _kth_largest(rows: Array, k: int) -> Array:
    position = rows.shape[1] - k
    return np.partition(rows, position, axis=1)[:, position : position + 1]


def _cosines(expected: Array, actual: Array) -> npt.NDArray[np.float64]:
    """Return the cosine similarity of each row. It is 1 for two equal rows, 0 if only one of the
    rows is all zeros, and -1 if a NaN or infinity differs from the element at the same index of the
    other row. NaNs and infinities that are equal in both rows are ignored."""
    with np.errstate(all="ignore"):
        first, second = expected.astype(np.float64), actual.astype(np.float64)
        finite = np.isfinite(first) & np.isfinite(second)
        equal = (first == second) | (np.isnan(first) & np.isnan(second))
        comparable = (finite | equal).all(axis=1)
        first[~finite] = second[~finite] = 0.0
        is_zero, other_is_zero = ~first.any(axis=1), ~second.any(axis=1)
        first, second = _scale_rows(first), _scale_rows(second)
        dot = np.einsum("ij,ij->i", first, second)
        norms = np.sqrt(np.einsum("ij,ij->i", first, first))
        norms *= np.sqrt(np.einsum("ij,ij->i", second, second))
        cosines: npt.NDArray[np.float64] = np.clip(dot / norms, -1.0, 1.0)
    cosines[is_zero | other_is_zero] = 0.0
    # The finite elements of both rows are zeros, or the rows are equal. The cosine of equal rows
    # may be rounded to less than 1.
    cosines[(is_zero & other_is_zero) | equal.all(axis=1)] = 1.0
    cosines[~comparable] = -1.0
    return cosines


def _scale_rows(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Divide each row by its largest magnitude, so that no square overflows or underflows."""
    with np.errstate(invalid="ignore"):  # 0 / 0
        scaled: npt.NDArray[np.float64] = rows / np.abs(rows).max(axis=1, keepdims=True)
    scaled[np.isnan(scaled)] = 0.0
    return scaled
