"""The file that the processes share, as one of them sees it.

*Rule 1.* It stays mapped at one place as long as the process lives: so the place of a buffer in the
file is told by its address.
*Rule 2.* Pages are had from the system before they are used: where there is none, that is an
OSError, and not a SIGBUS.
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
Memory = npt.NDArray[np.uint8]
SPACE: Final = 8192 * MIB
"""Its length. It takes memory where it was written to."""
LONG: Final = 64 * KIB
"""Buffers from this size on go through it."""


class Mapped:
    """The file ``fd`` as one of the processes sees it."""

    def __init__(self, fd: int) -> None:
        self.fd: Final = fd
        self._map: Final = mmap.mmap(fd, SPACE)
        self.bytes: Final[Memory] = np.frombuffer(self._map, np.uint8)
        self._begin: Final = _address(self.bytes)

    def view(self, place: int, size: int) -> memoryview:
        """``size`` bytes from ``place``."""
        return self.bytes[place : place + size].data

    def place(self, buffer: Buffer | Memory) -> int | None:
        """Where ``buffer`` lies; None: elsewhere."""
        try:
            place = _address(buffer) - self._begin
        except TypeError:  # it is read only, so it is none of these
            return None
        return place if 0 <= place < SPACE else None

    def have(self, begin: int, end: int) -> None:
        """Rule 2. Raises OSError."""
        if begin < end:
            os.posix_fallocate(self.fd, begin, end - begin)

    def give_back(self, place: int, size: int) -> None:
        """The memory of whole pages; the file stays as long."""
        self._map.madvise(mmap.MADV_REMOVE, place, size)


def _address(buffer: Buffer | Memory) -> int:
    """Of one that is not empty. numpy takes five times as long to tell."""
    return ctypes.addressof(_Byte.from_buffer(buffer))  # type: ignore[arg-type]  # an array is one


def whole_pages(size: int) -> int:
    """The bytes of all pages that ``size`` bytes need."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
