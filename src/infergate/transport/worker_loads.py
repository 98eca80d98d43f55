"""The number of connections of each worker process, published in shared memory."""

from __future__ import annotations

import mmap
import os
from typing import Final

_ABSENT: Final = -1
_SLOT_BYTES: Final = 4  # a C int
_TOLERANCE: Final = 8
"""A process is overloaded only if it has over 1/``_TOLERANCE`` more connections than another
process, because connections are never spread exactly evenly."""


class WorkerLoads:
    """Connection counts per worker, in the shared memory file ``fd``. ``slot`` is the index of this
    process."""

    def __init__(self, fd: int, slot: int) -> None:
        self._map: Final = mmap.mmap(fd, 0)
        self._counts: Final = memoryview(self._map).cast("i")
        self._slot: Final = slot

    @staticmethod
    def create_file(slots: int) -> int:
        """Create shared memory with ``slots`` slots that are marked as absent. Return its file
        descriptor."""
        fd = os.memfd_create("infergate-loads")
        os.write(fd, b"\xff" * _SLOT_BYTES * slots)
        return fd

    def report(self, connections: int) -> None:
        """Publish the number of connections of this process."""
        self._counts[self._slot] = connections

    def mark_absent(self, slot: int | None = None) -> None:
        """Mark this process, or the process in ``slot``, as absent."""
        self._counts[self._slot if slot is None else slot] = _ABSENT

    def counts(self) -> tuple[int, ...]:
        """Return the connection counts by slot. A count of -1 marks an absent process."""
        return tuple(self._counts)

    def others(self) -> tuple[int, ...]:
        """Return the counts of the other slots."""
        counts = self.counts()
        return counts[: self._slot] + counts[self._slot + 1 :]

    @property
    def is_overloaded(self) -> bool:
        """Whether another process should take the next connection."""
        own = self._counts[self._slot]
        lowest = min((count for count in self._counts if count != _ABSENT), default=own)
        return own > lowest + lowest // _TOLERANCE
