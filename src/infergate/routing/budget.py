"""The retry budget of a backend.

Retries add load to a backend that fails because it is overloaded. The budget limits retries to a
share of the backend's active requests, so that a short overload does not become an outage.

Reference: Envoy's retry budget (20 %, at least 3), which counts active requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DEFAULT_SHARE: Final = 0.2
DEFAULT_MIN_RETRIES: Final = 3


@dataclass(slots=True, eq=False)
class RetryBudget:
    """Allows concurrent retries: a ``share`` (0 to 1) of the active requests, but at least
    ``min_retries``."""

    share: float = DEFAULT_SHARE
    min_retries: int = DEFAULT_MIN_RETRIES
    active_requests: int = 0
    """Callers maintain this number."""
    active_retries: int = 0

    def try_acquire(self) -> bool:
        """Return whether one more retry is allowed. An allowed retry is active until
        ``release``."""
        if self.active_retries >= max(self.min_retries, self.share * self.active_requests):
            return False
        self.active_retries += 1
        return True

    def release(self) -> None:
        """Record the end of a retry."""
        self.active_retries -= 1
