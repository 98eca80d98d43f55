"""The delay before a process is restarted."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

_FIRST: Final = 0.1
_MOST: Final = 30.0
_FACTOR: Final = 2.0
_STEADY: Final = 60.0
"""Seconds after which a process counts as stable: the next delay is ``_INITIAL_SECONDS`` again."""


class Backoff:
    """The growing delay of one worker slot. ``random_float`` returns numbers from 0 to 1, which
    shorten a delay by up to half, so that processes that ended together do not start together."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance: Final = chance
        self._next = _FIRST

    def after(self, lived: float) -> float:
        """Return the seconds to wait after a process that ran for ``lifetime`` seconds."""
        if lived >= _STEADY:
            self._next = _FIRST
        wait, self._next = self._next, min(self._next * _FACTOR, _MOST)
        return wait * (0.5 + self._chance() / 2)
