"""The contract of stores of cached responses in memory."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from infergate.caching.fingerprints import SeenTable
from infergate.core.limits import MIB
from infergate.core.stats import CacheStats

KEY_BYTES: Final = 32
"""The length of a key in bytes."""
MAX_BYTES_ON_LOOP: Final = MIB
"""Maximum bytes that are hashed or copied on the event loop. A thread handles longer values:
hashing takes about 0.7 ms per MiB."""


class StoredValue(NamedTuple):
    """A value, with its times of creation and expiry in seconds on the clock of
    ``time.monotonic``."""

    value: bytes
    created_at: float
    expires_at: float


class ResponseStore(Protocol):
    """Holds values in memory, up to a number of bytes. It evicts the least recently used entries
    first. ``now`` is the time on the clock of ``time.monotonic``."""

    async def get(self, key: bytes, now: float) -> StoredValue | None:
        """Return the value of ``key`` unless it has expired."""
        ...

    async def put(self, key: bytes, stored: StoredValue) -> bool:
        """Store a value, and evict others to make space. Return whether the value fits."""
        ...

    def epoch(self, backend: str) -> int:
        """Return the number of invalidations of ``backend``. It is part of the keys."""
        ...

    async def invalidate(self, backend: str) -> None:
        """Make all keys of ``backend`` obsolete, in all processes that share the store."""
        ...

    @property
    def seen(self) -> SeenTable:
        """The fingerprints of inferences seen before, by all processes that share the store."""
        ...

    def set_max_bytes(self, max_bytes: int) -> None:
        """Set the maximum size. A smaller size evicts entries; 0 empties the store."""
        ...

    def usage(self) -> CacheStats:
        """Return the current usage."""
        ...
