"""A protobuf wire scanner: finds a message's top-level fields without reading what is in them.

*Strategy.* A ModelInferRequest is a small head (names, shapes, parameters) and tensors of many
megabytes in one repeated bytes field. Parsing it whole copies every tensor at least once. The
scanner walks the top-level fields only, skipping by length, and hands the raw entries out as
memoryviews of the message; the rest goes to the protobuf runtime.

*Rule 1.* Any bytes are scanned or raise :class:`Malformed`; nothing is read past the end.
*Rule 2.* What protobuf's own parsers refuse is refused: tags over 5 bytes, field number 0, lengths
over 2^31-1, varints over 10 bytes. Groups, which proto3 does not have, are refused too.
*Rule 3.* The number of top-level fields is capped, so that a body of two-byte fields costs no more
than an honest one. Fields inside others are counted together, by an :class:`Allowance`.

Reference: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from infergate.core.tensor import Buffer

VARINT: Final = 0
FIXED64: Final = 1
DELIMITED: Final = 2
FIXED32: Final = 5
_FIXED_SIZES: Final = {FIXED64: 8, FIXED32: 4}

_TAG_BYTES: Final = 5
VARINT_BYTES: Final = 10
LENGTH_BYTES: Final = 5
_LARGEST_LENGTH: Final = 2**31 - 1

UNDECODABLE: Final = "a field inside another is cut short, or a text is not UTF-8"
"""What the protobuf runtime, which does not say, may have found in a message that scans."""


class Malformed(Exception):  # noqa: N818 - whose mistake it is, the caller says
    """The bytes are not a protobuf message. Callers say whose mistake that is. ``limit`` is the
    name of the limit that it met, where it was one."""

    def __init__(self, told: str, limit: str = "") -> None:
        super().__init__(told)
        self.limit = limit


class Field(NamedTuple):
    """One top-level field: ``number``, ``wire_type``, and where it and its value lie."""

    number: int
    wire_type: int
    start: int
    value: int
    end: int


def fields(data: Buffer, most: int) -> Iterator[Field]:
    """The top-level fields of ``data`` in order. Raises Malformed; also for more than ``most``."""
    position, end, count = 0, len(data), 0
    while position < end:
        count += 1
        if count > most:
            raise Malformed(f"it has more than {most} fields")
        start = position
        tag = data[position]
        position += 1
        if tag > 0x7F:
            tag, position = varint(data, start, _TAG_BYTES)
        number, wire_type = tag >> 3, tag & 7
        if not 0 < number < 2**29:
            raise Malformed(f"field number {number} at byte {start} is out of range")
        if wire_type == DELIMITED:
            if position < end and data[position] < 0x80:
                length = data[position]
                position += 1
            else:
                length, position = varint(data, position, LENGTH_BYTES)
            if length > _LARGEST_LENGTH:
                raise Malformed(f"field {number} at byte {start} is longer than 2 GiB")
            value, position = position, position + length
        else:
            value, position = position, _skip(data, position, number, wire_type)
        if position > end:
            raise Malformed(f"field {number} at byte {start} runs past the end of the message")
        yield Field(number, wire_type, start, value, position)


class Allowance:
    """How many fields inside others, of one message, may be looked at."""

    __slots__ = ("_left", "_most")

    def __init__(self, most: int) -> None:
        self._left = self._most = most

    def spend(self) -> None:
        """One more. Raises Malformed when there were too many."""
        self._left -= 1
        if self._left < 0:
            raise Malformed(f"its fields hold more than {self._most} fields")


def counted(data: Buffer, allowance: Allowance) -> Iterator[Field]:
    """The fields of ``data``, which is a field of a message with this ``allowance``."""
    for field in fields(data, len(data)):
        allowance.spend()
        yield field


def count_along(data: Buffer, path: Sequence[int], allowance: Allowance) -> None:
    """Spend of ``allowance`` for each field on, and just inside, ``path``: the numbers of fields,
    each inside the one before. Raises Malformed."""
    level = [memoryview(data)]
    for number in path:
        level = [
            inside[field.value : field.end]
            for inside in level
            for field in counted(inside, allowance)
            if field.number == number and field.wire_type == DELIMITED
        ]
    for inside in level:
        for _ in counted(inside, allowance):
            pass


def _skip(data: Buffer, position: int, number: int, wire_type: int) -> int:
    """Where the value at ``position`` ends, which may be past the end of ``data``."""
    if wire_type == VARINT:
        return varint(data, position, VARINT_BYTES)[1]
    if wire_type in _FIXED_SIZES:
        return position + _FIXED_SIZES[wire_type]
    raise Malformed(f"field {number} has wire type {wire_type}, which proto3 does not use")


def varint(data: Buffer, position: int, longest: int) -> tuple[int, int]:
    """The varint at ``position`` and where it ends."""
    value = 0
    for index, byte in enumerate(data[position : position + longest]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise Malformed(f"the varint at byte {position} does not end")


def split(data: Buffer, raw: int, most: int) -> tuple[Buffer, list[memoryview]]:
    """``data`` without its bytes fields numbered ``raw``, and those fields' values, not copied."""
    view = memoryview(data)
    runs: list[Buffer] = []
    blobs: list[memoryview] = []
    kept = 0
    for field in fields(data, most):
        if field.number == raw and field.wire_type == DELIMITED:
            if field.start > kept:
                runs.append(view[kept : field.start])
            kept = field.end
            blobs.append(view[field.value : field.end])
    if not blobs:
        return data, blobs
    runs.append(view[kept:])
    return b"".join(runs), blobs


def without(data: Buffer, numbers: frozenset[int], most: int) -> list[memoryview]:
    """What is left of ``data`` when the length-delimited fields in ``numbers`` are cut out."""
    view = memoryview(data)
    runs: list[memoryview] = []
    kept = 0
    for field in fields(data, most):
        if field.number in numbers and field.wire_type == DELIMITED:
            if field.start > kept:
                runs.append(view[kept : field.start])
            kept = field.end
    if kept < len(view):
        runs.append(view[kept:])
    return runs


def strings(data: Buffer, numbers: frozenset[int], most: int) -> dict[int, str]:
    """The string fields in ``numbers``; of a field given twice the last, as protobuf has it."""
    found: dict[int, str] = {}
    for field in fields(data, most):
        if field.number in numbers and field.wire_type == DELIMITED:
            try:
                found[field.number] = str(data[field.value : field.end], "utf-8")
            except UnicodeDecodeError:
                raise Malformed(f"field {field.number} is not UTF-8 text") from None
    return found


def prefix(number: int, length: int) -> bytes:
    """The tag and length that come before a bytes field of ``length`` bytes."""
    if length < 0x80:
        return bytes((number << 3 | DELIMITED, length))
    out = bytearray((number << 3 | DELIMITED,))
    while length > 0x7F:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out)


def string_field(number: int, text: str) -> bytes:
    """A whole string field."""
    value = text.encode()
    return prefix(number, len(value)) + value
