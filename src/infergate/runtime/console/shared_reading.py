"""A slow reading whose result concurrent callers share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(eq=False)
class SharedReading(Generic[T]):
    """Calls ``read`` for its callers. At most one call runs at a time, because the source may not
    respond. Callers share a call that has not begun, so no result is older than its request."""

    read: Callable[[], Awaitable[T]]
    _last: asyncio.Task[T] | None = None
    """The last requested call, until it ends."""
    _has_begun: bool = False
    """Whether ``_last`` has called ``read``."""

    async def get(self) -> T:
        """Return the result of a call that begins after this request. Raises what ``read``
        raises."""
        task = self._last
        if task is None or self._has_begun:
            task = self._last = asyncio.create_task(self._read_after(task))
            task.add_done_callback(self._finish)
            self._has_begun = False
        return await asyncio.shield(task)

    async def wait(self) -> None:
        """Wait until no call runs."""
        if self._last is not None:
            await asyncio.wait({self._last})

    async def _read_after(self, previous: asyncio.Task[T] | None) -> T:
        if previous is not None:
            await asyncio.wait({previous})
        self._has_begun = True
        return await self.read()

    def _finish(self, task: asyncio.Task[T]) -> None:
        if self._last is task:
            self._last = None
        if not task.cancelled():
            task.exception()  # marks the error as retrieved; callers receive it
