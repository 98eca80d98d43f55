"""The store of cached responses that the worker processes of one gateway share in memory.

The memory is a file of blocks. An index in the same file maps each key to its blocks, and orders
the entries by their last use. Lookups and changes hold a file lock, which the system releases if
the process ends.

*Rule 1.* While a process changes the index or the blocks, a dirty flag in the file is set. A
process that takes the lock and finds the flag set empties the store, because another process was
killed in the middle of a change. A killed worker can therefore never corrupt a response.
*Rule 2.* In ``get``, ``put`` and ``invalidate``, the event loop does not wait for the lock and
copies no long values. A thread runs an operation on a long value, or an operation that has to wait
for the lock.
*Rule 3.* Positions in the file do not depend on the configured size, which may change while other
processes use the file. Unused parts of the file occupy no memory.
*Rule 4.* Emptying the store keeps the epochs, so that no obsolete key becomes valid again.
*Rule 5.* No memory map is closed while the lock is held. Each map has its own descriptor of the
file, and the system releases all locks of a process on a file when the process closes any
descriptor of the file.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from infergate.caching.fingerprints import SEEN_SLOTS, SeenTable
from infergate.caching.store import KEY_BYTES, MAX_BYTES_ON_LOOP, StoredValue
from infergate.core.stats import CacheStats

T = TypeVar("T")

BLOCK_BYTES: Final = 4096
MAX_BLOCKS: Final = 1 << 24
"""Maximum number of blocks, which take 64 GiB."""
_NUMBER_BYTES: Final = 8
_MAX_SECONDS: Final = 1e9
"""Maximum time in seconds, about 31 years. The file stores times as 64-bit integers of
nanoseconds."""
_HEADS: Final = 1 << 16
"""Number of hash chains. With one million entries, a chain has 15 entries on average."""
_EPOCHS: Final = 1024
_ENTRY_NUMBERS: Final = 12
_KEY_NUMBERS: Final = KEY_BYTES // _NUMBER_BYTES

# Indices of the integers at the start of the file. The first entry and the first block have the
# number 1; the number 0 means that there is no entry or block. New memory is all zeros, which is an
# empty store.
_CHANGING, _USED_ENTRIES, _USED_BLOCKS, _FREE_ENTRY, _FREE_BLOCK, _FREE_BLOCKS = range(6)
_OLDEST, _NEWEST, _COUNT = range(6, 9)
_STATE_NUMBERS: Final = 16
_EPOCH_START: Final = _STATE_NUMBERS
_HEAD_START: Final = _EPOCH_START + _EPOCHS

# Indices of the integers of an entry after its key.
_SIZE, _CREATED, _EXPIRES, _FIRST, _LAST, _CHAIN, _OLDER, _NEWER = range(_KEY_NUMBERS, 12)


def _pages(size: int) -> int:
    return -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


_SEEN_START: Final = _HEAD_START + _HEADS
_HEAD_BYTES: Final = _pages((_SEEN_START + SEEN_SLOTS) * _NUMBER_BYTES)
_ENTRIES_AT: Final = _HEAD_BYTES
_LINKS_AT: Final = _ENTRIES_AT + _pages((MAX_BLOCKS + 1) * _ENTRY_NUMBERS * _NUMBER_BYTES)
_BLOCKS_AT: Final = _LINKS_AT + _pages((MAX_BLOCKS + 1) * _NUMBER_BYTES)
_FILE_BYTES: Final = _BLOCKS_AT + (MAX_BLOCKS + 1) * BLOCK_BYTES


class _NeedsThreadError(Exception):
    """The operation must run in a thread (rule 2)."""


class SharedStore:
    """A ``ResponseStore`` in the memory of the file ``fd``, which the caller keeps open. All
    processes read times from the system's monotonic clock."""

    _entries: memoryview[int]
    _links: memoryview[int]
    _data: mmap.mmap
    _blocks: memoryview[int]

    def __init__(self, fd: int) -> None:
        if os.fstat(fd).st_size < _FILE_BYTES:
            os.ftruncate(fd, _FILE_BYTES)
        self._fd: Final = fd
        self._thread_lock: Final = threading.Lock()  # file locks do not exclude threads
        self._head: Final = memoryview(mmap.mmap(fd, _HEAD_BYTES)).cast("q")
        self.seen: Final = SeenTable(self._head[_SEEN_START : _SEEN_START + SEEN_SLOTS])
        self._max_blocks = 0
        self._mapped_blocks = -1
        self._evictions = 0
        self._retired: Final[list[object]] = []
        """Previous memory maps, which are closed after the lock has been released (rule 5)."""
        self._map(0)

    @staticmethod
    def create_file() -> int:
        """Return the file descriptor of a new memory file with an empty store."""
        return os.memfd_create("infergate-cache")

    # ---- ResponseStore

    async def get(self, key: bytes, now: float) -> StoredValue | None:
        return await self._run(lambda max_bytes: self._get(key, now, max_bytes))

    async def put(self, key: bytes, stored: StoredValue) -> bool:
        return await self._run(lambda max_bytes: self._put(key, stored, max_bytes))

    def epoch(self, backend: str) -> int:
        return self._head[_EPOCH_START + _epoch_number(backend)]

    async def invalidate(self, backend: str) -> None:
        await self._run(lambda _: self._advance_epoch(backend))

    def set_max_bytes(self, max_bytes: int) -> None:
        self._max_blocks = min(max_bytes // BLOCK_BYTES, MAX_BLOCKS)
        with self._locked(wait=True):
            if self._head[_USED_BLOCKS] > self._max_blocks:
                self._clear()
                self._data.madvise(mmap.MADV_REMOVE)  # free the memory

    def usage(self) -> CacheStats:
        head = self._head
        blocks = head[_USED_BLOCKS] - head[_FREE_BLOCKS]
        return CacheStats(head[_COUNT], blocks * BLOCK_BYTES, self._evictions)

    # ---- locking

    async def _run(self, operation: Callable[[int | None], T]) -> T:
        """Run ``operation`` with the lock held. The argument of ``operation`` is the maximum number
        of bytes to copy; None means no maximum."""
        try:
            with self._locked(wait=False):
                return operation(MAX_BYTES_ON_LOOP)
        except _NeedsThreadError:
            return await asyncio.to_thread(self._run_in_thread, operation)

    def _run_in_thread(self, operation: Callable[[int | None], T]) -> T:
        with self._locked(wait=True):
            return operation(None)

    @contextmanager
    def _locked(self, *, wait: bool) -> Iterator[None]:
        """Hold the lock. Without ``wait``, raises _NeedsThreadError if the lock is taken."""
        if not self._thread_lock.acquire(blocking=wait):
            raise _NeedsThreadError
        try:
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise _NeedsThreadError from None
            try:
                if self._head[_CHANGING]:
                    self._clear()  # rule 1
                if self._head[_USED_BLOCKS] > self._mapped_blocks:
                    self._map(self._head[_USED_BLOCKS])  # another process has used more blocks
                yield
            finally:
                fcntl.lockf(self._fd, fcntl.LOCK_UN)
                self._retired.clear()
        finally:
            self._thread_lock.release()

    def _map(self, blocks: int) -> None:
        """Map the index and the data of at least ``blocks`` blocks."""
        if self._mapped_blocks >= 0:
            self._retired.extend((self._entries, self._links, self._blocks, self._data))
        self._mapped_blocks = blocks = min(MAX_BLOCKS, max(blocks, self._max_blocks))
        count = blocks + 1
        self._entries = self._numbers(_ENTRIES_AT, count * _ENTRY_NUMBERS)
        self._links = self._numbers(_LINKS_AT, count)
        self._data = mmap.mmap(self._fd, count * BLOCK_BYTES, offset=_BLOCKS_AT)
        self._blocks = memoryview(self._data)

    def _numbers(self, offset: int, count: int) -> memoryview[int]:
        mapped = mmap.mmap(self._fd, _pages(count * _NUMBER_BYTES), offset=offset)
        return memoryview(mapped).cast("q")

    # ---- operations; the caller holds the lock

    def _advance_epoch(self, backend: str) -> None:
        self._head[_EPOCH_START + _epoch_number(backend)] += 1

    def _get(self, key: bytes, now: float, max_bytes: int | None) -> StoredValue | None:
        entry = self._find(key)
        if not entry:
            return None
        entries, base = self._entries, entry * _ENTRY_NUMBERS
        size, expires = entries[base + _SIZE], entries[base + _EXPIRES] / 1e9
        if max_bytes is not None and size > max_bytes:
            raise _NeedsThreadError
        self._head[_CHANGING] = 1
        if expires <= now:
            self._remove(entry)
            value = None
        else:
            self._unlink(entry)
            self._link_newest(entry)
            data = self._read(entries[base + _FIRST], size)
            value = StoredValue(data, entries[base + _CREATED] / 1e9, expires)
        self._head[_CHANGING] = 0
        return value

    def _put(self, key: bytes, stored: StoredValue, max_bytes: int | None) -> bool:
        size = len(stored.value)
        blocks = max(1, -(-size // BLOCK_BYTES))
        if blocks > self._max_blocks:
            return False
        if max_bytes is not None and size > max_bytes:
            raise _NeedsThreadError
        head = self._head
        head[_CHANGING] = 1
        if previous := self._find(key):
            self._remove(previous)
        self._evict_for(blocks)
        entry, first, last = self._allocate_entry(), *self._write(stored.value, blocks)
        entries, base = self._entries, entry * _ENTRY_NUMBERS
        for index, number in enumerate(_key_numbers(key)):
            entries[base + index] = number
        entries[base + _SIZE] = size
        entries[base + _CREATED] = _nanoseconds(stored.created_at)
        entries[base + _EXPIRES] = _nanoseconds(stored.expires_at)
        entries[base + _FIRST], entries[base + _LAST] = first, last
        chain = _chain(key)
        entries[base + _CHAIN], head[chain] = head[chain], entry
        self._link_newest(entry)
        head[_COUNT] += 1
        head[_CHANGING] = 0
        return True

    def _evict_for(self, blocks: int) -> None:
        """Evict the least recently used entries until ``blocks`` blocks are available."""
        head, max_used = self._head, self._max_blocks - blocks
        if self._mapped_blocks < self._max_blocks:
            self._map(self._max_blocks)
        while head[_USED_BLOCKS] - head[_FREE_BLOCKS] > max_used:
            self._remove(head[_OLDEST])
            self._evictions += 1

    def _clear(self) -> None:
        head = self._head
        head[_CHANGING] = 1
        for index in range(1, _STATE_NUMBERS):
            head[index] = 0
        head[_HEAD_START : _HEAD_START + _HEADS] = memoryview(bytes(_HEADS * 8)).cast("q")
        head[_CHANGING] = 0

    def _find(self, key: bytes) -> int:
        entries, numbers = self._entries, list(_key_numbers(key))
        entry = self._head[_chain(key)]
        while entry:
            base = entry * _ENTRY_NUMBERS
            if entries[base : base + _KEY_NUMBERS].tolist() == numbers:
                return entry
            entry = entries[base + _CHAIN]
        return 0

    def _remove(self, entry: int) -> None:
        """Remove ``entry`` from the index, and free its blocks."""
        entries, head, base = self._entries, self._head, entry * _ENTRY_NUMBERS
        self._unlink(entry)
        following = entries[base + _CHAIN]
        chain = _HEAD_START + entries[base] % _HEADS
        if head[chain] == entry:
            head[chain] = following
        else:
            before = head[chain]
            while (after := entries[before * _ENTRY_NUMBERS + _CHAIN]) != entry:
                before = after
            entries[before * _ENTRY_NUMBERS + _CHAIN] = following
        self._links[entries[base + _LAST]] = head[_FREE_BLOCK]
        head[_FREE_BLOCK] = entries[base + _FIRST]
        head[_FREE_BLOCKS] += max(1, -(-entries[base + _SIZE] // BLOCK_BYTES))
        entries[base + _CHAIN], head[_FREE_ENTRY] = head[_FREE_ENTRY], entry
        head[_COUNT] -= 1

    def _unlink(self, entry: int) -> None:
        """Remove ``entry`` from the LRU list."""
        entries, head = self._entries, self._head
        base = entry * _ENTRY_NUMBERS
        older, newer = entries[base + _OLDER], entries[base + _NEWER]
        if older:
            entries[older * _ENTRY_NUMBERS + _NEWER] = newer
        else:
            head[_OLDEST] = newer
        if newer:
            entries[newer * _ENTRY_NUMBERS + _OLDER] = older
        else:
            head[_NEWEST] = older

    def _link_newest(self, entry: int) -> None:
        entries, head = self._entries, self._head
        base, newest = entry * _ENTRY_NUMBERS, head[_NEWEST]
        entries[base + _OLDER], entries[base + _NEWER] = newest, 0
        if newest:
            entries[newest * _ENTRY_NUMBERS + _NEWER] = entry
        else:
            head[_OLDEST] = entry
        head[_NEWEST] = entry

    def _allocate_entry(self) -> int:
        head = self._head
        entry = head[_FREE_ENTRY]
        if entry:
            head[_FREE_ENTRY] = self._entries[entry * _ENTRY_NUMBERS + _CHAIN]
            return entry
        head[_USED_ENTRIES] += 1
        return head[_USED_ENTRIES]

    def _write(self, value: bytes, blocks: int) -> tuple[int, int]:
        """Write ``value`` to ``blocks`` unused blocks. Return the first and the last block."""
        head, links, size = self._head, self._links, len(value)
        reused = min(blocks, head[_FREE_BLOCKS])
        chain, block = [], head[_FREE_BLOCK]
        for _ in range(reused):
            chain.append(block)
            block = links[block]
        head[_FREE_BLOCK] = block
        head[_FREE_BLOCKS] -= reused
        new = blocks - reused
        chain += range(head[_USED_BLOCKS] + 1, head[_USED_BLOCKS] + 1 + new)
        head[_USED_BLOCKS] += new
        for position, block in enumerate(chain[:-1], 1):
            links[block] = chain[position]
        links[chain[-1]] = 0
        data, view, position = self._blocks, memoryview(value), 0
        for first, count in _runs(chain):
            part = view[position : position + count * BLOCK_BYTES]
            data[first * BLOCK_BYTES : first * BLOCK_BYTES + len(part)] = part
            position += len(part)
        assert position == size
        return chain[0], chain[-1]

    def _read(self, first: int, size: int) -> bytes:
        links, data, chain, block = self._links, self._blocks, [], first
        for _ in range(max(1, -(-size // BLOCK_BYTES))):
            chain.append(block)
            block = links[block]
        parts, left = [], size
        for start, count in _runs(chain):
            length = min(left, count * BLOCK_BYTES)
            parts.append(data[start * BLOCK_BYTES : start * BLOCK_BYTES + length])
            left -= length
        return b"".join(parts)


def _runs(chain: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the first block and the length of each run of adjacent blocks."""
    start = previous = chain[0]
    for block in chain[1:]:
        if block != previous + 1:
            yield start, previous + 1 - start
            start = block
        previous = block
    yield start, previous + 1 - start


def _nanoseconds(seconds: float) -> int:
    return int(max(-_MAX_SECONDS, min(seconds, _MAX_SECONDS)) * 1e9)


def _key_numbers(key: bytes) -> memoryview[int]:
    return memoryview(key).cast("q")


def _chain(key: bytes) -> int:
    return _HEAD_START + _key_numbers(key)[0] % _HEADS


def _epoch_number(backend: str) -> int:
    hashed = hashlib.blake2b(backend.encode(), digest_size=_NUMBER_BYTES).digest()
    return int.from_bytes(hashed) % _EPOCHS
