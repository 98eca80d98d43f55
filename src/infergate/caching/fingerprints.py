"""Fingerprints of inferences that cost a fraction of a key, and a table of those seen before.

A route with ``min_uses: 2`` saves the hash and the memory of inferences that never occur again.
Different inferences may have equal fingerprints. This costs time, but no response depends on it."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Sequence
from typing import Final

from infergate.core.tensor import Buffer

SEEN_SLOTS: Final = 1 << 16
"""The number of fingerprints in a table. A new fingerprint replaces another one."""
_NUMBER_BYTES: Final = 8
_SAMPLES: Final = 16
_SAMPLE_BYTES: Final = 256
"""Of a long part, the first bytes of each sixteenth and the last bytes are read."""


def fingerprint(scope: bytes, parts: Sequence[Buffer]) -> int:
    """Return a positive number below 2⁶³, which is equal for equal bytes in all processes. It takes
    microseconds, because it depends on samples of long parts only."""
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
    """Fingerprints seen before, in ``slots``, signed numbers of 64 bits that processes may share.
    The table needs no lock: a slot is read and written as a whole."""

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
