"""Reads the counters of all processes every few seconds, for the history of the console."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final

from infergate.core.log_events import BUG
from infergate.observe.recent_requests import ProcessSnapshot
from infergate.runtime.console.history import TrafficHistory
from infergate.runtime.console.shared_reading import SharedReading
from infergate.runtime.console.sources import ConsoleSource
from infergate.runtime.gateway_events import GatewayEvents

SAMPLE_SECONDS: Final = 5.0
_log = logging.getLogger("infergate")


class HistorySampler:
    """From ``start`` to ``stop``, adds the counters of ``source`` to a history while the admin
    listener serves the console."""

    def __init__(self, source: ConsoleSource, events: GatewayEvents) -> None:
        self._source: Final = source
        self.history: Final = TrafficHistory(events)
        self._reading: Final = SharedReading[Sequence[ProcessSnapshot]]()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, self._reading.wait(), return_exceptions=True)

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
        """Return the counters and recent requests of all processes, including every request that
        finished before the call, and add the counters to the history."""
        return await self._reading.get(self._read)

    async def _read(self) -> Sequence[ProcessSnapshot]:
        processes = await self._source.recent()
        await asyncio.to_thread(self.history.add, processes, time.time(), time.monotonic())
        return processes
