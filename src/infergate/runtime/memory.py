"""How the C library gives freed memory back, and how much of it Python looks through for cycles:
both less eagerly.

A JSON tensor passes through buffers of megabytes. By default glibc returns the top of the heap to
the kernel as soon as 128 KiB of it are free, so the next request faults every page in again; see
docs/decisions/0007-keeping-freed-memory.md for what that costs. Modules and routes are some hundred
thousand objects, and a full collection goes through all of them while requests wait; see
docs/decisions/0019-less-work-for-small-requests.md.
"""

from __future__ import annotations

import ctypes
import gc
import os
from typing import Final

from infergate.core.limits import MIB

_TRIM_THRESHOLD: Final = -1
_TOP_PAD: Final = -2
_MMAP_THRESHOLD: Final = -3
"""The numbers of mallopt(3)'s parameters in glibc's malloc.h."""
_SETTINGS: Final = {
    "MALLOC_TRIM_THRESHOLD_": (_TRIM_THRESHOLD, 64 * MIB),
    "MALLOC_TOP_PAD_": (_TOP_PAD, 16 * MIB),
    "MALLOC_MMAP_THRESHOLD_": (_MMAP_THRESHOLD, 32 * MIB),
}


def keep_freed_memory() -> None:
    """Let up to 64 MiB of freed memory stay with the process. Does nothing where the C library is
    not glibc, and leaves alone what the environment has set."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for variable, (parameter, value) in _SETTINGS.items():
        if variable not in os.environ:
            mallopt(parameter, value)


def release_freed_memory() -> None:
    """Return what is kept freed to the kernel, where the C library is glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def settle() -> None:
    """What there is now stays for long: the collector of cycles looks at it now, and not again
    before this is called again."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
