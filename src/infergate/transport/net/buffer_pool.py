"""A pool of buffers for long bodies, which keeps unused buffers for a while.

The C library returns long blocks to the system immediately, and allocating new memory can
take longer than all other work on a tensor (docs/decisions/0028-buffer-pool.md). A buffer is at
most twice as long as requested, so the buffers in use take at most twice the memory of the
bodies."""

from __future__ import annotations

import asyncio
import time
import weakref
from typing import Final

import numpy as np
import numpy.typing as npt

from infergate.core.limits import MIB

MIN_POOLED_BYTES: Final = 32 * MIB
"""Minimum size in bytes of a pooled buffer. The C library keeps shorter blocks itself
(``runtime.memory``)."""
MAX_UNUSED_BYTES: Final = 640 * MIB
IDLE_SECONDS: Final = 30.0

Memory = npt.NDArray[np.uint8]


class BufferPool:
    """Allocates buffers, and takes them back when they are no longer referenced. At most
    ``max_unused_bytes`` of unused buffers are kept, each for ``IDLE_SECONDS``."""

    def __init__(self, max_unused_bytes: int = MAX_UNUSED_BYTES) -> None:
        self.max_unused_bytes = max_unused_bytes
        self.unused_bytes = 0
        self._unused: list[tuple[float, Memory]] = []  # (unused since, buffer)
        self._next_sweep = 0.0

    def allocate(self, size: int) -> memoryview:
        """Return a buffer of ``size`` bytes with arbitrary content. New pages use no memory until
        they are written."""
        if size < MIN_POOLED_BYTES:
            return np.empty(size, np.uint8).data
        memory = self._take_unused(size)
        if memory is None:
            memory = np.empty(size, np.uint8)
        view = memory[:size]
        weakref.finalize(view, self._take_back, memory)
        return view.data

    def _take_unused(self, size: int) -> Memory | None:
        """Return the most recently released buffer that fits, so that older buffers expire."""
        for index in reversed(range(len(self._unused))):
            if size <= self._unused[index][1].size <= 2 * size:
                _, memory = self._unused.pop(index)
                self.unused_bytes -= memory.size
                return memory
        return None

    def _take_back(self, memory: Memory) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # without a loop, no timer could drop the buffer
            return
        now = time.monotonic()
        self._unused.append((now, memory))
        self.unused_bytes += memory.size
        while self.unused_bytes > self.max_unused_bytes:
            self._drop()
        if now >= self._next_sweep:  # no sweep is scheduled, or its loop has ended
            self._schedule_sweep(loop, now)

    def _drop(self) -> None:
        _, memory = self._unused.pop(0)
        self.unused_bytes -= memory.size

    def _schedule_sweep(self, loop: asyncio.AbstractEventLoop, since: float) -> None:
        self._next_sweep = since + IDLE_SECONDS
        loop.call_later(max(0.0, self._next_sweep - time.monotonic()), self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self.drop_idle()
        self._next_sweep = 0.0
        if self._unused:
            self._schedule_sweep(loop, self._unused[0][0])

    def drop_idle(self) -> None:
        """Drop the buffers that have been unused for ``IDLE_SECONDS``."""
        unused_before = time.monotonic() - IDLE_SECONDS
        while self._unused and self._unused[0][0] <= unused_before:
            self._drop()


POOL: Final = BufferPool()  # the pool of this process
allocate: Final = POOL.allocate


def limit_unused_bytes(size: int) -> None:
    """Keep at most ``size`` unused bytes, but never more than ``MAX_UNUSED_BYTES``."""
    POOL.max_unused_bytes = min(size, MAX_UNUSED_BYTES)
