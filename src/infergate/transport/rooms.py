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
from typing import Final

import numpy as np
import numpy.typing as npt

from infergate.core.limits import MIB

LEAST: Final = 32 * MIB
"""Bytes. What is shorter the C library keeps (``runtime.memory``)."""
MOST: Final = 640 * MIB
IDLE: Final = 30.0
"""Seconds."""

_Memory = npt.NDArray[np.uint8]


class Rooms:
    """Gives memory out, and takes it back when nothing refers to it any more."""

    def __init__(self) -> None:
        self.most = MOST
        self._kept: list[tuple[float, _Memory]] = []  # and since when

    def room(self, size: int) -> memoryview:
        """``size`` bytes, whatever is in them. As long as nobody touches them they cost nothing, or
        nothing more."""
        if size < LEAST:
            return np.empty(size, np.uint8).data
        memory = self._fitting(size)
        view = memory[:size]
        weakref.finalize(view, self._back, memory)
        return view.data

    def _fitting(self, size: int) -> _Memory:
        """Rule 2. The last that came back: the others may never be needed again."""
        for at in reversed(range(len(self._kept))):
            if size <= self._kept[at][1].size <= 2 * size:
                return self._kept.pop(at)[1]
        return np.empty(size, np.uint8)

    def _back(self, memory: _Memory) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # nobody would let go of it
        self._kept.append((time.monotonic(), memory))
        while self.kept > self.most:
            del self._kept[0]
        loop.call_later(IDLE, self.let_go)

    def let_go(self) -> None:
        """Of what nobody has used for long enough."""
        since = time.monotonic() - IDLE
        self._kept = [each for each in self._kept if each[0] > since]

    @property
    def kept(self) -> int:
        """Bytes that nobody uses."""
        return sum(memory.size for _, memory in self._kept)


ROOMS: Final = Rooms()
"""Those of the process."""
room: Final = ROOMS.room


def keep_at_most(size: int) -> None:
    """Keep no more than ``size`` bytes that nobody uses, and never more than ``MOST``."""
    ROOMS.most = min(size, MOST)
