"""Mergeable statistics of the errors of elements."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Final

import numpy as np
import numpy.typing as npt
from pydantic import Field

from infergate.comparison.json_types import Count, Counts, Size

Floats = npt.NDArray[np.float64]

ZERO_BIN: Final = 0
_MIN_EXPONENT: Final = -63
_MAX_EXPONENT: Final = 64
INFINITE_BIN: Final = _MAX_EXPONENT - _MIN_EXPONENT + 2
BIN_COUNT: Final = INFINITE_BIN + 1
"""Errors are counted in fixed bins, so that histograms can be merged. There is a bin for 0, and a
bin for infinite errors (NaN or infinity against another value). For each exponent e from
_MIN_EXPONENT to _MAX_EXPONENT, there is a bin for 2**(e-1) <= error < 2**e. The first of these bins
also holds smaller errors, and the last also holds larger finite errors."""
Bins = Annotated[Counter[Annotated[int, Field(ge=0, lt=BIN_COUNT)]], Counts]
"""The number of errors in each bin."""


def bin_of(error: float) -> int:
    """Return the bin of ``error``, which is not negative and not NaN."""
    if error == 0:
        return ZERO_BIN
    if error == math.inf:
        return INFINITE_BIN
    exponent = math.frexp(error)[1]
    return min(max(exponent, _MIN_EXPONENT), _MAX_EXPONENT) - _MIN_EXPONENT + 1


def bin_limit(index: int) -> float:
    """Return the nominal upper bound of bin ``index``. The last finite bin may hold larger
    errors."""
    if index == ZERO_BIN:
        return 0.0
    return math.inf if index == INFINITE_BIN else 2.0 ** (index - 1 + _MIN_EXPONENT)


def count_bins(errors: Floats) -> Counter[int]:
    """Return the number of ``errors`` in each bin that is not empty."""
    # The biased exponent is in the upper bits, because errors are not negative.
    counts = np.bincount(errors.view(np.int64) >> 52)
    bins: Counter[int] = Counter()
    for exponent in np.flatnonzero(counts).tolist():
        # Zeros have the exponent of denormal numbers, and infinity has the largest exponent.
        limit = math.inf if exponent == _INFINITE_EXPONENT else 2.0 ** max(exponent - 1023, -1022)
        bins[bin_of(limit)] += int(counts[exponent])
    zeros = errors.size - int(np.count_nonzero(errors))
    bins.subtract({_DENORMAL_BIN: zeros})
    bins[ZERO_BIN] += zeros
    return +bins


_DENORMAL_BIN: Final = bin_of(2.0**-1022)
_INFINITE_EXPONENT: Final = 2047


@dataclass(slots=True)
class ErrorStats:
    """Statistics of elements. ``failing`` elements exceed the tolerance, or are unequal if no
    tolerance applies.

    The other fields describe the errors of numbers. ``bins`` counts absolute errors. The maximum
    and the sums cover only finite errors. Relative errors are ``|actual - expected| / |expected|``;
    an element has no relative error if the expected value is 0 and the actual value is not."""

    elements: Count = 0
    failing: Count = 0
    max_absolute: Size = 0.0
    sum_absolute: Size = 0.0
    max_relative: Size = 0.0
    sum_relative: Size = 0.0
    without_relative: Count = 0
    """The number of elements without a finite relative error."""
    bins: Bins = field(default_factory=Counter)

    def add_errors(self, absolute: Floats, expected: Floats) -> None:
        """Count the absolute errors of elements with the values ``expected``."""
        bins = count_bins(absolute)
        self.bins.update(bins)
        relative = absolute / np.abs(expected)
        if ZERO_BIN in bins:
            relative[absolute == 0] = 0.0
        absolute, relative = _finite(absolute), _finite(relative)
        self.max_absolute = max(self.max_absolute, float(absolute.max(initial=0.0)))
        self.sum_absolute += float(absolute.sum())
        self.max_relative = max(self.max_relative, float(relative.max(initial=0.0)))
        self.sum_relative += float(relative.sum())
        self.without_relative += bins.total() - relative.size

    def merge(self, other: ErrorStats) -> None:
        self.elements += other.elements
        self.failing += other.failing
        self.max_absolute = max(self.max_absolute, other.max_absolute)
        self.sum_absolute += other.sum_absolute
        self.max_relative = max(self.max_relative, other.max_relative)
        self.sum_relative += other.sum_relative
        self.without_relative += other.without_relative
        self.bins.update(other.bins)

    @property
    def mean_absolute(self) -> float:
        return _ratio(self.sum_absolute, self.bins.total() - self.bins[INFINITE_BIN])

    @property
    def mean_relative(self) -> float:
        return _ratio(self.sum_relative, self.bins.total() - self.without_relative)

    def quantile(self, share: float) -> float:
        """Return an estimate of the quantile ``share`` of the absolute errors. If the exact
        quantile is within the range of the bins, the estimate is at least the exact quantile and at
        most twice the exact quantile."""
        target_count, count = share * self.bins.total(), 0
        for index in sorted(self.bins):
            count += self.bins[index]
            if count >= target_count:
                limit = bin_limit(index)
                return limit if limit == math.inf else min(limit, self.max_absolute)
        return 0.0


def _finite(values: Floats) -> Floats:
    return values if math.isfinite(values.max()) else values[np.isfinite(values)]


def _ratio(total: float, count: int) -> float:
    return total / count if count else 0.0
