"""A slot for one worker process at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import Metric

from infergate.core.log_events import WORKER_OUTDATED
from infergate.plugin_host.runner import CLOSE_SECONDS
from infergate.runtime.plugins import plugin_seconds
from infergate.runtime.workers.channel import ChannelClosedError, RequestFailedError
from infergate.runtime.workers.messages import PrepareConfig, WorkerCommand
from infergate.runtime.workers.restart_backoff import RestartBackoff
from infergate.runtime.workers.worker import Worker

_log = logging.getLogger("infergate")
_PREPARE_SECONDS: Final = 30.0
"""Seconds within which a worker must prepare a configuration, excluding the creation of
plug-ins."""
_DISCARD_SECONDS: Final = 2 * CLOSE_SECONDS
"""Seconds within which a worker must discard a configuration and close its plug-ins."""


@dataclass(slots=True)
class WorkerSlot:
    """A slot and its current worker. ``last_metrics`` has the worker's last reported metrics."""

    number: int
    worker: Worker | None = None
    is_serving: bool = False
    last_metrics: list[Metric] = field(default_factory=list)
    backoff: RestartBackoff = field(default_factory=RestartBackoff)

    async def prepare(self, message: PrepareConfig, descriptors: Sequence[int]) -> str | None:
        """Make the worker prepare a configuration. Return the problem, an empty string on success,
        or None if the worker has ended."""
        worker = self.worker
        if worker is None:
            return None
        seconds = _PREPARE_SECONDS + plugin_seconds(message.config)
        try:
            worker.hand_over_sockets(descriptors)
            async with asyncio.timeout(seconds):
                await worker.channel.request(message)
        except ChannelClosedError:
            return None  # a new worker will start with the active configuration
        except TimeoutError:
            suffix = "" if await _abandon(worker) else " and was killed"
            return (
                f"worker {self.number} took longer than {seconds:g} s to prepare the configuration"
                f"{suffix}"
            )
        except (RequestFailedError, OSError) as error:
            return str(error)
        return ""

    def kill_if_starting(self) -> None:
        """Kill the worker if it is still starting with a replaced configuration. The supervisor
        then restarts it."""
        if self.worker is not None and self.worker.is_running and not self.is_serving:
            _log.info(
                "worker %d is starting with a replaced configuration and is restarted",
                self.number,
                extra=WORKER_OUTDATED,
            )
            self.worker.is_outdated = True
            self.worker.kill()

    def kill(self) -> None:
        if self.worker is not None:
            self.worker.kill()


async def prepare_all(
    slots: Sequence[WorkerSlot], message: PrepareConfig, descriptors: Sequence[int]
) -> str | None:
    """Make all workers prepare a configuration. Return the first problem, an empty string on
    success, or None if all workers have ended. If the caller is cancelled, all workers discard the
    configuration."""
    workers = [slot.worker for slot in slots if slot.worker is not None]
    try:
        problems = await asyncio.gather(*(slot.prepare(message, descriptors) for slot in slots))
    except asyncio.CancelledError:
        await asyncio.gather(*map(_abandon, workers))
        raise
    return next(filter(None, problems), "" if "" in problems else None)


async def _abandon(worker: Worker) -> bool:
    """Make ``worker`` stop preparing a configuration, and return whether it still serves. A worker
    that does not respond is killed."""
    try:
        async with asyncio.timeout(_DISCARD_SECONDS):
            await worker.channel.request(WorkerCommand.DISCARD_PREPARED)
    except (ChannelClosedError, RequestFailedError, TimeoutError):
        worker.kill()
        return False
    return True


async def wait_for_exit(slots: Iterable[WorkerSlot], seconds: float | None) -> None:
    """Wait until the slots' workers have exited, for at most ``seconds`` (None: without limit)."""
    exits = [slot.worker.exited for slot in slots if slot.worker is not None]
    if exits:
        await asyncio.wait(exits, timeout=seconds)
