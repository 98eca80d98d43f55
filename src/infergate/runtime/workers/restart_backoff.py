"""The delay before a process is restarted."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

_INITIAL_SECONDS: Final = 0.1
_MAX_SECONDS: Final = 30.0
_FACTOR: Final = 2.0
_STABLE_SECONDS: Final = 60.0
"""Seconds after which a process counts as stable. The next delay is then ``_INITIAL_SECONDS``
again."""


class RestartBackoff:
    """The growing restart delay of one worker slot. ``random_float`` returns numbers from 0 to 1,
    which shorten each delay by up to half, so that processes that ended at the same time are
    restarted at different times."""

    def __init__(self, random_float: Callable[[], float] = random.random) -> None:
        self._random_float: Final = random_float
        self._next = _INITIAL_SECONDS

    def next_delay(self, lifetime: float) -> float:
        """Return the seconds to wait before restarting a process that ran for ``lifetime``
        seconds."""
        if lifetime >= _STABLE_SECONDS:
            self._next = _INITIAL_SECONDS
        wait, self._next = self._next, min(self._next * _FACTOR, _MAX_SECONDS)
        return wait * (0.5 + self._random_float() / 2)
