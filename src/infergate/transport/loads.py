"""The number of connections of each worker process, in memory that all of them share."""

from __future__ import annotations

import mmap
import os
from typing import Final

_ABSENT: Final = -1
_PLACE: Final = 4  # bytes
_SLACK: Final = 8
"""One part in so many is no difference: many connections are spread well enough by chance."""


class Loads:
    """How many connections each of several processes has, in the shared memory of the file ``fd``;
    ``mine`` is this one's place, from 0 on. The file remains the caller's."""

    def __init__(self, fd: int, mine: int) -> None:
        self._map: Final = mmap.mmap(fd, 0)
        self._places: Final = memoryview(self._map).cast("i")
        self._mine: Final = mine

    @staticmethod
    def file(places: int) -> int:
        """The descriptor of new memory for so many processes, none of which is there yet."""
        fd = os.memfd_create("infergate-loads")
        os.write(fd, b"\xff" * _PLACE * places)
        return fd

    def tell(self, connections: int) -> None:
        """Have the others know that this process has so many."""
        self._places[self._mine] = connections

    def leave(self, place: int | None = None) -> None:
        """Have them know that this process, or the one of ``place``, accepts nobody."""
        self._places[self._mine if place is None else place] = _ABSENT

    def told(self) -> tuple[int, ...]:
        """By place; -1: nobody is there."""
        return tuple(self._places)

    def others(self) -> tuple[int, ...]:
        """Those of the other places."""
        told = self.told()
        return told[: self._mine] + told[self._mine + 1 :]

    @property
    def is_fuller(self) -> bool:
        """Whether another process is the one to take the next connection."""
        mine = self._places[self._mine]
        least = min((each for each in self._places if each != _ABSENT), default=mine)
        return mine > least + least // _SLACK
