from __future__ import annotations

import ctypes
import gc
import mmap
import os
import re
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from infergate.runtime.memory import freeze_objects, use_huge_pages


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _unfreeze() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_frozen_garbage_is_collected_by_the_next_freeze() -> None:
    cycle = Cycle()
    reference = weakref.ref(cycle)
    freeze_objects()
    del cycle
    gc.collect()
    assert reference() is not None, "frozen objects are not collected"
    freeze_objects()
    assert reference() is None


def test_later_objects_are_collected() -> None:
    freeze_objects()
    reference = weakref.ref(Cycle())
    gc.collect()
    assert reference() is None


def memory_of(mapping: mmap.mmap, field: str) -> int:
    """Return a field of the mapping in /proc/self/smaps, in kB. Mappings side by side are one."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    for entry in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
        start, end = (int(each, 16) for each in entry.split(maxsplit=1)[0].split("-"))
        if start <= address < end:
            found = re.search(rf"^{field}: +(\d+) kB$", entry, re.MULTILINE)
            assert found
            return int(found[1])
    raise AssertionError("the mapping is missing")


def test_memory_in_use_moves_into_huge_pages_and_unused_memory_stays_unused() -> None:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    release = tuple(map(int, os.uname().release.split(".")[:2]))
    if release < (6, 1) or not setting.exists() or "[never]" in setting.read_text():
        pytest.skip("this system has no huge pages on demand")
    size = 8 * 2**20
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, size, private) as used, mmap.mmap(-1, size, private) as sparse:
        used.write(bytes(range(256)) * (size // 256))
        for offset in range(0, size, 2**20):
            sparse[offset] = 1
        huge, resident = memory_of(used, "AnonHugePages"), memory_of(sparse, "Rss")
        use_huge_pages()
        assert memory_of(used, "AnonHugePages") >= huge + 4096
        assert memory_of(sparse, "Rss") <= resident + 2048  # a huge page may reach into ``used``
        assert used[:] == bytes(range(256)) * (size // 256)
