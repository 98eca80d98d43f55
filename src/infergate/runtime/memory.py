"""Tunes the C library to return freed memory less eagerly, and the garbage collector to look for
cycles less often; and moves the heap into huge pages.

A JSON tensor passes through buffers of megabytes. By default glibc returns the top of the heap to
the kernel when 128 KiB of it are free, so the next request faults every page in again
(docs/decisions/0007-malloc-tuning.md). Modules and routes are some hundred thousand objects, and a
full collection visits all of them while requests wait
(docs/decisions/0019-less-work-for-small-requests.md). A process that wakes up for one request finds
its memory in no cache, and most of that time goes to looking up the addresses of small pages
(docs/decisions/0025-workers.md).
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from infergate.core.limits import MIB

_TRIM_THRESHOLD: Final = -1
_TOP_PAD: Final = -2
_MMAP_THRESHOLD: Final = -3
"""Parameters of mallopt(3), as numbered in glibc's malloc.h."""
MAX_FREED_BYTES: Final = 64 * MIB
_HUGE_PAGE: Final = 2 * MIB
_MIN_IN_USE: Final = 0.5
"""The fraction of a huge page that must be in use before, so that unused memory stays unused."""
_MADV_COLLAPSE: Final = 25  # madvise(2), Linux 6.1
_HUGE_PAGES_SETTING: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_ANONYMOUS: Final = re.compile(r"^(\w+)-(\w+) rw-p \S+ 00:00 0 *(?:\[heap\])?$", re.MULTILINE)
"""A mapping of private memory in /proc/self/maps."""


def keep_freed_memory(max_bytes: int = MAX_FREED_BYTES) -> None:
    """Let the process keep up to ``max_bytes`` of freed memory. Has no effect without glibc, and
    does not override the environment's settings."""
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


def use_huge_pages() -> None:
    """Move the memory in use into huge pages. Has no effect on systems that cannot do this, or
    where transparent huge pages are switched off."""
    try:
        if "[never]" in _HUGE_PAGES_SETTING.read_text():
            return
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return
    libc = ctypes.CDLL(None)
    resident = ctypes.create_string_buffer(_HUGE_PAGE // os.sysconf("SC_PAGE_SIZE"))
    for start in _huge_page_addresses(maps):
        address, size = ctypes.c_void_p(start), ctypes.c_size_t(_HUGE_PAGE)
        if libc.mincore(address, size, resident):
            continue
        if sum(byte & 1 for byte in resident.raw) >= _MIN_IN_USE * len(resident):
            libc.madvise(address, size, _MADV_COLLAPSE)


def _huge_page_addresses(maps: str) -> Iterator[int]:
    for start, end in _ANONYMOUS.findall(maps):
        first = -(-int(start, 16) // _HUGE_PAGE) * _HUGE_PAGE
        yield from range(first, int(end, 16) - _HUGE_PAGE + 1, _HUGE_PAGE)
