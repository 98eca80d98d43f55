"""Cached responses that several gateways share in Redis or Valkey.

Each backend has an epoch in Redis, a random value. A cached response contains the epoch that was
read before its inference was sent, and is valid only while the epoch is the same. The epoch is read
together with the response, so a hit takes one round trip.

*Rule 1.* A response without a valid checksum, of another format, or with an invalid tensor is a
miss. Replies are read only up to the maximum size of a response.
*Rule 2.* While Redis does not respond, every lookup is a miss, and no response is written.
*Rule 3.* A worker that finds that the epoch in memory has advanced renews the epoch in Redis before
it uses Redis. An invalidation while Redis is unavailable is thus not lost.
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
"""Seconds after a failure during which Redis is not queried."""
_PREFIX: Final = b"infergate:cache:1:"
"""The prefix of all Redis keys. It contains the version of the format."""
_TAG_BYTES: Final = 16
_HEADER: Final = struct.Struct("<dd16s32s")
"""The wall-clock times of creation and expiry, the epoch, and the SHA-256 hash of everything
else."""
_HASHED: Final = struct.Struct("<dd16s")
"""The part of the header before the hash."""
_MAX_BYTES_ON_LOOP: Final = 64 * KIB
"""Longer values are checked in a thread, because counting BYTES elements takes long."""
MAX_WRITES: Final = 16
MAX_WRITE_BYTES: Final = 32 * MIB
"""Maximum number of concurrent writes, and maximum bytes of all of them. Further responses are not
written to Redis. A single write may be larger."""


class RedisStore:
    """A ``RemoteStore`` in Redis."""

    def __init__(  # noqa: PLR0913, PLR0917 - its collaborators
        self,
        client: Any,
        timeout: float,
        max_entry_bytes: int,
        on_failure: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """``client`` is a ``redis.asyncio.Redis``; ``timeout`` is in seconds. ``on_failure`` is
        called when Redis does not respond."""
        self._redis: Final[Any] = client
        self._timeout: Final = timeout
        self._max_bytes: Final = max_entry_bytes + _HEADER.size
        self._on_failure: Final = on_failure
        self._clock: Final = clock
        self._wall_clock: Final = wall_clock
        self._retry_at = 0.0
        self._is_unavailable = False
        self._epochs: Final[dict[str, int]] = {}
        """The epoch in memory to which each backend's epoch in Redis corresponds."""
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
        """Return the value of ``digest``, or empty bytes if there is none, and the epoch of
        ``backend``."""
        epoch_key = _epoch_key(backend)
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.getrange(_PREFIX + digest, 0, self._max_bytes)
        pipeline.getrange(epoch_key, 0, _TAG_BYTES)
        value, tag = await pipeline.execute()
        if len(tag) == _TAG_BYTES:
            return value, tag
        # There is no epoch yet, or Redis has dropped it. Older responses must not become valid.
        tag = os.urandom(_TAG_BYTES)
        created = await self._redis.set(epoch_key, tag, nx=True)
        return b"", tag if created else b""

    def _validate(self, value: bytes, tag: bytes) -> StoredValue | None:
        """Return the response in ``value``, or None (rule 1)."""
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
        # The clock of the gateway that wrote the response may differ.
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
                    "redis does not share cached responses (%s); until it does, responses are "
                    "cached in memory only",
                    type(error).__name__, extra=REDIS_UNAVAILABLE)  # fmt: skip
            return None
        if self._is_unavailable:
            self._is_unavailable = False
            _log.info("redis shares cached responses again", extra=REDIS_AVAILABLE)
        return reply


def _epoch_key(backend: str) -> bytes:
    return _PREFIX + b"epoch:" + hashlib.sha256(backend.encode()).digest()
