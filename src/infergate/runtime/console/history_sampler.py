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
from infergate.runtime.console.sources import ConsoleSource, WorkerCounts
from infergate.runtime.gateway_events import GatewayEvents

SAMPLE_SECONDS: Final = 5.0
_MIN_SECONDS: Final = 1.0
"""Maximum age in seconds of the counters that a reader of the history gets."""
_log = logging.getLogger("infergate")


class HistorySampler:
    """Adds the counters of ``source`` to a history, between ``start`` and ``stop``, while the admin
    listener serves the console."""

    def __init__(self, source: ConsoleSource, events: GatewayEvents) -> None:
        self._source: Final = source
        self.history: Final = TrafficHistory(events)
        self._sampled_at = float("-inf")
        self._reading: asyncio.Task[Sequence[ProcessSnapshot]] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            reading = () if self._reading is None else (self._reading,)
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
        """Read the counters and the recent requests of all processes, and return them. Add the
        counters to the history unless a sample was added just before. Concurrent callers share a
        result, because a worker that does not respond delays it."""
        task = self._reading
        if task is None:
            task = self._reading = asyncio.create_task(self._read())
            task.add_done_callback(self._finish_reading)
        return await asyncio.shield(task)

    async def _read(self) -> Sequence[ProcessSnapshot]:
        processes = await self._source.recent()
        is_due = time.monotonic() - self._sampled_at >= _MIN_SECONDS
        if is_due and _is_complete(processes, self._source.workers):
            await asyncio.to_thread(add_sample, self.history, processes, time.time())
            self._sampled_at = time.monotonic()
        return processes

    def _finish_reading(self, task: asyncio.Task[Sequence[ProcessSnapshot]]) -> None:
        self._reading = None
        if not task.cancelled():
            task.exception()  # marks the error as retrieved; callers receive it


def add_sample(history: TrafficHistory, processes: Sequence[ProcessSnapshot], now: float) -> None:
    """Add the counters of all ``processes`` to ``history`` at wall-clock time ``now``."""
    from infergate.runtime.console import state  # noqa: PLC0415 - with the first sample

    flows = [flow for process in processes for flow in process.flows]
    # Pass the flows separately, because converting them to JSON would be most of the work.
    statistics = state.statistics([process._replace(flows=()) for process in processes])
    history.add(statistics, now, flows)


def _is_complete(processes: Sequence[ProcessSnapshot], workers: WorkerCounts) -> bool:
    """Return whether every serving worker has reported. If a worker does not respond in time, the
    sums fall, and would seem to rise when it responds again."""
    reported = sum(process.worker is not None for process in processes)
    return workers.wanted == 1 or reported == workers.serving
