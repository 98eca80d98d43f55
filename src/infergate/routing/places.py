"""How many requests a backend is sent at once, and who waits for a place: pure decisions.

*Rule 1.* First come, first served: who comes while others wait waits behind them.
*Rule 2.* Who waits longer than its deadline leaves, and is given no place that became free after.
*Rule 3.* Of those who wait there are at most so many; whoever comes then is refused at once, for a
queue that only grows helps nobody.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final, Generic, TypeVar

T = TypeVar("T")


class Places(Generic[T]):
    """``most`` requests at once, and ``most_waiting`` who wait. Deadlines and times are seconds on
    one clock; each ``T`` is another."""

    def __init__(self, most: int, most_waiting: int) -> None:
        self.most: Final = most
        self.most_waiting: Final = most_waiting
        self.taken = 0
        self._waiting: Final[OrderedDict[T, float]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def take(self) -> bool:
        """Whether there is a place for who comes now; if so it is taken."""
        if self.taken >= self.most or self._waiting:
            return False
        self.taken += 1
        return True

    def wait(self, who: T, deadline: float | None) -> bool:
        """Whether ``who`` may wait, until ``deadline``; if so it does."""
        if len(self._waiting) >= self.most_waiting:
            return False
        self._waiting[who] = math.inf if deadline is None else deadline
        return True

    def give_up(self, who: T) -> None:
        """``who`` waits no longer."""
        self._waiting.pop(who, None)

    def leave(self, now: float) -> T | None:
        """A place is given up: who has it from now on, if anyone waits."""
        while self._waiting:
            who, deadline = self._waiting.popitem(last=False)
            if deadline > now:
                return who
        self.taken -= 1
        return None
