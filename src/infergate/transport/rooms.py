"""Memory for long bodies, which stays for a while for the next one.

*Why.* The C library gives memory of this length back to the system at once. What is new must be
cleared by the kernel, and a virtual machine may have to ask its host for it, which can take longer
than all else that is done for a tensor (docs/decisions/0028-memory-for-long-bodies.md).

*Rule 1.* At most ``most`` bytes are kept that nobody uses, for ``IDLE`` seconds.
*Rule 2.* What is given out is never more than twice what was asked for: who counts bodies counts
memory.
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
"""Bytes. What is shorter the C library keeps (``runtime.memory``)."""
MOST: Final = 640 * MIB
IDLE: Final = 30.0
"""Seconds."""

Memory = npt.NDArray[np.uint8]


def plain(size: int) -> memoryview:
    """``size`` bytes of the C library's."""
    return np.empty(size, np.uint8).data


class Rooms:
    """Gives memory out, and takes it back when nothing refers to it any more.

    What is shorter than ``least`` is from elsewhere: ``below`` gives it out.
    """

    def __init__(self, least: int = LEAST, most: int = MOST) -> None:
        self.most = most
        self.below: Callable[[int], memoryview] = plain
        self.kept = 0
        """Bytes that nobody uses."""
        self._least: Final = least
        self._unused: list[tuple[float, Memory, int]] = []  # since when, and the bytes it keeps
        self._due = 0.0  # when the oldest is looked at

    def room(self, size: int) -> memoryview:
        """``size`` bytes, whatever is in them. As long as nobody touches them they cost nothing, or
        nothing more."""
        if size < self._least:
            return self.below(size)
        memory = self._again(size)
        return self._lent(self._new(size) if memory is None else memory, size)

    def _lent(self, memory: Memory, size: int) -> memoryview:
        view = memory[:size]
        weakref.finalize(view, self._back, memory)
        return view.data

    def _again(self, size: int) -> Memory | None:
        """Rule 2. The last that came back: the others may never be needed again."""
        for at in reversed(range(len(self._unused))):
            if size <= self._unused[at][1].size <= 2 * size:
                _, memory, weight = self._unused.pop(at)
                self.kept -= weight
                return memory
        return None

    def _new(self, size: int) -> Memory:
        return np.empty(size, np.uint8)

    def _weight(self, memory: Memory) -> int:
        """Bytes of ``memory`` that the system has given."""
        return memory.size

    def _gone(self, memory: Memory) -> None:
        """``memory`` is not kept any longer."""

    def _back(self, memory: Memory) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # nobody would let go of it
            self._gone(memory)
            return
        now, weight = time.monotonic(), self._weight(memory)
        self._unused.append((now, memory, weight))
        self.kept += weight
        while self.kept > self.most:
            self._drop()
        if now >= self._due:  # nobody looks, or the loop that would have is no more
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
        """Of what nobody has used for long enough."""
        since = time.monotonic() - IDLE
        while self._unused and self._unused[0][0] <= since:
            self._drop()


ROOMS: Final = Rooms()
"""Those of the process."""
room: Final = ROOMS.room


def keep_at_most(size: int) -> None:
    """Keep no more than ``size`` bytes that nobody uses, and never more than ``MOST``."""
    ROOMS.most = min(size, MOST)
