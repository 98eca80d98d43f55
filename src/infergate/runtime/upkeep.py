"""The tasks that look after backends' endpoints as long as a configuration serves.

*Rule.* A loop that fails by a bug is told of in the log and ends; all others, and requests, go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from infergate.backends.base import Backend, Watched

_log = logging.getLogger(__name__)


class Upkeep:
    """Of ``backends``, as far as there is anything to do."""

    def __init__(self, backends: Iterable[Backend]) -> None:
        watched = (each for each in backends if isinstance(each, Watched))
        self._loops: Final = [loop for each in watched for loop in each.loops()]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(_run(each)) for each in self._loops]

    async def stop(self) -> None:
        """End."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run(loop: Callable[[], Awaitable[None]]) -> None:
    try:
        await loop()
    except Exception:  # noqa: BLE001 - the last line: the rule above
        _log.exception("a bug: endpoints of a backend are no longer looked after")
