"""How much of what costs us and serves nobody a peer may send."""

from __future__ import annotations

from typing import Final


class Budget:
    """Holds at most ``most``; ``rate`` a second come back. Times are of any one clock."""

    __slots__ = ("_left", "_most", "_rate", "_since")

    def __init__(self, most: float, rate: float) -> None:
        self._most: Final = most
        self._rate: Final = rate
        self._left = most
        self._since: float | None = None

    def spend(self, now: float) -> bool:
        """Take one; False where none is left."""
        if self._since is not None:
            self.earn(max(0.0, now - self._since) * self._rate)
        self._since = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    def earn(self, more: float) -> None:
        """Put ``more`` back, as far as there is room."""
        self._left = min(self._most, self._left + more)

    def fill(self) -> None:
        """Put everything back."""
        self._left = self._most
