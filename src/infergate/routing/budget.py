"""How many tries beyond the first a backend is sent at once: pure arithmetic.

*Why.* Where a backend fails because it has too much to do, trying again gives it more. A share of
what it has anyway cannot turn a bad minute into an outage.

Reference: Envoy's retry budget (20 %, at least 3), which counts what is in progress.
"""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.2
LEAST: Final = 3


class RetryBudget:
    """``share`` (0 to 1) of the requests in progress may be tries beyond the first, and ``least``
    in any case."""

    __slots__ = ("_least", "_share", "requests", "retries")

    def __init__(self, share: float = SHARE, least: int = LEAST) -> None:
        self._share = share
        self._least = least
        self.requests = 0
        """In progress: whoever has one counts it here, for as long as it is."""
        self.retries = 0
        """Tries beyond the first, in progress."""

    def take(self) -> bool:
        """Whether there may be one more; if so it is counted, until it is given back."""
        if self.retries >= max(self._least, self._share * self.requests):
            return False
        self.retries += 1
        return True

    def give_back(self) -> None:
        """A try that was taken is over."""
        self.retries -= 1
