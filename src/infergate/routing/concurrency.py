"""The concurrency limit of a backend, and its queue. This module has no I/O.

Waiting requests get slots in the order of their arrival. Requests past their deadline are skipped.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final, Generic, TypeVar

T = TypeVar("T")


class ConcurrencyLimit(Generic[T]):
    """Allows ``max_active`` concurrent requests and ``max_waiting`` queued requests. Deadlines and
    times are seconds on the same clock. Each ``T`` identifies a queued request."""

    def __init__(self, max_active: int, max_waiting: int) -> None:
        self.max_active: Final = max_active
        self.max_waiting: Final = max_waiting
        self.active = 0
        self._waiting: Final[OrderedDict[T, float]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """The number of requests in the queue."""
        return len(self._waiting)

    def try_acquire(self) -> bool:
        """Take a slot if one is free and no request is waiting. Return whether a slot was taken."""
        if self.active >= self.max_active or self._waiting:
            return False
        self.active += 1
        return True

    def enqueue(self, waiter: T, deadline: float | None) -> bool:
        """Add ``waiter`` to the queue until ``deadline``. Return False if the queue is full."""
        if len(self._waiting) >= self.max_waiting:
            return False
        self._waiting[waiter] = math.inf if deadline is None else deadline
        return True

    def remove(self, waiter: T) -> None:
        self._waiting.pop(waiter, None)

    def release(self, now: float) -> T | None:
        """Release a slot. Return the waiting request that gets the slot, or None."""
        while self._waiting:
            waiter, deadline = self._waiting.popitem(last=False)
            if deadline > now:
                return waiter
        self.active -= 1
        return None
