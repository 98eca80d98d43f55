"""Agreement over time, in a bounded number of intervals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

from pydantic import Field

from infergate.comparison.json_types import Count

MAX_INTERVALS: Final = 128
_MAX_DOUBLINGS: Final = 40
MAX_TIME: Final = 253_402_300_799  # the end of the year 9999, the latest time of datetime

Intervals = Annotated[dict[Count, tuple[Count, Count]], Field(max_length=MAX_INTERVALS)]


@dataclass(slots=True)
class Timeline:
    """Counts comparisons in intervals of ``2**doublings`` seconds. The length is doubled when the
    comparisons span more than MAX_INTERVALS intervals.

    The result does not depend on the order of calls."""

    doublings: Annotated[int, Field(ge=0, le=_MAX_DOUBLINGS)] = 0
    intervals: Intervals = field(default_factory=dict)
    """The number of comparisons, and the number of equal comparisons, in each interval. The key is
    the start of the interval in seconds since the Unix epoch, divided by the length of an
    interval."""

    def __post_init__(self) -> None:
        if self.intervals and max(self.intervals) << self.doublings > MAX_TIME:
            raise ValueError("an interval is after the year 9999")
        for compared, equal in self.intervals.values():
            if not equal <= compared > 0:
                raise ValueError(
                    f"impossible counts in an interval: {equal} of {compared} comparisons are equal"
                )

    @property
    def seconds(self) -> int:
        """The length of an interval."""
        return 1 << self.doublings

    def add(self, time: float, *, is_equal: bool) -> None:
        """Count a comparison at ``time``, in seconds since the Unix epoch."""
        self._add(int(min(max(time, 0), MAX_TIME)) >> self.doublings, 1, int(is_equal))

    def merge(self, other: Timeline) -> None:
        while self.doublings < other.doublings:
            self._double()
        for index, (compared, equal) in other.intervals.items():
            # Adding may double the length of the intervals.
            self._add(index >> (self.doublings - other.doublings), compared, equal)

    def _add(self, index: int, compared: int, equal: int) -> None:
        earlier = self.intervals.get(index, (0, 0))
        self.intervals[index] = (earlier[0] + compared, earlier[1] + equal)
        if len(self.intervals) > 1:
            while max(self.intervals) - min(self.intervals) >= MAX_INTERVALS:
                self._double()

    def _double(self) -> None:
        halved = sorted(self.intervals.items())
        self.doublings += 1
        self.intervals = {}
        for index, (compared, equal) in halved:
            earlier = self.intervals.get(index >> 1, (0, 0))
            self.intervals[index >> 1] = (earlier[0] + compared, earlier[1] + equal)
