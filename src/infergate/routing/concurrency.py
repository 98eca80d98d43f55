"""The concurrency limit of a backend and the queue in front of it: pure decisions.

1. First in, first out. 2. A request whose deadline passes leaves the queue and gets no slot. 3. The
queue has a maximum length. A request that finds it full is rejected immediately, because a queue
that only grows helps no one.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final, Generic, TypeVar

T = TypeVar("T")


class ConcurrencyLimit(Generic[T]):
    """``max_active`` concurrent requests, and ``max_waiting`` in the queue. Deadlines and times
    are seconds on one clock; each ``T`` identifies one waiting request."""

    def __init__(self, max_active: int, max_waiting: int) -> None:
        self.max_active: Final = max_active
        self.max_waiting: Final = max_waiting
        self.active = 0
        self._waiting: Final[OrderedDict[T, float]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Length of the queue."""
        return len(self._waiting)

    def try_acquire(self) -> bool:
        """Take a slot if one is free and no request is waiting; return whether it was taken."""
        if self.active >= self.max_active or self._waiting:
            return False
        self.active += 1
        return True

    def enqueue(self, waiter: T, deadline: float | None) -> bool:
        """Add ``waiter`` to the queue, until ``deadline``; return False if the queue is full."""
        if len(self._waiting) >= self.max_waiting:
            return False
        self._waiting[waiter] = math.inf if deadline is None else deadline
        return True

    def remove(self, waiter: T) -> None:
        """Remove ``waiter`` from the queue."""
        self._waiting.pop(waiter, None)

    def release(self, now: float) -> T | None:
        """Give up a slot; return the waiting request that has it now, if any."""
        while self._waiting:
            waiter, deadline = self._waiting.popitem(last=False)
            if deadline > now:
                return waiter
        self.active -= 1
        return None
