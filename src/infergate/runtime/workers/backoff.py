"""How long to wait before a process is started again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

_FIRST: Final = 0.1
_MOST: Final = 30.0
_FACTOR: Final = 2.0
_STEADY: Final = 60.0
"""Seconds after which a process has shown that it can live: the next one begins with ``_FIRST``."""


class Backoff:
    """Of one place. ``chance`` gives numbers from 0 to 1: waits differ by up to a half, so that
    processes that ended together do not start together."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance: Final = chance
        self._next = _FIRST

    def after(self, lived: float) -> float:
        """Seconds to wait after a process that lived for so many."""
        if lived >= _STEADY:
            self._next = _FIRST
        wait, self._next = self._next, min(self._next * _FACTOR, _MOST)
        return wait * (0.5 + self._chance() / 2)
