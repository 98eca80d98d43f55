"""A token bucket for frames that cost the gateway work without advancing a request."""

from __future__ import annotations

from typing import Final


class FrameBudget:
    """A bucket of at most `max_tokens` tokens. It is refilled at `rate` tokens per second on a
    monotonic clock."""

    def __init__(self, max_tokens: float, rate: float) -> None:
        self._max_tokens: Final = max_tokens
        self._rate: Final = rate
        self._tokens = max_tokens
        self._updated_at: float | None = None

    def spend(self, now: float) -> bool:
        """Take one token. Return False if no token is left."""
        if self._updated_at is not None:
            self.add(max(0.0, now - self._updated_at) * self._rate)
        self._updated_at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def add(self, tokens: float) -> None:
        """Add `tokens` tokens, up to the maximum."""
        self._tokens = min(self._max_tokens, self._tokens + tokens)

    def refill_and_spend(self, now: float) -> None:
        """Refill the bucket to the maximum, which is at least 1, and take a token."""
        self._tokens = self._max_tokens - 1.0
        self._updated_at = now
