"""Finds the top-level fields of a protobuf message without parsing their contents.

An inference is a small head (names, shapes, parameters) and many megabytes of tensors in one
repeated bytes field. Parsing the whole message would copy every tensor at least once. The scanner
returns the tensors as memoryviews, and the protobuf runtime parses the rest of the message.

*Rule 1.* For any bytes, the scanner succeeds or raises :class:`MalformedMessageError`.
*Rule 2.* The scanner rejects the bytes that protobuf's own parsers reject (tags over 5 bytes, field
number 0, lengths over 2^31-1, varints over 10 bytes), and groups, which proto3 does not have.
*Rule 3.* Every loop counts its fields against a limit, because a field may have only two bytes.

Reference: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from infergate.core.limits import KIB, Limits, NeedsOffloadError
from infergate.core.tensor import Buffer

VARINT: Final = 0
FIXED64: Final = 1
DELIMITED: Final = 2
FIXED32: Final = 5
_FIXED_SIZES: Final = {FIXED64: 8, FIXED32: 4}

MAX_NESTED_FIELDS_ON_LOOP: Final = 16384
"""Maximum number of nested fields that are read on the event loop. Reading a field takes 1 µs or
more."""
MAX_METADATA_FIELDS_ON_LOOP: Final = 2048
"""Maximum number of fields of a metadata response that are read on the event loop. A field becomes
several Python objects; an empty message becomes an object for each field of its type."""
_MAX_TAG_BYTES: Final = 5
MAX_VARINT_BYTES: Final = 10
MAX_LENGTH_BYTES: Final = 5
_MAX_LENGTH: Final = 2**31 - 1
CONTINUATION_BIT: Final = 0x80
"""The bit of a varint's byte that is set if another byte follows."""
SHORT_TAG_MASK: Final = CONTINUATION_BIT | 7
"""The bits of a tag's first byte that hold the wire type and the continuation bit."""

MAX_NAME_BYTES: Final = 4 * KIB
"""Maximum size in bytes of a model's name or version. The gateway reads both before the access
check."""
DECODE_ERROR: Final = "a nested field is truncated, or a string is not UTF-8"
"""The error for a message that the scanner accepts but the protobuf runtime rejects."""


class MalformedMessageError(Exception):
    """The bytes are not a protobuf message, or exceed the limit ``limit_name``.

    The caller decides whether the client or the backend is at fault.
    """

    def __init__(self, reason: str, limit_name: str = "") -> None:
        super().__init__(reason)
        self.limit_name = limit_name


class WireField(NamedTuple):
    """A field with its number, its wire type, and the positions of its tag, value and end."""

    number: int
    wire_type: int
    start: int
    value_start: int
    end: int


_new_tuple: Final = tuple.__new__
"""Creates a :class:`WireField` at a third of the cost of calling the class."""


def scan_fields(data: Buffer, max_fields: int) -> Iterator[WireField]:
    """Yield the top-level fields of ``data``. Raises MalformedMessageError for malformed data and
    for more than ``max_fields`` fields."""
    position, end, fields_left = 0, len(data), max_fields
    while position < end:
        fields_left -= 1
        if fields_left < 0:
            raise MalformedMessageError(f"it has more than {max_fields} fields")
        tag_start, value_start = position, position + 2
        tag = data[tag_start]
        if (
            tag & SHORT_TAG_MASK == DELIMITED < tag
            and value_start <= end
            and (length := data[tag_start + 1]) < CONTINUATION_BIT
            and value_start + length <= end
        ):
            position = value_start + length
            yield _new_tuple(WireField, (tag >> 3, DELIMITED, tag_start, value_start, position))
        else:
            field = read_field(data, tag_start)
            position = field.end
            yield field


def read_field(data: Buffer, start: int) -> WireField:
    """Read the field that begins at ``start``. Raises MalformedMessageError."""
    tag, position = data[start], start + 1
    if tag >= CONTINUATION_BIT:
        tag, position = read_varint(data, start, _MAX_TAG_BYTES)
    number, wire_type = tag >> 3, tag & 7
    if not 0 < number < 2**29:
        raise MalformedMessageError(f"field number {number} at byte {start} is out of range")
    if wire_type == DELIMITED:
        length, value_start = read_varint(data, position, MAX_LENGTH_BYTES)
        if length > _MAX_LENGTH:
            raise MalformedMessageError(f"field {number} at byte {start} is longer than 2 GiB")
        end = value_start + length
    else:
        value_start, end = position, _value_end(data, position, number, wire_type)
    if end > len(data):
        raise MalformedMessageError(
            f"field {number} at byte {start} runs past the end of the message"
        )
    return _new_tuple(WireField, (number, wire_type, start, value_start, end))


class FieldBudget:
    """Limits the number of nested fields that are read from a message."""

    __slots__ = ("_max_fields", "_remaining")

    def __init__(self, max_fields: int) -> None:
        self._remaining = self._max_fields = max_fields

    def spend(self) -> None:
        """Count one field. Raises MalformedMessageError if the budget is exceeded."""
        self._remaining -= 1
        if self._remaining < 0:
            raise MalformedMessageError(f"it has more than {self._max_fields} nested fields")


class _LoopFieldBudget(FieldBudget):
    """A budget for messages that are read on the event loop. If the budget is exceeded, a helper
    process reads the message."""

    __slots__ = ()

    def spend(self) -> None:
        """Count one field. Raises NeedsOffloadError if the budget is exceeded."""
        self._remaining -= 1
        if self._remaining < 0:
            raise NeedsOffloadError


