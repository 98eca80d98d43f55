"""The store of cached responses for a gateway with a single worker process."""

from __future__ import annotations

from collections import Counter, OrderedDict
from functools import cached_property
from typing import Final

from infergate.caching.fingerprints import SEEN_SLOTS, SeenTable
from infergate.caching.store import StoredValue
from infergate.core.stats import CacheStats

_ENTRY_BYTES: Final = 512
"""The approximate memory of an entry in bytes, without its value."""


class LocalStore:
    """A ``ResponseStore`` in the memory of this process."""

    def __init__(self) -> None:
        self._entries: Final[OrderedDict[bytes, StoredValue]] = OrderedDict()
        """The entries, from the least to the most recently used."""
        self._epochs: Final[Counter[str]] = Counter()
        self._max_bytes = self._bytes = self._evictions = 0

    @cached_property
    def seen(self) -> SeenTable:
        return SeenTable(memoryview(bytearray(8 * SEEN_SLOTS)).cast("q"))

    async def get(self, key: bytes, now: float) -> StoredValue | None:
        stored = self._entries.get(key)
        if stored is None:
            return None
        if stored.expires_at <= now:
            self._bytes -= _size(self._entries.pop(key))
            return None
        self._entries.move_to_end(key)
        return stored

    async def put(self, key: bytes, stored: StoredValue) -> bool:
        size = _size(stored)
        if size > self._max_bytes:
            return False
        previous = self._entries.pop(key, None)
        if previous is not None:
            self._bytes -= _size(previous)
        self._evict(self._max_bytes - size)
        self._entries[key] = stored
        self._bytes += size
        return True

    def _evict(self, max_bytes: int) -> None:
        while self._bytes > max_bytes:
            _, stored = self._entries.popitem(last=False)
            self._bytes -= _size(stored)
            self._evictions += 1

    def epoch(self, backend: str) -> int:
        return self._epochs[backend]

    async def invalidate(self, backend: str) -> None:
        self._epochs[backend] += 1

    def set_max_bytes(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._evict(max_bytes)

    def usage(self) -> CacheStats:
        return CacheStats(len(self._entries), self._bytes, self._evictions)


def _size(stored: StoredValue) -> int:
    return len(stored.value) + _ENTRY_BYTES
