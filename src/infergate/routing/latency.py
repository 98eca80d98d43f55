"""A percentile of recent latencies: pure, in bounded memory.

A histogram whose bucket limits grow by a tenth, so that a percentile is at most a tenth too high,
for latencies from 0.1 ms to a quarter of an hour. There are two generations of it: the older is
dropped when the younger has ``GENERATION_SIZE`` samples, so that a percentile covers at least the
last ``GENERATION_SIZE`` samples and at most twice as many.

Reference: hedging after a percentile is from Dean and Barroso, "The tail at scale", 2013; Finagle's
BackupRequestFilter uses windowed histograms in the same way.
"""

from __future__ import annotations

import math
from typing import Final

GENERATION: Final = 500
ENOUGH: Final = 50
"""Samples that are needed for a percentile."""
EVERY: Final = 10
"""Samples after which the percentile is computed again: that costs more than counting."""
_FIRST: Final = 1e-4
"""Seconds: the upper limit of the first bucket."""
_GROWTH: Final = math.log(1.1)
_BUCKETS: Final = 168


class Latencies:
    """The latencies of one route, and one ``quantile`` (0 to 1) of them."""

    __slots__ = ("_count", "_older", "_share", "_told", "_younger")

    def __init__(self, share: float) -> None:
        self._share = share
        self._older = [0] * _BUCKETS
        self._younger = [0] * _BUCKETS
        self._count = 0
        self._told: float | None = None

    def add(self, seconds: float) -> None:
        """Add a sample."""
        if self._count >= GENERATION:
            self._older, self._younger, self._count = self._younger, [0] * _BUCKETS, 0
        self._count += 1
        self._younger[_bucket(seconds)] += 1
        if self._count % EVERY == 0:
            self._told = self._look()

    def percentile(self) -> float | None:
        """Return the seconds within which the share ``quantile`` of the responses came, as of a few
        samples ago; None with too few samples."""
        return self._told

    def _look(self) -> float | None:
        counts = [
            older + younger for older, younger in zip(self._older, self._younger, strict=True)
        ]
        total = sum(counts)
        if total < ENOUGH:
            return None
        rank, seen = self._share * total, 0
        for bucket, count in enumerate(counts):
            seen += count
            if seen >= rank:
                return _bound(bucket)
        return _bound(_BUCKETS - 1)


def _bucket(seconds: float) -> int:
    if seconds <= _FIRST:
        return 0
    return min(_BUCKETS - 1, math.ceil(math.log(seconds / _FIRST) / _GROWTH))


def _bound(bucket: int) -> float:
    return _FIRST * math.exp(bucket * _GROWTH)
