"""Rate-limit buckets that the workers of one gateway share, in common memory.

A table of fixed size: the hash of a bucket's name selects its row. Each use locks the table, for
microseconds.

1. A new bucket in a full row replaces the one that will be empty first, so that the least counted
   usage is lost.
2. Counts survive the process that made them.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
from collections.abc import Sequence
from typing import Final

from infergate.access.rates import Full, Want, no_room

_ROWS: Final = 8192
_PLACES: Final = 16
"""Slots in a row. While half of all slots are in use, hardly any row is full."""
_NUMBER: Final = 8  # bytes
_SIZE: Final = 2 * _ROWS * _PLACES * _NUMBER
"""2 MiB, of which only used rows occupy memory."""


class SharedBuckets:
    """Buckets in the memory of the file ``fd``, which the caller keeps open. ``limits_id``
    separates buckets of the same name in different configurations: a new configuration starts with
    empty buckets.

    Times are from the system's monotonic clock, which is the same for all processes.
    """

    def __init__(self, fd: int, rates: bytes) -> None:
        memory = memoryview(mmap.mmap(fd, _SIZE))
        self._fd: Final = fd
        self._names: Final = memory[: _SIZE // 2].cast("Q")
        """The hash of each slot's bucket; 0 if the slot has never been used."""
        self._empty: Final = memory[_SIZE // 2 :].cast("d")
        """The time at which the bucket in each slot will be empty."""
        self._rates: Final = hashlib.blake2b(rates, digest_size=16).digest()

    @staticmethod
    def file() -> int:
        """Return the descriptor of new memory with empty buckets."""
        fd = os.memfd_create("infergate-rates")
        os.ftruncate(fd, _SIZE)
        return fd

    def fill(self, wants: Sequence[Want], now: float) -> Full | None:
        """Charge all buckets and return None, or return the bucket that has no room."""
        hashes = [self._name(bucket) for bucket, _, _ in wants]
        fcntl.lockf(self._fd, fcntl.LOCK_EX)
        try:
            exceeded = no_room(wants, map(self._at, hashes), now)
            if exceeded is None:
                for hashed, (_, cost, _) in zip(hashes, wants, strict=True):
                    self._put(hashed, max(self._at(hashed), now) + cost)
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)
        return exceeded

    def _name(self, bucket: str) -> int:
        hashed = hashlib.blake2b(bucket.encode(), digest_size=_NUMBER, key=self._rates)
        return int.from_bytes(hashed.digest()) or 1

    def _at(self, name: int) -> float:
        """Return the time at which a bucket will be empty; 0.0 if it has no slot."""
        slot = self._place(name)
        return 0.0 if slot is None else self._empty[slot]

    def _place(self, name: int) -> int | None:
        row = _row(name)
        hashes = self._names[row].tolist()
        return row.start + hashes.index(name) if name in hashes else None

    def _put(self, name: int, at: float) -> None:
        slot = self._place(name)
        if slot is None:
            row = _row(name)
            times = self._empty[row].tolist()
            slot = row.start + times.index(min(times))  # rule 1
        self._empty[slot] = at  # before the hash: the process may be killed between the two
        self._names[slot] = name


def _row(name: int) -> slice:
    begin = name % _ROWS * _PLACES
    return slice(begin, begin + _PLACES)
