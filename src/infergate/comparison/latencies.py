"""Histograms of durations, with quantiles that are accurate to 10 %."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Final

from pydantic import Field

from infergate.comparison.json_types import Counts

_BINS_PER_OCTAVE: Final = 4
_MIN_EXPONENT: Final = -20  # about a microsecond
_MAX_BIN: Final = 40 * _BINS_PER_OCTAVE  # about 12 days


@dataclass(slots=True)
class Latencies:
    """Counts durations in logarithmic bins, which are the same in every process. The buckets of
    ``core.duration_histogram`` are too wide to compare two servers."""

    bins: Annotated[Counter[Annotated[int, Field(ge=0, le=_MAX_BIN)]], Counts] = field(
        default_factory=Counter
    )

    @property
    def count(self) -> int:
        return self.bins.total()

    def add(self, seconds: float) -> None:
        octaves = math.log2(max(seconds, 2.0**_MIN_EXPONENT)) - _MIN_EXPONENT
        self.bins[min(int(octaves * _BINS_PER_OCTAVE), _MAX_BIN)] += 1

    def merge(self, other: Latencies) -> None:
        self.bins.update(other.bins)

    def quantile(self, share: float) -> float:
        """Return the quantile ``share`` in seconds (the geometric mean of the bounds of its bin),
        or 0 if there are no durations."""
        count = 0
        for index in sorted(self.bins):
            count += self.bins[index]
            if count >= share * self.count:
                return float(2.0 ** ((index + 0.5) / _BINS_PER_OCTAVE + _MIN_EXPONENT))
        return 0.0
