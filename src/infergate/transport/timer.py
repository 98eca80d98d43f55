"""One timer for all the time limits of a connection; and when a body has to have come.

*Rule.* Where the loop itself was held up past a limit, what has come meanwhile is read before
anybody is called late: loops look at clocks before they look at sockets.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

from infergate.core.limits import Limits

_NEVER: Final = math.inf
MINIMUM_RATE: Final = 500
"""Bytes a second that a body must keep up on the whole (Apache RequestReadTimeout: 500)."""


HELD_UP: Final = 0.1
"""Seconds by which a loop that is not held up is never late."""
A_TURN: Final = 0.01
"""Seconds in which what waits in the sockets is read."""


def body_due(limits: Limits, since: float, received: int, now: float) -> float:
    """When more must have come of a body that began ``since`` and of which ``received`` bytes are
    here: after a pause, and on the whole. All times on one clock."""
    idle = limits.idle_body_time
    return min(now + idle, since + idle + received / MINIMUM_RATE)


class Timer:
    """Calls ``ring`` once the time last set has come.

    It is moved forward only when it fires, so a connection that keeps busy never touches the
    loop's own timers.
    """

    __slots__ = ("_alarm", "_due", "_loop", "_ring", "_spared")

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._due = _NEVER
        self._spared = _NEVER  # a due time that was put off, which is done once
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
        now = self._loop.time()
        if now >= due + HELD_UP and due != self._spared:
            due = self._due = self._spared = now + A_TURN
        if now < due:
            self._alarm = self._loop.call_at(due, self._fire)
        else:
            self._ring()