def field_budget(max_fields: int, limits: Limits) -> FieldBudget:
    """Return a budget of ``max_fields`` fields. On the event loop, a budget of more than
    ``MAX_NESTED_FIELDS_ON_LOOP`` fields raises NeedsOffloadError at this limit."""
    if limits.is_on_event_loop and max_fields > MAX_NESTED_FIELDS_ON_LOOP:
        return _LoopFieldBudget(MAX_NESTED_FIELDS_ON_LOOP)
    return FieldBudget(max_fields)


def budgeted_fields(data: Buffer, budget: FieldBudget) -> Iterator[WireField]:
    """Yield the fields of ``data``, a nested message, and count each field against ``budget``."""
    for field in scan_fields(data, len(data)):
        budget.spend()
        yield field


def _value_end(data: Buffer, position: int, number: int, wire_type: int) -> int:
    """Return the end of the value at ``position``, which may be past the end of ``data``."""
    if wire_type == VARINT:
        return read_varint(data, position, MAX_VARINT_BYTES)[1]
    if wire_type in _FIXED_SIZES:
        return position + _FIXED_SIZES[wire_type]
    raise MalformedMessageError(
        f"field {number} has wire type {wire_type}, which proto3 does not use"
    )


def read_varint(data: Buffer, start: int, max_bytes: int) -> tuple[int, int]:
    """Return the value and the end of the varint at ``start``. Raises MalformedMessageError if the
    varint is incomplete or has more than ``max_bytes`` bytes."""
    value = shift = 0
    position = start
    try:
        while (byte := data[position]) >= CONTINUATION_BIT:
            value |= (byte & 0x7F) << shift
            shift += 7
            position += 1
            if shift == 7 * max_bytes:
                break
        else:
            return value | byte << shift, position + 1
    except IndexError:
        pass
    raise MalformedMessageError(f"the varint at byte {start} does not end")


def split_raw_fields(
    data: Buffer, raw_number: int, max_fields: int
) -> tuple[Buffer, list[memoryview]]:
    """Return ``data`` without the bytes fields ``raw_number``, and views of their values."""
    raw = [
        field
        for field in scan_fields(data, max_fields)
        if field.number == raw_number and field.wire_type == DELIMITED
    ]
    if not raw:
        return data, []
    view = memoryview(data)
    return b"".join(_without(view, raw)), [view[field.value_start : field.end] for field in raw]


def remove_fields(data: Buffer, numbers: frozenset[int], max_fields: int) -> list[memoryview]:
    """Return ``data`` without the fields in ``numbers``, as views of the remaining parts."""
    removed = (field for field in scan_fields(data, max_fields) if field.number in numbers)
    return _without(memoryview(data), removed)


def _without(view: memoryview, fields: Iterable[WireField]) -> list[memoryview]:
    """Return the parts of ``view`` between ``fields``."""
    kept_parts: list[memoryview] = []
    kept_from = 0
    for field in fields:
        if field.start > kept_from:
            kept_parts.append(view[kept_from : field.start])
        kept_from = field.end
    if kept_from < len(view):
        kept_parts.append(view[kept_from:])
    return kept_parts


def read_strings(
    data: Buffer, numbers: frozenset[int], max_fields: int, max_bytes: int
) -> dict[int, str]:
    """Return the strings in the fields ``numbers``. If a field occurs twice, the last value counts.
    Raises MalformedMessageError for malformed data, for more than ``max_fields`` fields, and for a
    string of more than ``max_bytes`` bytes.

    The function runs before the access check and must be fast, so it creates no :class:`WireField`
    for a short field.
    """
    texts: dict[int, str] = {}
    position, end, fields_left = 0, len(data), max_fields
    while position < end:
        fields_left -= 1
        if fields_left < 0:
            raise MalformedMessageError(f"it has more than {max_fields} fields")
        tag_start, value_start = position, position + 2
        number = data[tag_start]
        if (
            number & SHORT_TAG_MASK == DELIMITED < number
            and value_start <= end
            and (length := data[tag_start + 1]) < CONTINUATION_BIT
            and value_start + length <= end
        ):
            position = value_start + length
            number >>= 3
        else:
            number, wire_type, _, value_start, position = read_field(data, tag_start)
            if wire_type != DELIMITED:
                continue
        if number in numbers:
            if position - value_start > max_bytes:
                raise MalformedMessageError(
                    f"field {number} is a string of over {max_bytes} bytes (the limit)"
                )
            try:
                texts[number] = str(data[value_start:position], "utf-8")
            except UnicodeDecodeError:
                raise MalformedMessageError(f"field {number} is not UTF-8 text") from None
    return texts


def varint_field(number: int, value: int) -> bytes:
    """Return a varint field. ``number`` must be below 16, and ``value`` must not be negative."""
    return field_prefix(number, value, VARINT)


def field_prefix(number: int, length: int, wire_type: int = DELIMITED) -> bytes:
    """Return the tag and length that precede the ``length`` bytes of a bytes field. ``number`` must
    be below 16."""
    if length < 0x80:
        return bytes((number << 3 | wire_type, length))
    out = bytearray((number << 3 | wire_type,))
    while length > 0x7F:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out)


def string_field(number: int, text: str) -> bytes:
    """Return ``text`` encoded as field ``number``."""
    value = text.encode()
    return field_prefix(number, len(value)) + value
