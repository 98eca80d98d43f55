"""A token bucket for frames that cost the gateway work without advancing a request."""

from __future__ import annotations

from typing import Final


class Budget:
    """A token bucket of at most `max_tokens`, refilled with `rate` tokens a second. Times may come
    from any one clock."""

    __slots__ = ("_left", "_most", "_rate", "_since")

    def __init__(self, most: float, rate: float) -> None:
        self._most: Final = most
        self._rate: Final = rate
        self._left = most
        self._since: float | None = None

    def spend(self, now: float) -> bool:
        """Take one token; return False if none is left."""
        if self._since is not None:
            self.earn(max(0.0, now - self._since) * self._rate)
        self._since = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    def earn(self, more: float) -> None:
        """Add `tokens` tokens, up to the maximum."""
        self._left = min(self._most, self._left + more)

    def fill(self) -> None:
        """Refill the bucket."""
        self._left = self._most
