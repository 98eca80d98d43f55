"""The number of Hypothesis examples: all in ``make test-peers``, a sixth in ``make test``."""

from __future__ import annotations

import os
from typing import Final

WHOLE: Final = os.environ.get("INFERGATE_SEARCH") == "whole"
_SHARE: Final = 6


def examples(count: int) -> int:
    """Return how many of ``count`` examples this run tries."""
    return count if WHOLE else max(1, count // _SHARE)
