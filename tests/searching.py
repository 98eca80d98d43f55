"""How long Hypothesis searches: whole in ``make test-peers``, a third of it in ``make test``, which
people wait for."""

from __future__ import annotations

import os
from typing import Final

_WHOLE: Final = os.environ.get("INFERGATE_SEARCH") == "whole"
_SHARE: Final = 3


def examples(whole: int) -> int:
    """How many of ``whole`` examples are tried in this run."""
    return whole if _WHOLE else max(1, whole // _SHARE)
