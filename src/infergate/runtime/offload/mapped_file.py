"""The file shared by the serving process and its helpers, as mapped into one process.

*Rule 1.* The mapping never moves, so a buffer's address gives its offset in the file.
*Rule 2.* Pages are allocated before they are used, so that a lack of memory is an OSError, not a
SIGBUS.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Final

import numpy as np
import numpy.typing as npt

from infergate.core.limits import KIB, MIB
from infergate.core.tensor import Buffer

_Byte = ctypes.c_char
ByteArray = npt.NDArray[np.uint8]
FILE_BYTES: Final = 8192 * MIB
"""Length of the file. Only pages that were allocated use memory."""
MIN_SHARED_BYTES: Final = 64 * KIB
"""Buffers of at least this size are passed through the file."""


class MappedFile:
    """The file ``fd``, mapped into this process."""

    def __init__(self, fd: int) -> None:
        self.fd: Final = fd
        self._map: Final = mmap.mmap(fd, FILE_BYTES)
        self.data: Final[ByteArray] = np.frombuffer(self._map, np.uint8)
        self._base_address: Final = _address_of(self.data)

    def view(self, offset: int, size: int) -> memoryview:
        """Return ``size`` bytes at the offset."""
        return self.data[offset : offset + size].data

    def offset_of(self, buffer: Buffer | ByteArray) -> int | None:
        """Return the offset of ``buffer`` in the file; None if it lies elsewhere."""
        try:
            offset = _address_of(buffer) - self._base_address
        except TypeError:  # read-only buffers never lie in the file
            return None
        return offset if 0 <= offset < FILE_BYTES else None

    def allocate(self, begin: int, end: int) -> None:
        """Allocate the pages of a range of the file (Rule 2). Raises OSError."""
        if begin < end:
            os.posix_fallocate(self.fd, begin, end - begin)

    def release(self, offset: int, size: int) -> None:
        """Release the memory of whole pages. The file keeps its length."""
        self._map.madvise(mmap.MADV_REMOVE, offset, size)


def _address_of(buffer: Buffer | ByteArray) -> int:
    """Return the address of a buffer that is not empty. numpy's own way takes five times as
    long."""
    return ctypes.addressof(_Byte.from_buffer(buffer))  # type: ignore[arg-type]  # an array is one


def round_to_pages(size: int) -> int:
    """Round ``size`` up to whole pages."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
