"""Rate-limit buckets that the workers of one gateway share in memory.

The buckets are in a table of fixed size. The hash of a bucket's name selects the row. Each use
locks the table for microseconds.

1. In a full row, a new bucket replaces the bucket that will be empty first.
2. Buckets survive the process that wrote them."""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
from collections.abc import Sequence
from typing import Final

from infergate.access.rate_limits import BucketCharge, ExceededLimit, find_exceeded

_ROW_COUNT: Final = 8192
_SLOTS_PER_ROW: Final = 16
"""Slots in a row. While at most half of all slots are in use, hardly any row is full."""
_NUMBER_BYTES: Final = 8
_TABLE_BYTES: Final = 2 * _ROW_COUNT * _SLOTS_PER_ROW * _NUMBER_BYTES
"""2 MiB, of which only the used pages occupy memory."""


class SharedBuckets:
    """Buckets in the memory of the file ``fd``, which the caller keeps open. ``limits_id``
    identifies the configuration of the limits, so that a new configuration starts with empty
    buckets.

    Times are from the system's monotonic clock, which is the same for all processes."""

    def __init__(self, fd: int, limits_id: bytes) -> None:
        memory = memoryview(mmap.mmap(fd, _TABLE_BYTES))
        self._fd: Final = fd
        self._hashes: Final = memory[: _TABLE_BYTES // 2].cast("Q")
        """The hash of each slot's bucket, or 0 if the slot has never been used."""
        self._empty_at: Final = memory[_TABLE_BYTES // 2 :].cast("d")
        """The time at which the bucket in each slot will be empty."""
        self._hash_key: Final = hashlib.blake2b(limits_id, digest_size=16).digest()

    @staticmethod
    def create_file() -> int:
        """Return the descriptor of a new memory file with empty buckets."""
        fd = os.memfd_create("infergate-rates")
        os.ftruncate(fd, _TABLE_BYTES)
        return fd

    def fill(self, charges: Sequence[BucketCharge], now: float) -> ExceededLimit | None:
        hashes = [self._hash(bucket) for bucket, _, _ in charges]
        fcntl.lockf(self._fd, fcntl.LOCK_EX)
        try:
            exceeded = find_exceeded(charges, map(self._empty_time, hashes), now)
            if exceeded is None:
                for hashed, (_, cost, _) in zip(hashes, charges, strict=True):
                    self._set_empty_time(hashed, max(self._empty_time(hashed), now) + cost)
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)
        return exceeded

    def _hash(self, bucket: str) -> int:
        hashed = hashlib.blake2b(bucket.encode(), digest_size=_NUMBER_BYTES, key=self._hash_key)
        return int.from_bytes(hashed.digest()) or 1

    def _empty_time(self, hashed: int) -> float:
        slot = self._slot(hashed)
        return 0.0 if slot is None else self._empty_at[slot]

    def _slot(self, hashed: int) -> int | None:
        row = _row_of(hashed)
        hashes = self._hashes[row].tolist()
        return row.start + hashes.index(hashed) if hashed in hashes else None

    def _set_empty_time(self, hashed: int, empty_time: float) -> None:
        slot = self._slot(hashed)
        if slot is None:
            row = _row_of(hashed)
            times = self._empty_at[row].tolist()
            slot = row.start + times.index(min(times))  # rule 1
        # The time is written first, so that a process killed between the two writes does not leave
        # the new bucket with the old bucket's time.
        self._empty_at[slot] = empty_time
        self._hashes[slot] = hashed


def _row_of(hashed: int) -> slice:
    begin = hashed % _ROW_COUNT * _SLOTS_PER_ROW
    return slice(begin, begin + _SLOTS_PER_ROW)
