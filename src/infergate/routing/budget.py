"""The retry budget of a backend. This module has no I/O.

Retries add load to a backend that fails because it is overloaded. The budget limits retries to a
share of the backend's active requests, so that a short overload does not become an outage.

Reference: Envoy's retry budget (20 %, at least 3), which counts active requests.
"""

from __future__ import annotations

from typing import Final

DEFAULT_SHARE: Final = 0.2
DEFAULT_MIN_RETRIES: Final = 3


class RetryBudget:
    """Allows retries for a ``share`` (0 to 1) of active requests, and at least ``min_retries``."""

    __slots__ = ("_min_retries", "_share", "active_requests", "active_retries")

    def __init__(
        self, share: float = DEFAULT_SHARE, min_retries: int = DEFAULT_MIN_RETRIES
    ) -> None:
        self._share = share
        self._min_retries = min_retries
        self.active_requests = 0
        """The number of active requests, which the callers maintain."""
        self.active_retries = 0

    def try_acquire(self) -> bool:
        """Return whether one more retry is allowed. If so, count it until ``release``."""
        if self.active_retries >= max(self._min_retries, self._share * self.active_requests):
            return False
        self.active_retries += 1
        return True

    def release(self) -> None:
        """Record the end of a retry."""
        self.active_retries -= 1
