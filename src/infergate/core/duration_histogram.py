"""A histogram of durations, and the bucket bounds of the request metrics."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final


class DurationHistogram:
    """Counts durations in buckets with ascending upper ``bounds`` in seconds. Not thread-safe."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds: Final = bounds
        self.counts = [0] * (len(bounds) + 1)
        """The number of durations in each bucket, not cumulative. Each bucket ends at a bound; the
        last bucket counts the durations above all bounds."""
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self._bounds, seconds)] += 1
        self.sum += seconds

    def bucket_index(self, seconds: float) -> int:
        """Return the index of the bucket that counts ``seconds``."""
        return bisect_left(self._bounds, seconds)


REQUEST_BUCKETS: Final[tuple[float, ...]] = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0, 300.0,
)  # fmt: skip
"""The bounds, in seconds, of request durations. The lowest bounds fit small requests; the highest
bounds fit long token streams, which may exceed the default timeout."""
GATEWAY_BUCKETS: Final[tuple[float, ...]] = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0
)  # fmt: skip
"""The bounds, in seconds, of the gateway's processing time. The lowest bounds fit messages that
pass through; the highest bounds fit large JSON bodies."""
