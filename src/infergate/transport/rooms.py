"""A pool of buffers for long bodies, kept for a while for the next body.

The C library returns blocks of this length to the system at once. New memory must be cleared by
the kernel, and a virtual machine may have to request it from its host, which can take longer than
all other work on a tensor (docs/decisions/0028-buffer-pool.md).

- Rule 1. At most ``max_unused_bytes`` are kept unused, for ``IDLE_SECONDS``.
- Rule 2. A buffer is at most twice as long as requested, so counting bodies counts memory.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from infergate.core.limits import MIB

LEAST: Final = 32 * MIB
"""Bytes. The C library keeps shorter blocks itself (``runtime.memory``)."""
MOST: Final = 640 * MIB
IDLE: Final = 30.0

Memory = npt.NDArray[np.uint8]


def plain(size: int) -> memoryview:
    """Allocate ``size`` bytes from the C library."""
    return np.empty(size, np.uint8).data


class Rooms:
    """Allocates buffers and takes them back when nothing refers to them any more.

    Buffers shorter than ``min_bytes`` come from ``allocate_small`` instead.
    """

    def __init__(self, least: int = LEAST, most: int = MOST) -> None:
        self.most = most
        self.below: Callable[[int], memoryview] = plain
        self.kept = 0
        """Bytes in unused buffers."""
        self._least: Final = least
        self._unused: list[tuple[float, Memory, int]] = []  # (unused since, buffer, resident bytes)
        self._due = 0.0  # time of the next sweep

    def room(self, size: int) -> memoryview:
        """Return a buffer of ``size`` bytes with arbitrary contents.

        Untouched pages of a new buffer use no memory.
        """
        if size < self._least:
            return self.below(size)
        memory = self._again(size)
        return self._lent(self._new(size) if memory is None else memory, size)

    def _lent(self, memory: Memory, size: int) -> memoryview:
        view = memory[:size]
        weakref.finalize(view, self._back, memory)
        return view.data

    def _again(self, size: int) -> Memory | None:
        """Return the unused buffer that came back last and fits (Rule 2); older ones may expire."""
        for index in reversed(range(len(self._unused))):
            if size <= self._unused[index][1].size <= 2 * size:
                _, memory, weight = self._unused.pop(index)
                self.kept -= weight
                return memory
        return None

    def _new(self, size: int) -> Memory:
        return np.empty(size, np.uint8)

    def _weight(self, memory: Memory) -> int:
        """Return the number of resident bytes of ``memory``."""
        return memory.size

    def _gone(self, memory: Memory) -> None:
        """Handle a buffer that leaves the pool."""

    def _back(self, memory: Memory) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # without a loop nothing would drop it later
            self._gone(memory)
            return
        now, weight = time.monotonic(), self._weight(memory)
        self._unused.append((now, memory, weight))
        self.kept += weight
        while self.kept > self.most:
            self._drop()
        if now >= self._due:  # no sweep is scheduled, or its loop has ended
            self._look_later(loop, now)

    def _drop(self) -> None:
        _, memory, weight = self._unused.pop(0)
        self.kept -= weight
        self._gone(memory)

    def _look_later(self, loop: asyncio.AbstractEventLoop, since: float) -> None:
        self._due = since + IDLE
        loop.call_later(max(0.0, self._due - time.monotonic()), self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self.let_go()
        self._due = 0.0
        if self._unused:
            self._look_later(loop, self._unused[0][0])

    def let_go(self) -> None:
        """Drop the buffers that have been unused for ``IDLE_SECONDS``."""
        since = time.monotonic() - IDLE
        while self._unused and self._unused[0][0] <= since:
            self._drop()


ROOMS: Final = Rooms()
"""The pool of this process."""
room: Final = ROOMS.room


def keep_at_most(size: int) -> None:
    """Keep at most ``size`` unused bytes, and never more than ``MAX_UNUSED_BYTES``."""
    ROOMS.most = min(size, MOST)
