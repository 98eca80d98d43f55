"""Counts a message's fields at every depth, and then parses the message with protobuf's runtime.

The runtime allocates up to a hundred times the size of a message: an empty string or submessage of
two bytes becomes an object, and a dimension of one byte becomes an integer.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from infergate.codecs.protos.wire_scanner import (
    CONTINUATION_BIT,
    DECODE_ERROR,
    DELIMITED,
    MAX_NESTED_FIELDS_ON_LOOP,
    SHORT_TAG_MASK,
    MalformedMessageError,
    read_field,
)
from infergate.core.limits import Limits, NeedsOffloadError
from infergate.core.tensor import Buffer

_FIXED_SIZES: Final = {
    FieldDescriptor.TYPE_DOUBLE: 8,
    FieldDescriptor.TYPE_FIXED64: 8,
    FieldDescriptor.TYPE_SFIXED64: 8,
    FieldDescriptor.TYPE_FLOAT: 4,
    FieldDescriptor.TYPE_FIXED32: 4,
    FieldDescriptor.TYPE_SFIXED32: 4,
}
"""The element size of a packed list in bytes, by element type. All other types are varints."""
_TEXT_TYPES: Final = frozenset({FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES})

FieldLayout = dict[int, "FieldLayout | int"]
"""The layout of each submessage field and the element size of each packed field, by number."""


def max_fields_on_loop(limits: Limits, max_fields: int = MAX_NESTED_FIELDS_ON_LOOP) -> int | None:
    """Return ``max_fields`` on the event loop, and None (no limit) elsewhere."""
    return max_fields if limits.is_on_event_loop else None


def parse(
    message_class: Any,
    data: Buffer,
    max_fields: int,
    max_bytes: int,
    max_on_loop: int | None = None,
) -> Any:
    """Parse ``data`` as a ``message_class``. Raises MalformedMessageError, and NeedsOffloadError
    for more than ``max_on_loop`` fields."""
    if len(data) > max_bytes:
        raise MalformedMessageError(f"it has {len(data)} bytes; the limit is {max_bytes}")
    limit = max_fields if max_on_loop is None else min(max_fields, max_on_loop)
    if _count_messages(message_class, data, limit) < 0:
        raise NeedsOffloadError if limit < max_fields else _too_many_fields(max_fields)
    return parse_checked(message_class, data)


def parse_checked(message_class: Any, data: Buffer) -> Any:
    """Parse ``data``, whose fields have been counted. Raises MalformedMessageError."""
    try:
        return message_class.FromString(data)
    except DecodeError:
        raise MalformedMessageError(DECODE_ERROR) from None


def check_fields(
    message_class: Any,
    data: Buffer,
    max_fields: int,
    max_messages: int | None = None,
    elements_per_field: int = 1,
) -> int:
    """Count the fields of ``data``, a ``message_class``, at all depths, and return the number of
    nested messages. In a packed list, ``elements_per_field`` elements count as a field. The count
    ends at ``max_messages + 1`` messages, which the caller must reject. Raises
    MalformedMessageError for malformed data and for more than ``max_fields`` fields."""
    messages = _count_messages(message_class, data, max_fields, max_messages, elements_per_field)
    if messages < 0:
        raise _too_many_fields(max_fields)
    return messages


def _too_many_fields(max_fields: int) -> MalformedMessageError:
    return MalformedMessageError(f"it has more than {max_fields} fields")


def _count_messages(
    message_class: Any,
    data: Buffer,
    max_fields: int,
    max_messages: int | None = None,
    elements_per_field: int = 1,
) -> int:
    """Return the result of ``check_fields``, or -1 for more than ``max_fields`` fields."""
    messages = 0
    fields_left = max_fields
    position, end, shape = 0, len(data), _field_layout(message_class.DESCRIPTOR)
    outer: list[tuple[int, int, FieldLayout]] = []  # the unread rest of the enclosing messages
    while position < end or outer:
        if position >= end:
            position, end, shape = outer.pop()
            continue
        fields_left -= 1
        if fields_left < 0:
            return -1
        start, value_start = position, position + 2
        number = data[start]
        if (
            number & SHORT_TAG_MASK == DELIMITED < number
            and value_start <= end
            and (length := data[start + 1]) < CONTINUATION_BIT
        ):
            number, wire_type, position = number >> 3, DELIMITED, value_start + length
        else:
            number, wire_type, _, value_start, position = read_field(data, start)
        if position > end:
            raise MalformedMessageError(
                f"field {number} at byte {start} runs past the end of its message"
            )
        if wire_type == DELIMITED and number in shape:
            inner = shape[number]
            if isinstance(inner, dict):
                messages += 1
                if messages - 1 == max_messages:
                    return messages
                outer.append((position, end, shape))
                position, end, shape = value_start, position, inner
            else:
                fields_left -= (position - value_start) // (inner * elements_per_field)
    return -1 if fields_left < 0 else messages


@functools.cache
def _field_layout(descriptor: Any) -> FieldLayout:
    """Return the layout of a message type. No message type of the schema contains itself."""
    shape: FieldLayout = {}
    for field in descriptor.fields:
        if field.message_type is not None:
            shape[field.number] = _field_layout(field.message_type)
        elif field.is_repeated and field.type not in _TEXT_TYPES:
            shape[field.number] = _FIXED_SIZES.get(field.type, 1)
    return shape
