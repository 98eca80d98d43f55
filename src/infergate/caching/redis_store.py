"""The store of cached responses that several gateways share in Redis or Valkey.

Each backend has an epoch in Redis, which is a random value. A cached response contains the epoch
that was read before its inference was sent, and is valid while Redis has the same epoch. A lookup
reads the response and the epoch together, so a hit takes one round trip. The lookup returns the
epoch as its tag.

*Rule 1.* A value whose checksum, format or tensors are invalid counts as a miss. A lookup reads at
most the maximum size of a response.
*Rule 2.* While Redis does not respond, every lookup is a miss, and no response is written.
*Rule 3.* The workers of a gateway also count the invalidations of each backend in memory (the
argument ``epoch``). If this count has increased, a worker replaces the random value in Redis before
it uses Redis. An invalidation therefore takes effect even if Redis was unavailable when it
happened.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import os
import struct
import time
from collections.abc import Callable
from typing import Any, Final

from redis.exceptions import RedisError

from infergate.caching import entries
from infergate.caching.keys import digest as digest_of
from infergate.caching.response_cache import RemoteLookup
from infergate.caching.store import StoredValue
from infergate.core.limits import KIB, MIB
from infergate.core.log_events import REDIS_AVAILABLE, REDIS_UNAVAILABLE

_log = logging.getLogger("infergate.cache")

RETRY_SECONDS: Final = 1.0
"""Seconds without queries after Redis has failed."""
_PREFIX: Final = b"infergate:cache:1:"
"""The prefix of all Redis keys. It contains the version of the format."""
_TAG_BYTES: Final = 16
_HEADER: Final = struct.Struct("<dd16s32s")
"""The wall-clock times of creation and expiry in seconds, the epoch, and the SHA-256 hash of these
fields and the content."""
_HASHED: Final = struct.Struct("<dd16s")
"""The part of the header before the hash."""
_MAX_BYTES_ON_LOOP: Final = 64 * KIB
"""Maximum bytes of a value that is checked on the event loop. A thread checks longer values,
because it takes long to count their BYTES elements."""
MAX_WRITES: Final = 16
MAX_WRITE_BYTES: Final = 32 * MIB
"""Maximum number of concurrent writes, and maximum bytes of all these writes. A response beyond a
limit is not written to Redis. A single write may exceed ``MAX_WRITE_BYTES``."""


class RedisStore:
    """A ``RemoteStore`` in Redis."""

    def __init__(  # noqa: PLR0913, PLR0917 - dependency injection
        self,
        client: Any,
        timeout: float,
        max_entry_bytes: int,
        on_failure: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """``client`` is a ``redis.asyncio.Redis``; ``timeout`` is in seconds. ``on_failure`` is
        called when a call to Redis fails."""
        self._redis: Final[Any] = client
        self._timeout: Final = timeout
        self._max_bytes: Final = max_entry_bytes + _HEADER.size
        self._on_failure: Final = on_failure
        self._clock: Final = clock
        self._wall_clock: Final = wall_clock
        self._retry_at = 0.0
        self._is_unavailable = False
        self._epochs: Final[dict[str, int]] = {}
        """The count of each backend's invalidations (Rule 3) at the time when this process first
        used or last replaced the epoch in Redis."""
        self._writes: Final[set[asyncio.Task[None]]] = set()
        self._write_bytes = 0

    async def get(self, digest: bytes, backend: str, epoch: int) -> RemoteLookup:
        if self._epochs.setdefault(backend, epoch) != epoch:
            await self.invalidate(backend, epoch)
        if self._epochs[backend] != epoch:
            return RemoteLookup()
        reply = await self._run(self._read(digest, backend))
        if reply is None:
            return RemoteLookup()
        value, tag = reply
        if len(value) > _MAX_BYTES_ON_LOOP:
            return RemoteLookup(await asyncio.to_thread(self._validate, value, tag), tag)
        return RemoteLookup(self._validate(value, tag), tag)

    def put(self, digest: bytes, tag: bytes, stored: StoredValue) -> None:
        size, writes = len(stored.value), self._writes
        if writes and (len(writes) >= MAX_WRITES or self._write_bytes + size > MAX_WRITE_BYTES):
            return
        self._write_bytes += size
        task = asyncio.create_task(self._write(digest, tag, stored))
        writes.add(task)

        def end(task: asyncio.Task[None]) -> None:
            writes.discard(task)
            self._write_bytes -= size

        task.add_done_callback(end)

    async def invalidate(self, backend: str, epoch: int) -> None:
        renewed = self._redis.set(_epoch_key(backend), os.urandom(_TAG_BYTES))
        if await self._run(renewed) is not None:
            self._epochs[backend] = epoch

    async def close(self) -> None:
        """Cancel all writes, and close the connections."""
        for task in self._writes:
            task.cancel()
        await asyncio.gather(*self._writes, return_exceptions=True)
        await self._redis.aclose()

    async def _read(self, digest: bytes, backend: str) -> tuple[bytes, bytes]:
        """Return the value of ``digest``, which is empty if Redis has no such value or no epoch,
        and the epoch of ``backend``, which is empty if it could not be created."""
        epoch_key = _epoch_key(backend)
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.getrange(_PREFIX + digest, 0, self._max_bytes)
        pipeline.getrange(epoch_key, 0, _TAG_BYTES)
        value, tag = await pipeline.execute()
        if len(tag) == _TAG_BYTES:
            return value, tag
        # Redis has no epoch yet, or has evicted it. A random epoch keeps older responses invalid.
        tag = os.urandom(_TAG_BYTES)
        created = await self._redis.set(epoch_key, tag, nx=True)
        return b"", tag if created else b""

    def _validate(self, value: bytes, tag: bytes) -> StoredValue | None:
        """Return the response in ``value``, or None if ``value`` is invalid (Rule 1)."""
        if not _HEADER.size < len(value) <= self._max_bytes:
            return None
        created, expires, epoch, checksum = _HEADER.unpack_from(value)
        content = value[_HEADER.size :]
        if epoch != tag or digest_of(value[: _HASHED.size], [content]) != checksum:
            return None
        now, wall_now = self._clock(), self._wall_clock()
        if not 0 <= created <= expires < math.inf or expires <= wall_now:
            return None
        try:
            entries.check(content)
        except ValueError:
            return None
        # The clock of the gateway that wrote the response may differ from this host's clock.
        left = min(expires - wall_now, expires - created)
        age = max(0.0, wall_now - created)
        return StoredValue(content, now - age, now + left)

    async def _write(self, digest: bytes, tag: bytes, stored: StoredValue) -> None:
        now, wall_now = self._clock(), self._wall_clock()
        created, expires = wall_now + stored.created_at - now, wall_now + stored.expires_at - now
        head = _HASHED.pack(created, expires, tag)
        checksum = await asyncio.to_thread(digest_of, head, [stored.value])
        value = b"".join((head, checksum, stored.value))
        milliseconds = max(1, int((stored.expires_at - now) * 1000))
        await self._run(self._redis.set(_PREFIX + digest, value, px=milliseconds))

    async def _run(self, command: Any) -> Any:
        """Return the reply to ``command``, or None if Redis is unavailable."""
        if self._clock() < self._retry_at:
            command.close()
            return None
        try:
            async with asyncio.timeout(self._timeout):
                reply = await command
        except (RedisError, OSError, TimeoutError) as error:
            self._on_failure()
            self._retry_at = self._clock() + RETRY_SECONDS
            if not self._is_unavailable:
                self._is_unavailable = True
                _log.error(
                    "Redis is unavailable (%s); responses are cached in memory only",
                    type(error).__name__,
                    extra=REDIS_UNAVAILABLE,
                )
            return None
        if self._is_unavailable:
            self._is_unavailable = False
            _log.info("Redis is available again", extra=REDIS_AVAILABLE)
        return reply


def _epoch_key(backend: str) -> bytes:
    return _PREFIX + b"epoch:" + hashlib.sha256(backend.encode()).digest()
