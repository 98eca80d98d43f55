"""Timers for the time limits and the calls of a connection, and the deadline of a body. If the
event loop was delayed past the deadline of a ``Timer``, pending input is read before the timer
fires, because loops check timers before sockets."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection
from typing import Final, Protocol

from infergate.core.limits import Limits

_NEVER: Final = math.inf
MIN_BODY_RATE: Final = 500
"""Minimum average rate of a body in bytes per second (Apache RequestReadTimeout: 500)."""
LATE_SECONDS: Final = 0.1  # a timer that fires this late is postponed once
CATCH_UP_SECONDS: Final = 0.01  # the length of the postponement


def body_deadline(limits: Limits, since: float, received: int, now: float) -> float:
    """Return the deadline for the next bytes of a request or response body whose transfer began at
    ``since``. The receiver has ``received`` bytes. Both the pause between bytes and the average
    rate are limited."""
    idle = limits.idle_body_time
    return min(now + idle, since + idle + received / MIN_BODY_RATE)


class Timer:
    """Calls ``callback`` at the most recently set time. If the timer is set to a later time, the
    loop's timer is moved only when it fires, so a busy connection seldom modifies the loop's
    timers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._due = _NEVER
        self._postponed = _NEVER  # the last postponed deadline, which is not postponed again
        self._handle: asyncio.TimerHandle | None = None

    def set(self, seconds: float) -> None:
        """Fire in ``seconds``, unless the timer is set again before then."""
        due = self._loop.time() + seconds
        if self._handle is not None and self._handle.when() <= due:
            self._due = due  # set without another call, because timers are often set again
        else:
            self.set_at(due)

    def set_at(self, due: float) -> None:
        """Fire at ``due`` on the loop's clock, unless the timer is set again before then."""
        self._due = due
        handle = self._handle
        if handle is None or handle.when() > due:
            if handle is not None:
                handle.cancel()
            self._handle = self._loop.call_at(due, self._fire)

    def stop(self) -> None:
        """Do not fire until the timer is set again."""
        self._due = _NEVER

    def close(self) -> None:
        """Stop the timer permanently."""
        self._due = _NEVER
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        due = self._due
        if due == _NEVER:
            return
        now = self._loop.time()
        if now >= due + LATE_SECONDS and due != self._postponed:
            due = self._due = self._postponed = now + CATCH_UP_SECONDS
        if now < due:
            self._handle = self._loop.call_at(due, self._fire)
        else:
            self._callback()


class CallWithDeadline(Protocol):
    """A call that ends at its deadline."""

    @property
    def deadline(self) -> float:
        """The deadline on the loop's clock. It is infinite if the call has no deadline."""
        ...

    def expire(self) -> None:
        """End the call, whose deadline has passed."""
        ...


class DeadlineTimer:
    """One timer for the deadlines of all ``calls`` of a connection. The timer fires at ``due``,
    which is not later than any deadline. Calls that end do not change ``due``, because most calls
    end long before their deadlines, and newer calls have later deadlines."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, calls: Collection[CallWithDeadline]
    ) -> None:
        self._loop = loop
        self._calls = calls
        self._handle: asyncio.TimerHandle | None = None
        self.due = _NEVER

    def set_at(self, due: float) -> None:
        """Fire at ``due`` on the loop's clock."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self.due = due
        if due < _NEVER:
            self._handle = self._loop.call_at(due, self._expire_calls)

    def close(self) -> None:
        """Do not fire until the timer is set again."""
        self.set_at(_NEVER)

    def _expire_calls(self) -> None:
        now = self._loop.time()
        for call in tuple(self._calls):
            if call.deadline <= now:
                call.expire()
        self.set_at(min((call.deadline for call in self._calls), default=_NEVER))
