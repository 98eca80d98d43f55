"""The contract of a store that holds cached responses in memory."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from infergate.caching.fingerprints import SeenTable
from infergate.core.limits import MIB
from infergate.core.stats import CacheStats

KEY_BYTES: Final = 32
"""The length of a key in bytes."""
MAX_BYTES_ON_LOOP: Final = MIB
"""Maximum bytes that are hashed or copied on the event loop. A thread handles longer values,
because hashing takes about 0.7 ms per MiB."""


class StoredValue(NamedTuple):
    """A value with the times of its creation and expiry, in seconds on the clock of
    ``time.monotonic``."""

    value: bytes
    created_at: float
    expires_at: float


class ResponseStore(Protocol):
    """Holds values in memory, up to a maximum size. The store evicts the least recently used
    entries first. ``now`` is a time on the clock of ``time.monotonic``."""

    async def get(self, key: bytes, now: float) -> StoredValue | None:
        """Return the value of ``key``, or None if there is no value or the value has expired."""
        ...

    async def put(self, key: bytes, stored: StoredValue) -> bool:
        """Store a value, and evict other values to make space. Return whether the value fits."""
        ...

    def epoch(self, backend: str) -> int:
        """Return the number of times that ``backend`` was invalidated. This number is part of the
        backend's keys."""
        ...

    async def invalidate(self, backend: str) -> None:
        """Make all keys of ``backend`` obsolete in all processes that share the store."""
        ...

    @property
    def seen(self) -> SeenTable:
        """The fingerprints of the inferences of all processes that share the store."""
        ...

    def set_max_bytes(self, max_bytes: int) -> None:
        """Set the maximum size. If the store is larger, some or all entries are evicted; 0 empties
        the store."""
        ...

    def usage(self) -> CacheStats:
        """Return the memory usage of the store."""
        ...
