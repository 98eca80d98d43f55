"""Estimates a percentile of recent latencies in bounded memory.

The upper limits of the histogram's buckets range from 0.1 ms to 13 minutes in steps of 10 %, so an
estimate within this range is at most 10 % too high. The histogram has two generations. The older
generation is dropped when the younger generation has ``GENERATION_SIZE`` samples.

Reference: hedging after a percentile was proposed by Dean and Barroso, "The tail at scale", 2013;
Finagle's BackupRequestFilter uses windowed histograms in the same way."""

from __future__ import annotations

import math
from typing import Final

GENERATION_SIZE: Final = 500
MIN_SAMPLES: Final = 50
"""Minimum number of samples for an estimate."""
UPDATE_INTERVAL: Final = 10
"""Number of samples between two computations of the percentile. A computation costs more than
adding a sample."""
_FIRST_LIMIT_SECONDS: Final = 1e-4
_GROWTH: Final = math.log(1.1)
_BUCKETS: Final = 168


class LatencyQuantile:
    """Estimates the ``quantile`` (0 to 1) of one route's latencies."""

    __slots__ = ("_count", "_current", "_older", "_quantile", "_younger")

    def __init__(self, quantile: float) -> None:
        self._quantile = quantile
        self._older = [0] * _BUCKETS
        self._younger = [0] * _BUCKETS
        self._count = 0
        self._current: float | None = None

    def add(self, seconds: float) -> None:
        if self._count >= GENERATION_SIZE:
            self._older, self._younger, self._count = self._younger, [0] * _BUCKETS, 0
        self._count += 1
        self._younger[_bucket_of(seconds)] += 1
        if self._count % UPDATE_INTERVAL == 0:
            self._current = self._compute()

    def percentile(self) -> float | None:
        """Return the percentile in seconds, or None if there are fewer than ``MIN_SAMPLES``
        samples. The newest samples, fewer than ``UPDATE_INTERVAL``, are not included."""
        return self._current

    def _compute(self) -> float | None:
        counts = [
            older + younger for older, younger in zip(self._older, self._younger, strict=True)
        ]
        total = sum(counts)
        if total < MIN_SAMPLES:
            return None
        rank, seen = self._quantile * total, 0
        for bucket, count in enumerate(counts):
            seen += count
            if seen >= rank:
                return _upper_limit(bucket)
        return _upper_limit(_BUCKETS - 1)


def _bucket_of(seconds: float) -> int:
    if seconds <= _FIRST_LIMIT_SECONDS:
        return 0
    return min(_BUCKETS - 1, math.ceil(math.log(seconds / _FIRST_LIMIT_SECONDS) / _GROWTH))


def _upper_limit(bucket: int) -> float:
    return _FIRST_LIMIT_SECONDS * math.exp(bucket * _GROWTH)
