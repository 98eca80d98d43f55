"""A protobuf wire scanner: finds a message's top-level fields without reading what is in them.

*Strategy.* A ModelInferRequest is a small head (names, shapes, parameters) and tensors of many
megabytes in one repeated bytes field. Parsing it whole copies every tensor at least once. The
scanner walks the top-level fields only, skipping by length, and hands the raw entries out as
memoryviews of the message; the rest goes to the protobuf runtime.

*Rule 1.* Any bytes are scanned or raise :class:`Malformed`; nothing is read past the end.
*Rule 2.* What protobuf's own parsers refuse is refused: tags over 5 bytes, field number 0, lengths
over 2^31-1, varints over 10 bytes. Groups, which proto3 does not have, are refused too.
*Rule 3.* Every loop counts the fields that it walks and stops at the first one over its limit, so
that a body of two-byte fields costs no more than an honest one. Fields inside others are counted
together, by an :class:`Allowance`. What the protobuf runtime is given whole is counted before, by
``parsing``.

Reference: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from infergate.core.limits import KIB, CostlyError, Limits
from infergate.core.tensor import Buffer

VARINT: Final = 0
FIXED64: Final = 1
DELIMITED: Final = 2
FIXED32: Final = 5
_FIXED_SIZES: Final = {FIXED64: 8, FIXED32: 4}

FIELDS_ON_LOOP: Final = 16384
"""Fields inside others that the event loop looks at: each takes it 1 µs, and what it holds more."""
TOLD_ON_LOOP: Final = 2048
"""Fields of an answer about a server or its models that the event loop reads: each becomes several
Python objects, an empty message one for each field that it might have."""
_TAG_BYTES: Final = 5
VARINT_BYTES: Final = 10
LENGTH_BYTES: Final = 5
_LARGEST_LENGTH: Final = 2**31 - 1
CONTINUED: Final = 0x80
"""The bit of a varint's byte that says that another byte follows."""
SHORT_TAG: Final = CONTINUED | 7
"""The bits of a tag's first byte that say that it is the only one, and the wire type."""

MAX_NAME: Final = 4 * KIB
"""Bytes of a model's name or version that are read before the access check."""
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


_made: Final = tuple.__new__
"""Make a :class:`Field` at a third of the cost of calling the class."""


def fields(data: Buffer, most: int) -> Iterator[Field]:
    """The top-level fields of ``data`` in order. Raises Malformed; also for more than ``most``."""
    position, end, left = 0, len(data), most
    while position < end:
        left -= 1
        if left < 0:
            raise Malformed(f"it has more than {most} fields")
        start, value = position, position + 2
        tag = data[start]
        if (
            tag & SHORT_TAG == DELIMITED < tag
            and value <= end
            and (length := data[start + 1]) < CONTINUED
            and value + length <= end
        ):
            position = value + length
            yield _made(Field, (tag >> 3, DELIMITED, start, value, position))
        else:
            field = field_at(data, start)
            position = field.end
            yield field


def field_at(data: Buffer, start: int) -> Field:
    """The field that begins at ``start``. Raises Malformed."""
    tag, position = data[start], start + 1
    if tag >= CONTINUED:
        tag, position = varint(data, start, _TAG_BYTES)
    number, wire_type = tag >> 3, tag & 7
    if not 0 < number < 2**29:
        raise Malformed(f"field number {number} at byte {start} is out of range")
    if wire_type == DELIMITED:
        length, value = varint(data, position, LENGTH_BYTES)
        if length > _LARGEST_LENGTH:
            raise Malformed(f"field {number} at byte {start} is longer than 2 GiB")
        end = value + length
    else:
        value, end = position, _skip(data, position, number, wire_type)
    if end > len(data):
        raise Malformed(f"field {number} at byte {start} runs past the end of the message")
    return _made(Field, (number, wire_type, start, value, end))


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


class _LoopAllowance(Allowance):
    """The same on the event loop, which a helper relieves of long walks."""

    __slots__ = ()

    def spend(self) -> None:
        """One more. Raises CostlyError when there were too many."""
        self._left -= 1
        if self._left < 0:
            raise CostlyError


def allowance(most: int, limits: Limits) -> Allowance:
    """Of ``most`` fields; where fewer are too many for the event loop, they raise CostlyError."""
    if limits.on_loop and most > FIELDS_ON_LOOP:
        return _LoopAllowance(FIELDS_ON_LOOP)
    return Allowance(most)


def counted(data: Buffer, allowance: Allowance) -> Iterator[Field]:
    """The fields of ``data``, which is a field of a message with this ``allowance``."""
    for field in fields(data, len(data)):
        allowance.spend()
        yield field


def _skip(data: Buffer, position: int, number: int, wire_type: int) -> int:
    """Where the value at ``position`` ends, which may be past the end of ``data``."""
    if wire_type == VARINT:
        return varint(data, position, VARINT_BYTES)[1]
    if wire_type in _FIXED_SIZES:
        return position + _FIXED_SIZES[wire_type]
    raise Malformed(f"field {number} has wire type {wire_type}, which proto3 does not use")


def varint(data: Buffer, start: int, longest: int) -> tuple[int, int]:
    """The varint at ``start`` and where it ends. Raises Malformed."""
    value = shift = 0
    position = start
    try:
        while (byte := data[position]) >= CONTINUED:
            value |= (byte & 0x7F) << shift
            shift += 7
            position += 1
            if shift == 7 * longest:
                break
        else:
            return value | byte << shift, position + 1
    except IndexError:
        pass
    raise Malformed(f"the varint at byte {start} does not end")


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


def strings(data: Buffer, numbers: frozenset[int], most: int, longest: int) -> dict[int, str]:
    """The string fields in ``numbers``; of a field given twice the last, as protobuf has it. Raises
    Malformed; also for more than ``most`` fields, and for a text of more than ``longest`` bytes.

    This runs before the access check, so it makes no :class:`Field` for a short field.
    """
    found: dict[int, str] = {}
    position, end, left = 0, len(data), most
    while position < end:
        left -= 1
        if left < 0:
            raise Malformed(f"it has more than {most} fields")
        start, value = position, position + 2
        number = data[start]
        if (
            number & SHORT_TAG == DELIMITED < number
            and value <= end
            and (length := data[start + 1]) < CONTINUED
            and value + length <= end
        ):
            position = value + length
            number >>= 3
        else:
            number, wire_type, _, value, position = field_at(data, start)
            if wire_type != DELIMITED:
                continue
        if number in numbers:
            if position - value > longest:
                raise Malformed(f"field {number} is a text of over {longest} bytes, the limit")
            try:
                found[number] = str(data[value:position], "utf-8")
            except UnicodeDecodeError:
                raise Malformed(f"field {number} is not UTF-8 text") from None
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
