"""The retry budget of a backend: pure arithmetic.

A backend that fails because it is overloaded gets more load from retries. Limiting them to a share
of its active requests keeps a short overload from becoming an outage.

Reference: Envoy's retry budget (20 %, at least 3), which counts active requests.
"""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.2
LEAST: Final = 3


class RetryBudget:
    """Allows ``share`` (0 to 1) of the active requests to be retries, and always
    ``min_retries``."""

    __slots__ = ("_least", "_share", "requests", "retries")

    def __init__(self, share: float = SHARE, least: int = LEAST) -> None:
        self._share = share
        self._least = least
        self.requests = 0
        """Active requests; the caller counts its own here while it is active."""
        self.retries = 0
        """Active retries."""

    def take(self) -> bool:
        """Return whether one more retry is allowed; if so, count it until ``release``."""
        if self.retries >= max(self._least, self._share * self.requests):
            return False
        self.retries += 1
        return True

    def give_back(self) -> None:
        """End a retry that was allowed."""
        self.retries -= 1
