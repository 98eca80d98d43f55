"""The delay before a retry.

The delay before the n-th retry is random: between 0 and (2ⁿ - 1) times the base, but at most ten
times the base. Random delays spread the retries of requests that failed at the same time.

Reference: Envoy's retry back-off ("fully jittered", base 25 ms, at most 250 ms).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

BASE_SECONDS: Final = 0.025
MAX_SECONDS: Final = 10 * BASE_SECONDS
_MAX_DOUBLINGS: Final = 8
"""Maximum exponent of 2. The delay reaches ``MAX_SECONDS`` at a lower exponent."""


def backoff(attempts: int, uniform: Callable[[], float] = random.random) -> float:
    """Return the seconds to wait after ``attempts`` (at least 1) failed attempts. ``uniform``
    returns a random number in [0, 1)."""
    return uniform() * min(MAX_SECONDS, BASE_SECONDS * ((1 << min(attempts, _MAX_DOUBLINGS)) - 1))
