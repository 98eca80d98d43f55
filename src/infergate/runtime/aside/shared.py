"""Memory that this process and those beside it have mapped.

*Strategy.* Blocks of one file (``mapped``) are lent like any memory for long bodies
(``transport.rooms``). What a helper is to read is copied into one; once that is free, a body of its
size is received into it, and a helper finds it where it is. What a helper answers stays where it
was written.
"""

from __future__ import annotations

import functools
import os
from collections import defaultdict
from typing import Final

from infergate.core.limits import KIB, MIB
from infergate.runtime.aside.mapped import LONG, SPACE, Mapped, Memory, whole_pages
from infergate.transport import rooms
from infergate.transport.rooms import Rooms, plain

_RECEIVED: Final = 256 * KIB
"""Bodies from this size on are received into it."""
MOST: Final = 64 * MIB
"""Kept though nobody uses it, for half a minute."""


class Shared(Rooms):
    """Lends blocks of a new file."""

    def __init__(self, most: int = MOST) -> None:
        super().__init__(LONG, most)
        fd = os.memfd_create("infergate-aside")
        os.ftruncate(fd, SPACE)
        self.mapped: Final = Mapped(fd)
        self._end = 0  # of all blocks
        self._empty: Final = defaultdict[int, list[int]](list)  # places of those without memory
        self._had: Final = defaultdict[int, int](int)  # bytes of each that have memory

    def received(self, size: int) -> memoryview:
        """Memory for a body of ``size`` bytes that is announced. Where none is kept here it is
        other memory, which costs nothing before bytes come."""
        memory = self._again(size) if size >= _RECEIVED else None
        if memory is None:
            return plain(size)
        view = self._lent(memory, size)
        try:
            self._fill(view)
        except OSError:
            return plain(size)
        return view

    def filled(self, size: int) -> memoryview:
        """``size`` bytes that may be written to. Raises OSError."""
        view = self.room(size)
        self._fill(view)
        return view

    def _fill(self, view: memoryview) -> None:
        place = self.mapped.place(view)
        if place is not None:
            self.mapped.have(place + self._had[place], place + len(view))
            self.has(place, len(view))

    def had(self, place: int) -> int:
        """How many bytes of the block at ``place`` have memory."""
        return self._had[place]

    def has(self, place: int, size: int) -> None:
        """That so many have."""
        self._had[place] = max(self._had[place], whole_pages(size))

    def _new(self, size: int) -> Memory:
        size = 1 << (size - 1).bit_length()
        empty = self._empty[size]
        if empty:
            place = empty.pop()
        elif self._end + size <= SPACE:
            place, self._end = self._end, self._end + size
        else:
            return super()._new(size)
        return self.mapped.bytes[place : place + size]

    def _gone(self, memory: Memory) -> None:
        place = self.mapped.place(memory)
        if place is not None:
            self._had.pop(place, None)
            self.mapped.give_back(place, memory.size)
            self._empty[memory.size].append(place)

    def _weight(self, memory: Memory) -> int:
        place = self.mapped.place(memory)
        return memory.size if place is None else self._had[place]


@functools.cache
def shared() -> Shared:
    """That of this process, which receives into it from now on. Raises OSError."""
    made = Shared(min(rooms.ROOMS.most, MOST))
    rooms.ROOMS.below = made.received
    return made
