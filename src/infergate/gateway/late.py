"""Compressed gRPC messages that are inflated only once their request was admitted.

*Rule.* The access check reads the model's name in the first ``BEGINNING`` bytes, as all protobuf
libraries write it. A message whose names are elsewhere, or change later, is refused.
"""

from __future__ import annotations

from typing import Final

from infergate.core.limits import KIB
from infergate.core.tensor import Buffer

BEGINNING: Final = 4 * KIB
"""Bytes; no name is longer than 1 KiB."""
_LENGTHS: Final = {1: 8, 5: 4}
"""Of fixed-size fields, by wire type."""


def beginning(data: Buffer) -> bytes:
    """The top-level fields of a protobuf message that lie wholly in the first bytes of ``data``."""
    data = bytes(data[:BEGINNING])
    place = end = 0
    try:
        while place <= len(data):
            end = place
            tag, place = _varint(data, place)
            wire_type = tag & 7
            if wire_type == 0:
                _, place = _varint(data, place)
            elif wire_type == 2:
                length, place = _varint(data, place)
                place += length
            else:
                place += _LENGTHS[wire_type]
    except (IndexError, KeyError):  # cut off, or for the codec to refuse
        pass
    return data[:end]


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """The number at ``place``, and where it ends. Raises IndexError."""
    number = shift = 0
    while True:
        byte = data[place]
        number |= (byte & 0x7F) << shift
        place += 1
        shift += 7
        if byte < 0x80:
            return number, place
