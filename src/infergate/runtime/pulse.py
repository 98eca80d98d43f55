"""How long the event loop was held up: by a request that costs much, or because the system let the
process wait. All who ask wait as long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from infergate.transport.timer import HELD_UP

_EVERY: Final = 0.25
"""Seconds between two looks, which find most of what is longer."""


class Pulse:
    """Looks at the clock from ``start`` to ``stop``. ``late`` is told by how many seconds a look
    came too late, where that is no chance."""

    def __init__(self, late: Callable[[float], object]) -> None:
        self._late: Final = late
        self._alarm: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        """Begin."""
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
        """End."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
