"""How long answers take, as a percentile of the last ones: pure, in bounded memory.

*Strategy.* Buckets whose bounds grow by a tenth, so that a percentile is told at most a tenth too
high, of any time from a tenth of a millisecond to a quarter of an hour. Two generations of them:
the older is forgotten when the younger has its number of answers, so that what is told is of the
last ``GENERATION`` answers, at least, and twice as many at most.

Reference: hedging after a percentile is Dean and Barroso's, "The tail at scale", 2013; windows of a
histogram are how Finagle's BackupRequestFilter knows it.
"""

from __future__ import annotations

import math
from typing import Final

GENERATION: Final = 500
ENOUGH: Final = 50
"""Answers without which nothing is told."""
EVERY: Final = 10
"""Answers after which it is told anew: looking costs more than counting."""
_FIRST: Final = 1e-4
"""Seconds: the first bucket's bound."""
_GROWTH: Final = math.log(1.1)
_BUCKETS: Final = 168


class Latencies:
    """Of one route, of which one ``share`` (0 to 1) is wanted."""

    __slots__ = ("_count", "_older", "_share", "_told", "_younger")

    def __init__(self, share: float) -> None:
        self._share = share
        self._older = [0] * _BUCKETS
        self._younger = [0] * _BUCKETS
        self._count = 0
        self._told: float | None = None

    def add(self, seconds: float) -> None:
        """An answer took so long."""
        if self._count >= GENERATION:
            self._older, self._younger, self._count = self._younger, [0] * _BUCKETS, 0
        self._count += 1
        self._younger[_bucket(seconds)] += 1
        if self._count % EVERY == 0:
            self._told = self._look()

    def percentile(self) -> float | None:
        """Seconds within which the share of the answers came, as it was a few answers ago; None
        where too few have."""
        return self._told

    def _look(self) -> float | None:
        counts = [
            older + younger for older, younger in zip(self._older, self._younger, strict=True)
        ]
        whole = sum(counts)
        if whole < ENOUGH:
            return None
        wanted, seen = self._share * whole, 0
        for bucket, count in enumerate(counts):
            seen += count
            if seen >= wanted:
                return _bound(bucket)
        return _bound(_BUCKETS - 1)


def _bucket(seconds: float) -> int:
    if seconds <= _FIRST:
        return 0
    return min(_BUCKETS - 1, math.ceil(math.log(seconds / _FIRST) / _GROWTH))


def _bound(bucket: int) -> float:
    return _FIRST * math.exp(bucket * _GROWTH)
