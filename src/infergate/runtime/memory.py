"""Makes the C library return freed memory less eagerly, and exempts long-lived objects from garbage
collection.

A JSON tensor passes through buffers of megabytes. By default, glibc returns the top of the heap to
the kernel when 128 KiB of the top are free, and the next request has to fault in every page again
(docs/decisions/0007-malloc-tuning.md). Modules and routes are some hundred thousand objects, and a
full collection visits all of them while requests wait
(docs/decisions/0019-less-work-for-small-requests.md)."""

from __future__ import annotations

import ctypes
import gc
import os
from typing import Final

from infergate.core.limits import MIB

_TRIM_THRESHOLD: Final = -1
_TOP_PAD: Final = -2
_MMAP_THRESHOLD: Final = -3
"""Parameters of mallopt(3), as numbered in glibc's malloc.h."""
MAX_FREED_BYTES: Final = 64 * MIB


def keep_freed_memory(max_bytes: int = MAX_FREED_BYTES) -> None:
    """Let the process keep up to ``max_bytes`` of freed memory. The call has no effect without
    glibc, and does not override settings in the environment."""
    settings = {
        "MALLOC_TRIM_THRESHOLD_": (_TRIM_THRESHOLD, max_bytes),
        "MALLOC_TOP_PAD_": (_TOP_PAD, 16 * MIB),
        "MALLOC_MMAP_THRESHOLD_": (_MMAP_THRESHOLD, 32 * MIB),
    }
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for variable, (parameter, value) in settings.items():
        if variable not in os.environ:
            mallopt(parameter, value)


def release_freed_memory() -> None:
    """Return freed memory to the kernel, if the C library is glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def freeze_objects() -> None:
    """Collect garbage, then exempt the remaining objects from collections until the next call."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
