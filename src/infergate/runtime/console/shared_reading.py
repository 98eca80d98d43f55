"""A slow reading whose result concurrent callers share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedReading(Generic[T]):
    """Reads a slow source for its callers. At most one reading runs at a time, so that readings do
    not accumulate while the source does not respond. Callers share a reading that has not begun, so
    no result is older than its request."""

    def __init__(self) -> None:
        self._last: asyncio.Task[T] | None = None
        """The last requested reading, until it ends."""
        self._has_begun = False
        """Whether ``_last`` has begun to read."""

    async def get(self, read: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a reading that begins after this request. ``read`` is not kept
        after the reading. Raises the errors of ``read``."""
        task = self._last
        if task is None or self._has_begun:
            task = self._last = asyncio.create_task(self._read_after(task, read))
            task.add_done_callback(self._finish)
            self._has_begun = False
        return await asyncio.shield(task)

    async def wait(self) -> None:
        """Wait until no reading runs."""
        if self._last is not None:
            await asyncio.wait({self._last})

    async def _read_after(
        self, previous: asyncio.Task[T] | None, read: Callable[[], Awaitable[T]]
    ) -> T:
        if previous is not None:
            await asyncio.wait({previous})
        self._has_begun = True
        return await read()

    def _finish(self, task: asyncio.Task[T]) -> None:
        if self._last is task:
            self._last = None
        if not task.cancelled():
            task.exception()  # marks the error as retrieved; callers receive it
