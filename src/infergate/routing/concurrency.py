"""The concurrency limit of a backend, and its queue.

A released slot passes to the next request in the queue. The queue respects priorities and is fair
between clients (``core.fair_queue``). Requests whose deadline has passed are skipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from infergate.core.fair_queue import FairQueue, QueuedJob

T = TypeVar("T")

_UNKNOWN_WAIT_SECONDS: Final = 1.0
"""The estimated wait while no interval between slots is known."""
_MAX_WAIT_SECONDS: Final = 60.0
"""The maximum estimated wait. A backend that hangs may recover at any time."""
_SMOOTHING: Final = 1 / 16
"""The weight of the latest interval in the mean interval."""


class ConcurrencyLimit(Generic[T]):
    """Allows ``max_active`` concurrent requests and ``max_waiting`` queued requests. Deadlines and
    times are in seconds on the same clock."""

    def __init__(self, max_active: int, max_waiting: int) -> None:
        self.max_active: Final = max_active
        self.max_waiting: Final = max_waiting
        self.active = 0
        self._queue: Final = FairQueue[T](max_waiting)
        self._intervals: Final = SlotIntervals()

    @property
    def waiting(self) -> int:
        """The number of requests in the queue."""
        return self._queue.waiting

    def try_acquire(self) -> bool:
        """Take a slot and return True, or return False if no slot is free. While requests are in
        the queue, no slot is free."""
        if self.active >= self.max_active:
            return False
        self.active += 1
        return True

    def enqueue(self, request: QueuedJob[T]) -> Sequence[QueuedJob[T]]:
        """Add ``request`` to the queue. Return the requests that were removed because the queue is
        full. ``request`` may be one of these requests."""
        return self._queue.put(request)

    def remove(self, request: QueuedJob[T]) -> None:
        self._queue.discard(request)

    def release(self, now: float) -> T | None:
        """Release a slot. Return the item of the waiting request that gets the slot, or None if no
        waiting request has a deadline after ``now``."""
        queue = self._queue
        if queue.waiting:
            self._intervals.add(now)
            while (request := queue.take()) is not None:
                if request.deadline > now:
                    return request.item
        self._intervals.latest = None
        self.active -= 1
        return None

    def wait_seconds(self, request: QueuedJob[T], now: float) -> float:
        """Return the estimated seconds, at most 60, until ``request`` would get a slot if it were
        queued."""
        return self._intervals.wait_seconds(self._queue.jobs_before(request), now)


@dataclass(slots=True, eq=False)
class SlotIntervals:
    """Estimates waits from the mean interval between slots that pass to waiting requests."""

    latest: float | None = None
    """The time when a slot last passed to a waiting request. It is None if no slot has passed yet,
    or if the last released slot stayed free."""
    _count: int = 0
    _mean: float = 0.0

    def add(self, now: float) -> None:
        """Record that a slot was released at ``now`` while requests were waiting."""
        if self.latest is not None:
            self._count += 1
            self._mean += max(_SMOOTHING, 1 / self._count) * (now - self.latest - self._mean)
        self.latest = now

    def wait_seconds(self, requests_before: float, now: float) -> float:
        """Return the estimated seconds, at most 60, until a request gets a slot after
        ``requests_before`` other requests."""
        interval = self.mean(now)
        if interval is None:
            return _UNKNOWN_WAIT_SECONDS
        return min((requests_before + 1) * interval, _MAX_WAIT_SECONDS)

    def mean(self, now: float) -> float | None:
        """Return the mean interval in seconds, or None if no interval is known. If the current
        interval is already longer than the mean, it is included as if it ended now."""
        if not self._count:
            return None
        current = self._mean if self.latest is None else now - self.latest
        return self._mean + _SMOOTHING * max(0.0, current - self._mean)
