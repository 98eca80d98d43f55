"""Measures how long the event loop was blocked, by expensive work or because the system did not
schedule the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from infergate.transport.net.timer import LATE_SECONDS

_INTERVAL_SECONDS: Final = 0.25


class EventLoopLagMonitor:
    """Measures the event loop's lag until ``stop``. ``report_lag`` is called with the lag in
    seconds if a timer is late by at least ``LATE_SECONDS``."""

    def __init__(self, report_lag: Callable[[float], object]) -> None:
        self._report_lag: Final = report_lag
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        self._schedule(asyncio.get_running_loop())

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + _INTERVAL_SECONDS
        self._timer = loop.call_at(self._due, self._measure, loop)

    def _measure(self, loop: asyncio.AbstractEventLoop) -> None:
        lag = loop.time() - self._due
        if lag >= LATE_SECONDS:
            self._report_lag(lag)
        self._schedule(loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
