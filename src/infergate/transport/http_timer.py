"""One timer for all the time limits of a connection."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

_NEVER: Final = math.inf


class Timer:
    """Calls ``ring`` once the time last set has come.

    It is moved forward only when it fires, so a connection that keeps busy never touches the
    loop's own timers.
    """

    __slots__ = ("_alarm", "_due", "_loop", "_ring")

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._due = _NEVER
        self._alarm: asyncio.TimerHandle | None = None

    def set(self, seconds: float) -> None:
        """Ring in so many seconds, unless set anew until then."""
        self.set_at(self._loop.time() + seconds)

    def set_at(self, due: float) -> None:
        """Ring at ``due`` on the loop's clock, unless set anew until then."""
        self._due = due
        alarm = self._alarm
        if alarm is None or alarm.when() > due:
            if alarm is not None:
                alarm.cancel()
            self._alarm = self._loop.call_at(due, self._fire)

    def stop(self) -> None:
        """Do not ring until set again."""
        self._due = _NEVER

    def close(self) -> None:
        """Do not ring again."""
        self._due = _NEVER
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _fire(self) -> None:
        self._alarm = None
        due = self._due
        if due == _NEVER:
            return
        if self._loop.time() < due:
            self._alarm = self._loop.call_at(due, self._fire)
        else:
            self._ring()
