"""The number of connections of each worker process, in shared memory."""

from __future__ import annotations

import mmap
import os
from typing import Final

_ABSENT: Final = -1
_PLACE: Final = 4  # bytes of one slot of one slot
_SLACK: Final = 8
"""A lead of less than one part in ``_SLACK`` is ignored: many connections spread evenly enough by
chance."""


class Loads:
    """Connection counts per worker, in the shared memory file ``fd``.

    ``slot`` is the index of this process. The caller keeps ownership of the file.
    """

    def __init__(self, fd: int, mine: int) -> None:
        self._map: Final = mmap.mmap(fd, 0)
        self._places: Final = memoryview(self._map).cast("i")
        self._mine: Final = mine

    @staticmethod
    def file(places: int) -> int:
        """Create shared memory with ``slots`` slots, all marked absent, and return its file
        descriptor."""
        fd = os.memfd_create("infergate-loads")
        os.write(fd, b"\xff" * _PLACE * places)
        return fd

    def tell(self, connections: int) -> None:
        """Publish the number of connections of this process."""
        self._places[self._mine] = connections

    def leave(self, place: int | None = None) -> None:
        """Mark this process, or the one in ``slot``, as not accepting."""
        self._places[self._mine if place is None else place] = _ABSENT

    def told(self) -> tuple[int, ...]:
        """Return the connection counts by slot; -1 marks an absent process."""
        return tuple(self._places)

    def others(self) -> tuple[int, ...]:
        """Return the counts of the other slots."""
        counts = self.told()
        return counts[: self._mine] + counts[self._mine + 1 :]

    @property
    def is_fuller(self) -> bool:
        """Whether another process should take the next connection."""
        mine = self._places[self._mine]
        lowest = min((count for count in self._places if count != _ABSENT), default=mine)
        return mine > lowest + lowest // _SLACK
