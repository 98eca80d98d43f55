"""Fingerprints of inferences, which are much cheaper than keys, and a table of fingerprints seen
before.

With fingerprints, a route with ``min_uses: 2`` neither hashes nor stores inferences that never
occur again. Different inferences may have equal fingerprints; such an inference is hashed and
stored too early, but no response is wrong."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Sequence
from typing import Final

from infergate.core.tensor import Buffer

SEEN_SLOTS: Final = 1 << 16
"""The number of slots of a table. A new fingerprint overwrites the fingerprint in its slot."""
_NUMBER_BYTES: Final = 8
_SAMPLES: Final = 16
_SAMPLE_BYTES: Final = 256
"""The bytes read at the start of each sixteenth of a long part, and at its end."""


def fingerprint(scope: bytes, parts: Sequence[Buffer]) -> int:
    """Return a positive number below 2⁶³, which is equal for equal bytes in all processes. This
    takes microseconds, because long parts are only sampled."""
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
    """Fingerprints seen before. ``slots`` are signed 64-bit integers in memory that processes may
    share. The table needs no lock, because reads and writes of a slot are atomic."""

    def __init__(self, slots: memoryview[int]) -> None:
        self._slots: Final = slots

    def add(self, number: int) -> bool:
        """Add a fingerprint. Return whether it was in the table."""
        slots = self._slots
        index = number % len(slots)
        if slots[index] == number:
            return True
        slots[index] = number
        return False
