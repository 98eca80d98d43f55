"""Memory shared by the serving process and its helpers.

*Strategy.* Blocks of one file (``mapped_file``) are lent out like the buffers of long bodies
(``transport.net.buffer_pool``). Data for a helper is copied into a block. Once that block is free,
the next body of its size is received into it directly, and a helper reads it in place. Results stay
where a helper wrote them.
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
"""Bodies of at least this size are received into shared memory."""
MOST: Final = 64 * MIB
"""Maximum bytes of free blocks kept, for half a minute."""


class Shared(Rooms):
    """A buffer pool that lends blocks of a new file."""

    def __init__(self, most: int = MOST) -> None:
        super().__init__(LONG, most)
        fd = os.memfd_create("infergate-aside")
        os.ftruncate(fd, SPACE)
        self.mapped: Final = Mapped(fd)
        self._end = 0  # of the last block
        self._empty: Final = defaultdict[int, list[int]](list)  # free offsets by block size
        self._had: Final = defaultdict[int, int](int)  # allocated bytes by block offset

    def received(self, size: int) -> memoryview:
        """Return memory for a body of announced ``size``. If no free block is kept, it is ordinary
        memory, which costs nothing until bytes arrive."""
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
        """Return ``size`` writable, allocated bytes. Raises OSError."""
        view = self.room(size)
        self._fill(view)
        return view

    def _fill(self, view: memoryview) -> None:
        offset = self.mapped.place(view)
        if offset is not None:
            self.mapped.have(offset + self._had[offset], offset + len(view))
            self.has(offset, len(view))

    def had(self, place: int) -> int:
        """Return the number of allocated bytes of a block."""
        return self._had[place]

    def has(self, place: int, size: int) -> None:
        """Record that ``size`` bytes of a block are allocated."""
        self._had[place] = max(self._had[place], whole_pages(size))

    def _new(self, size: int) -> Memory:
        size = 1 << (size - 1).bit_length()
        free_offsets = self._empty[size]
        if free_offsets:
            offset = free_offsets.pop()
        elif self._end + size <= SPACE:
            offset, self._end = self._end, self._end + size
        else:
            return super()._new(size)
        return self.mapped.bytes[offset : offset + size]

    def _gone(self, memory: Memory) -> None:
        offset = self.mapped.place(memory)
        if offset is not None:
            self._had.pop(offset, None)
            self.mapped.give_back(offset, memory.size)
            self._empty[memory.size].append(offset)

    def _weight(self, memory: Memory) -> int:
        offset = self.mapped.place(memory)
        return memory.size if offset is None else self._had[offset]


@functools.cache
def shared() -> Shared:
    """Return this process's shared memory, creating it on first use; from then on bodies are
    received into it. Raises OSError."""
    buffer = Shared(min(rooms.ROOMS.most, MOST))
    rooms.ROOMS.below = buffer.received
    return buffer
