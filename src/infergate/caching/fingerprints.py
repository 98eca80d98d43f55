"""Fingerprints of inferences, which take much less time to compute than cache keys, and a table of
recent fingerprints.

With fingerprints, a route with ``min_uses: 2`` neither computes the key nor stores the response of
an inference that occurs for the first time. Different inferences may have equal fingerprints. The
route may then use the cache at the first occurrence, but never returns a wrong response."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Sequence
from typing import Final

from infergate.core.tensor import Buffer

SEEN_SLOTS: Final = 1 << 16
"""Number of slots of a table. A new fingerprint replaces the fingerprint in the same slot."""
_NUMBER_BYTES: Final = 8
_SAMPLES: Final = 16
_SAMPLE_BYTES: Final = 256
"""Number of bytes read at the start of each sixteenth of a long part, and at the end of the
part."""


def fingerprint(scope: bytes, parts: Sequence[Buffer]) -> int:
    """Return a positive number below 2⁶³ that is equal for equal ``scope`` and ``parts`` in all
    processes. The call takes microseconds, because it samples long parts."""
    numbers = [number for part in parts for number in (len(part), _summarize(part))]
    packed = struct.pack(f"<{len(numbers)}Q", *numbers)
    hashed = hashlib.blake2b(packed, digest_size=_NUMBER_BYTES, key=scope[:64])
    return int.from_bytes(hashed.digest()) >> 1 or 1


def _summarize(part: Buffer) -> int:
    view, size = memoryview(part), len(part)
    if size <= _SAMPLES * _SAMPLE_BYTES:
        return zlib.crc32(view)
    checksum = zlib.crc32(view[-_SAMPLE_BYTES:])
    for start in range(0, size, size // _SAMPLES):
        checksum = zlib.crc32(view[start : start + _SAMPLE_BYTES], checksum)
    return checksum


class SeenTable:
    """A table of earlier fingerprints. ``slots`` are signed 64-bit integers in memory that several
    processes may share. The table needs no lock, because reads and writes of a slot are atomic."""

    def __init__(self, slots: memoryview[int]) -> None:
        self._slots: Final = slots

    def add(self, number: int) -> bool:
        """Add the fingerprint ``number``. Return whether the table already contained it."""
        slots = self._slots
        index = number % len(slots)
        if slots[index] == number:
            return True
        slots[index] = number
        return False
