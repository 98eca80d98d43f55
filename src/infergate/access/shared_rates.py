"""Buckets that the workers of one gateway share, in memory that all of them have.

*Strategy.* A table of a fixed size: a bucket's name is hashed, and the hash says in which row its
place is. Whoever counts locks the table; it is for microseconds.

*Rule 1.* What takes a place in a row that is full takes that of the bucket which is empty soonest:
least of what was counted is forgotten so.
*Rule 2.* What was counted outlasts the process that counted it.
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
"""In a row. With half of all places taken hardly a row is full."""
_NUMBER: Final = 8  # bytes
_SIZE: Final = 2 * _ROWS * _PLACES * _NUMBER
"""2 MiB, of which only rows that were used take memory."""


class SharedBuckets:
    """In the memory of the file ``fd``, which remains the caller's. ``rates`` tells apart whose
    buckets have the same names: those of another configuration begin empty.

    Times are of the system's monotonic clock, which is the same for all processes."""

    def __init__(self, fd: int, rates: bytes) -> None:
        memory = memoryview(mmap.mmap(fd, _SIZE))
        self._fd: Final = fd
        self._names: Final = memory[: _SIZE // 2].cast("Q")
        """Hashes; 0: nobody has ever been there."""
        self._empty: Final = memory[_SIZE // 2 :].cast("d")
        """When each will be."""
        self._rates: Final = hashlib.blake2b(rates, digest_size=16).digest()

    @staticmethod
    def file() -> int:
        """The descriptor of new memory, in which nothing was counted."""
        fd = os.memfd_create("infergate-rates")
        os.ftruncate(fd, _SIZE)
        return fd

    def fill(self, wants: Sequence[Want], now: float) -> Full | None:
        """See Store."""
        names = [self._name(bucket) for bucket, _, _ in wants]
        fcntl.lockf(self._fd, fcntl.LOCK_EX)
        try:
            worst = no_room(wants, map(self._at, names), now)
            if worst is None:
                for name, (_, cost, _) in zip(names, wants, strict=True):
                    self._put(name, max(self._at(name), now) + cost)
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)
        return worst

    def _name(self, bucket: str) -> int:
        hashed = hashlib.blake2b(bucket.encode(), digest_size=_NUMBER, key=self._rates)
        return int.from_bytes(hashed.digest()) or 1

    def _at(self, name: int) -> float:
        """When its bucket will be empty; long ago, where it has no place."""
        place = self._place(name)
        return 0.0 if place is None else self._empty[place]

    def _place(self, name: int) -> int | None:
        row = _row(name)
        names = self._names[row].tolist()
        return row.start + names.index(name) if name in names else None

    def _put(self, name: int, at: float) -> None:
        place = self._place(name)
        if place is None:
            row = _row(name)
            times = self._empty[row].tolist()
            place = row.start + times.index(min(times))  # Rule 1
        self._empty[place] = at  # first: a process may end between the two
        self._names[place] = name


def _row(name: int) -> slice:
    begin = name % _ROWS * _PLACES
    return slice(begin, begin + _PLACES)
