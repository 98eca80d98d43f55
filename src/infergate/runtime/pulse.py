"""Measures event loop lag: how long the loop was blocked, by an expensive request or because the
system did not schedule the process. All requests wait as long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from infergate.transport.timer import HELD_UP

_EVERY: Final = 0.25
"""Seconds between two measurements. Longer lags are mostly detected."""


class Pulse:
    """Measures from ``start`` to ``stop``, and calls ``report_lag`` with the seconds by which a
    timer was late, unless the delay is negligible."""

    def __init__(self, late: Callable[[float], object]) -> None:
        self._late: Final = late
        self._alarm: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        """Start measuring."""
        self._wait(asyncio.get_running_loop())

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + _EVERY
        self._alarm = loop.call_at(self._due, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        late = loop.time() - self._due
        if late >= HELD_UP:
            self._late(late)
        self._wait(loop)

    def stop(self) -> None:
        """Stop measuring."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
