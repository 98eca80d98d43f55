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
from infergate.runtime.offload.mapped_file import (
    FILE_BYTES,
    MIN_SHARED_BYTES,
    ByteArray,
    MappedFile,
    round_to_pages,
)
from infergate.transport.net import buffer_pool
from infergate.transport.net.buffer_pool import BufferPool, allocate_plain

_MIN_RECEIVED_BYTES: Final = 256 * KIB
"""Bodies of at least this size are received into shared memory."""
MAX_KEPT_BYTES: Final = 64 * MIB
"""Maximum bytes of free blocks kept, for half a minute."""


class SharedBuffer(BufferPool):
    """A buffer pool that lends blocks of a new file."""

    def __init__(self, max_kept_bytes: int = MAX_KEPT_BYTES) -> None:
        super().__init__(MIN_SHARED_BYTES, max_kept_bytes)
        fd = os.memfd_create("infergate-aside")
        os.ftruncate(fd, FILE_BYTES)
        self.mapped: Final = MappedFile(fd)
        self._end = 0  # of the last block
        self._free_offsets: Final = defaultdict[int, list[int]](list)  # free offsets by block size
        self._allocated_bytes: Final = defaultdict[int, int](int)  # allocated bytes by block offset

    def receive_buffer(self, size: int) -> memoryview:
        """Return memory for a body of announced ``size``. If no free block is kept, it is ordinary
        memory, which costs nothing until bytes arrive."""
        memory = self._take_unused(size) if size >= _MIN_RECEIVED_BYTES else None
        if memory is None:
            return allocate_plain(size)
        view = self._lend(memory, size)
        try:
            self._allocate_pages(view)
        except OSError:
            return allocate_plain(size)
        return view

    def allocate_resident(self, size: int) -> memoryview:
        """Return ``size`` writable bytes whose pages are allocated, unlike those of ``allocate``.
        Raises OSError."""
        view = self.allocate(size)
        self._allocate_pages(view)
        return view

    def _allocate_pages(self, view: memoryview) -> None:
        offset = self.mapped.offset_of(view)
        if offset is not None:
            self.mapped.allocate(offset + self._allocated_bytes[offset], offset + len(view))
            self.record_allocated(offset, len(view))

    def allocated_bytes(self, offset: int) -> int:
        """Return the number of allocated bytes of a block."""
        return self._allocated_bytes[offset]

    def record_allocated(self, offset: int, size: int) -> None:
        """Record that ``size`` bytes of a block are allocated."""
        self._allocated_bytes[offset] = max(self._allocated_bytes[offset], round_to_pages(size))

    def _create(self, size: int) -> ByteArray:
        size = 1 << (size - 1).bit_length()
        free_offsets = self._free_offsets[size]
        if free_offsets:
            offset = free_offsets.pop()
        elif self._end + size <= FILE_BYTES:
            offset, self._end = self._end, self._end + size
        else:
            return super()._create(size)
        return self.mapped.data[offset : offset + size]

    def _dropped(self, memory: ByteArray) -> None:
        offset = self.mapped.offset_of(memory)
        if offset is not None:
            self._allocated_bytes.pop(offset, None)
            self.mapped.release(offset, memory.size)
            self._free_offsets[memory.size].append(offset)

    def _resident_bytes(self, memory: ByteArray) -> int:
        offset = self.mapped.offset_of(memory)
        return memory.size if offset is None else self._allocated_bytes[offset]


@functools.cache
def get_shared_buffer() -> SharedBuffer:
    """Return this process's shared memory, creating it on first use; from then on bodies are
    received into it. Raises OSError."""
    buffer = SharedBuffer(min(buffer_pool.POOL.max_unused_bytes, MAX_KEPT_BYTES))
    buffer_pool.POOL.allocate_small = buffer.receive_buffer
    return buffer
