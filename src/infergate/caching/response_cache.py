"""The response cache of a process: a store in memory and, if configured, a store in Redis."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from infergate.caching.store import ResponseStore, StoredValue
from infergate.core.records import record


class RemoteStore(Protocol):
    """A store outside this gateway. The methods never raise. If the store does not respond in
    time, a lookup returns no value."""

    async def get(self, digest: bytes, backend: str, epoch: int) -> RemoteLookup:
        """Look up ``digest``. ``epoch`` is the epoch of ``backend`` in the memory store."""
        ...

    def put(self, digest: bytes, tag: bytes, stored: StoredValue) -> None:
        """Start to store a value. ``tag`` is the tag of the lookup that preceded the inference."""
        ...

    async def invalidate(self, backend: str, epoch: int) -> None:
        """Make all values of ``backend`` obsolete. ``epoch`` is the new epoch in memory."""
        ...


class RemoteLookup(NamedTuple):
    """The result of a lookup: a value or None, and the tag to pass to ``put`` with a new value. The
    tag is empty if no value can be stored."""

    stored: StoredValue | None = None
    tag: bytes = b""


@record
class CacheKey:
    """The key of an inference: its hash, and the backend's epoch when the key was created. If
    the cache is invalidated during an inference, the response is stored under an obsolete key."""

    digest: bytes
    backend: str
    epoch: int

    @property
    def in_memory(self) -> bytes:
        """The key in the memory store."""
        return self.digest[:-8] + self.epoch.to_bytes(8)


class ResponseCache:
    """Looks up and stores values of at most ``max_entry_bytes`` bytes."""

    def __init__(
        self,
        memory: ResponseStore,
        max_entry_bytes: int,
        remote: RemoteStore | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.memory: Final = memory
        self.max_entry_bytes: Final = max_entry_bytes
        self.clock: Final = clock
        self._remote: Final = remote

    def key(self, digest: bytes, backend: str) -> CacheKey:
        """Return the key for ``digest`` in the current epoch of ``backend``."""
        return CacheKey(digest, backend, self.memory.epoch(backend))

    async def get(self, key: CacheKey) -> StoredValue | None:
        """Return the value in memory, or None."""
        return await self.memory.get(key.in_memory, self.clock())

    async def get_remote(self, key: CacheKey) -> RemoteLookup:
        """Look up ``key`` in the remote store. If a value is found, also store it in memory."""
        if self._remote is None:
            return RemoteLookup()
        lookup = await self._remote.get(key.digest, key.backend, key.epoch)
        if lookup.stored is not None:
            await self.memory.put(key.in_memory, lookup.stored)
        return lookup

    async def put(self, key: CacheKey, tag: bytes, value: bytes, ttl: float) -> bool:
        """Store ``value`` for ``ttl`` seconds in memory and, unless ``tag`` is empty, in the remote
        store. ``tag`` is the tag from ``get_remote``. A value of more than ``max_entry_bytes`` is
        not stored. Return whether the value was stored in memory."""
        if len(value) > self.max_entry_bytes:
            return False
        now = self.clock()
        stored = StoredValue(value, now, now + ttl)
        if self._remote is not None and tag:
            self._remote.put(key.digest, tag, stored)
        return await self.memory.put(key.in_memory, stored)

    async def invalidate(self, backend: str) -> None:
        """Make all values of ``backend`` obsolete."""
        await self.memory.invalidate(backend)
        if self._remote is not None:
            await self._remote.invalidate(backend, self.memory.epoch(backend))
