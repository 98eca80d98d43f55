"""How long to wait before another try: pure arithmetic.

*Rule.* Before the n-th try beyond the first: anything between nothing and (2ⁿ - 1) times the base,
at most ten times the base. Requests that failed together do not come back together.

Reference: Envoy's retry back-off ("fully jittered", base 25 ms, at most 250 ms).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

BASE: Final = 0.025
"""Seconds."""
MOST: Final = 10 * BASE
_GROWS: Final = 8
"""Tries after which it has long been ``MOST``."""


def backoff(tries: int, chance: Callable[[], float] = random.random) -> float:
    """Seconds to wait before another try, after ``tries`` (at least one). ``chance`` gives a number
    from 0 to below 1."""
    return chance() * min(MOST, BASE * ((1 << min(tries, _GROWS)) - 1))
