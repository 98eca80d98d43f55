"""Reads the first fields of a compressed gRPC message. The complete message is inflated only after
authorization.

The access check reads the model's name and version from the first ``PREFIX_BYTES`` bytes, where all
protobuf libraries write them. The fields may also come later, or occur again. A complete message
whose name or version differs from the prefix is therefore rejected."""

from __future__ import annotations

from typing import Final

from infergate.core.limits import KIB
from infergate.core.tensor import Buffer

PREFIX_BYTES: Final = 4 * KIB
"""Number of inflated bytes that the access check reads. A name has at most 1 KiB."""
_FIXED_LENGTHS: Final = {1: 8, 5: 4}
"""The length in bytes of a field, for each wire type with a fixed length."""


def leading_fields(data: Buffer) -> bytes:
    """Return the top-level fields of a protobuf message that end within the first ``PREFIX_BYTES``
    bytes of ``data``."""
    data = bytes(data[:PREFIX_BYTES])
    position = end = 0
    try:
        while position <= len(data):
            end = position
            tag, position = _read_varint(data, position)
            wire_type = tag & 7
            if wire_type == 0:
                _, position = _read_varint(data, position)
            elif wire_type == 2:
                length, position = _read_varint(data, position)
                position += length
            else:
                position += _FIXED_LENGTHS[wire_type]
    except (IndexError, KeyError):  # truncated, or malformed; the codec rejects malformed messages
        pass
    return data[:end]


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the number at ``position`` and the position after it. Raises IndexError."""
    number = shift = 0
    while True:
        byte = data[position]
        number |= (byte & 0x7F) << shift
        position += 1
        shift += 7
        if byte < 0x80:
            return number, position
