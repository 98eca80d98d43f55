"""A slot for one worker process at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import Metric

from infergate.runtime.workers.channel import ChannelClosedError, RequestFailedError
from infergate.runtime.workers.messages import PrepareConfig
from infergate.runtime.workers.restart_backoff import RestartBackoff
from infergate.runtime.workers.worker import Worker

_PREPARE_TIMEOUT_SECONDS: Final = 30.0
"""Seconds within which a worker must prepare a configuration."""


@dataclass(slots=True)
class WorkerSlot:
    """A slot and its current worker. ``last_metrics`` has the worker's last reported metrics."""

    number: int
    worker: Worker | None = None
    is_serving: bool = False
    last_metrics: list[Metric] = field(default_factory=list)
    backoff: RestartBackoff = field(default_factory=RestartBackoff)

    async def prepare(self, message: PrepareConfig, descriptors: Sequence[int]) -> str:
        """Make the worker prepare a configuration. Return the problem, or an empty string."""
        worker = self.worker
        if worker is None:
            return ""
        try:
            worker.hand_over_sockets(descriptors)
            async with asyncio.timeout(_PREPARE_TIMEOUT_SECONDS):
                await worker.channel.request(message)
        except ChannelClosedError:
            return ""  # a new worker will start with the active configuration
        except TimeoutError:
            worker.kill()
            seconds = _PREPARE_TIMEOUT_SECONDS
            return f"worker {self.number} took longer than {seconds:g} s and was killed"
        except (RequestFailedError, OSError) as error:
            return str(error)
        return ""

    def kill(self) -> None:
        if self.worker is not None:
            self.worker.kill()


async def wait_for_exit(slots: Iterable[WorkerSlot], seconds: float | None) -> None:
    """Wait until the slots' workers have exited, but at most ``seconds``."""
    exits = [slot.worker.exited for slot in slots if slot.worker is not None]
    if exits:
        await asyncio.wait(exits, timeout=seconds)
