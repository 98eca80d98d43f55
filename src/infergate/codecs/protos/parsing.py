"""Parse a message with the protobuf runtime, after its fields have been counted.

*Why.* The runtime makes up to a hundred times its size of a message: two bytes are an empty string
or submessage, which becomes an object, and one is a dimension, which becomes an integer.

*Rule.* Fields are counted at every depth that the schema has, and an element of a packed list
counts as one: no more than ``max_fields`` of them reach the runtime, in ``max_bytes`` bytes.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from infergate.codecs.protos.scan import (
    CONTINUED,
    DELIMITED,
    FIELDS_ON_LOOP,
    SHORT_TAG,
    UNDECODABLE,
    Malformed,
    field_at,
)
from infergate.core.limits import CostlyError, Limits
from infergate.core.tensor import Buffer

_FIXED: Final = {
    FieldDescriptor.TYPE_DOUBLE: 8,
    FieldDescriptor.TYPE_FIXED64: 8,
    FieldDescriptor.TYPE_SFIXED64: 8,
    FieldDescriptor.TYPE_FLOAT: 4,
    FieldDescriptor.TYPE_FIXED32: 4,
    FieldDescriptor.TYPE_SFIXED32: 4,
}
"""Bytes of an element of a packed list. The others are varints, which have one or more."""
_TEXTS: Final = frozenset({FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES})

Shape = dict[int, "Shape | int"]
"""The fields of a message that hold more than one thing: the shape of a submessage, or the bytes of
a packed list's element."""


def loop_bound(limits: Limits, most: int = FIELDS_ON_LOOP) -> int | None:
    """``most``, the fields that the event loop reads, where ``limits`` are for work on it."""
    return most if limits.on_loop else None


def parse(
    kind: Any, data: Buffer, max_fields: int, max_bytes: int, on_loop: int | None = None
) -> Any:
    """The message of class ``kind`` in ``data``. Raises Malformed, and CostlyError for more fields
    than ``on_loop``, where that is given."""
    if len(data) > max_bytes:
        raise Malformed(f"it has {len(data)} bytes, the limit is {max_bytes}")
    check_fields(kind, data, max_fields, on_loop)
    try:
        return kind.FromString(data)
    except DecodeError:
        raise Malformed(UNDECODABLE) from None


def check_fields(kind: Any, data: Buffer, max_fields: int, on_loop: int | None = None) -> None:
    """Raises Malformed where the message of class ``kind`` in ``data`` holds more than
    ``max_fields`` fields, at any depth; CostlyError where it holds more than ``on_loop``."""
    left = max_fields if on_loop is None else min(max_fields, on_loop)
    position, end, shape = 0, len(data), _shape(kind.DESCRIPTOR)
    outer: list[tuple[int, int, Shape]] = []  # what is left of the messages around this one
    while position < end or outer:
        if position >= end:
            position, end, shape = outer.pop()
            continue
        left -= 1
        if left < 0:
            raise _too_many(max_fields, on_loop)
        start, value = position, position + 2
        number = data[start]
        if (
            number & SHORT_TAG == DELIMITED < number
            and value <= end
            and (length := data[start + 1]) < CONTINUED
        ):
            number, wire_type, position = number >> 3, DELIMITED, value + length
        else:
            number, wire_type, _, value, position = field_at(data, start)
        if position > end:
            raise Malformed(f"field {number} at byte {start} runs past the end of its message")
        if wire_type == DELIMITED and value < position and number in shape:
            inner = shape[number]
            if isinstance(inner, dict):
                outer.append((position, end, shape))
                position, end, shape = value, position, inner
            else:
                left -= (position - value) // inner
    if left < 0:
        raise _too_many(max_fields, on_loop)


def _too_many(max_fields: int, on_loop: int | None) -> Exception:
    if on_loop is not None and on_loop < max_fields:
        return CostlyError()
    return Malformed(f"it has more than {max_fields} fields")


@functools.cache
def _shape(message: Any) -> Shape:
    """Of the descriptor of a message; that of the schema's messages does not contain itself."""
    shape: Shape = {}
    for field in message.fields:
        if field.message_type is not None:
            shape[field.number] = _shape(field.message_type)
        elif field.is_repeated and field.type not in _TEXTS:
            shape[field.number] = _FIXED.get(field.type, 1)
    return shape
