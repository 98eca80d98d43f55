"""The retry budget of a backend: pure arithmetic.

A backend that fails because it is overloaded gets more load from retries. Limiting them to a share
of its active requests prevents a short overload from becoming an outage.

Reference: Envoy's retry budget (20 %, at least 3), which counts active requests.
"""

from __future__ import annotations

from typing import Final

DEFAULT_SHARE: Final = 0.2
DEFAULT_MIN_RETRIES: Final = 3


class RetryBudget:
    """Allows ``share`` (0 to 1) of the active requests to be retries; always ``min_retries``."""

    __slots__ = ("_min_retries", "_share", "active_requests", "active_retries")

    def __init__(
        self, share: float = DEFAULT_SHARE, min_retries: int = DEFAULT_MIN_RETRIES
    ) -> None:
        self._share = share
        self._min_retries = min_retries
        self.active_requests = 0
        """Active requests; the caller counts its own here while it is active."""
        self.active_retries = 0

    def try_acquire(self) -> bool:
        """Return whether one more retry is allowed; if so, count it until ``release``."""
        if self.active_retries >= max(self._min_retries, self._share * self.active_requests):
            return False
        self.active_retries += 1
        return True

    def release(self) -> None:
        """End a retry that was allowed."""
        self.active_retries -= 1
