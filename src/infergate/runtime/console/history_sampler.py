"""Reads the counters of all processes for the history, every few seconds."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final

from infergate.core.log_events import BUG
from infergate.observe.recent_requests import ProcessSnapshot
from infergate.runtime.console.history import TrafficHistory
from infergate.runtime.console.sources import ConsoleSource
from infergate.runtime.gateway_events import GatewayEvents

SAMPLE_SECONDS: Final = 5.0
_log = logging.getLogger("infergate")
_Reading = asyncio.Task[Sequence[ProcessSnapshot]]


class HistorySampler:
    """Adds the counters of ``source`` to a history, between ``start`` and ``stop``, while the admin
    listener serves the console."""

    def __init__(self, source: ConsoleSource, events: GatewayEvents) -> None:
        self._source: Final = source
        self.history: Final = TrafficHistory(events)
        self._last: _Reading | None = None
        """The last reading that was requested, until it has ended."""
        self._has_begun = False
        """Whether ``_last`` has begun to read."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            reading = () if self._last is None else (self._last,)
            await asyncio.gather(task, *reading, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            admin = self._source.config.listeners.admin
            if admin is not None and admin.console:
                try:
                    await self.refresh()
                except Exception:  # noqa: BLE001 - a bug must not end the history
                    _log.exception("bug while reading counters for the console", extra=BUG)
            await asyncio.sleep(SAMPLE_SECONDS)

    async def refresh(self) -> Sequence[ProcessSnapshot]:
        """Read the counters and the recent requests of all processes, add the counters to the
        history, and return both. They contain every request that finished before the call.
        Concurrent callers share a reading that has not begun. At most one reading runs at a time,
        because a worker that does not respond delays it."""
        task = self._last
        if task is None or self._has_begun:
            task = self._last = asyncio.create_task(self._read(task))
            task.add_done_callback(self._finish)
            self._has_begun = False
        return await asyncio.shield(task)

    async def _read(self, previous: _Reading | None) -> Sequence[ProcessSnapshot]:
        if previous is not None:
            await asyncio.wait({previous})
        self._has_begun = True
        processes = await self._source.recent()
        await asyncio.to_thread(self.history.add, processes, time.time(), time.monotonic())
        return processes

    def _finish(self, task: _Reading) -> None:
        if self._last is task:
            self._last = None
        if not task.cancelled():
            task.exception()  # marks the error as retrieved; callers receive it
