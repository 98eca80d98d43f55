"""Messages ⇄ plain Python values named and nested as their fields: what servers write as JSON.

It is protobuf's JSON form with the fields' own names and with integers as numbers, as Triton's REST
API has it. Fields without presence are always told, messages where they are set.
*Rule.* What is read is as deep as the schema, which no message changes, and no more than
``MAX_VALUES``: an empty message of 2 bytes becomes a value for each of its fields.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import ParseDict, ParseError

from infergate.codecs.protos.scan import Allowance

MAX_VALUES: Final = 131072
"""Members of all objects and lists that are made of one message."""


def told(message: Any, allowance: Allowance | None = None) -> dict[str, Any]:
    """The fields of ``message`` by name. Raises Malformed where they are more than ``allowance``,
    by default ``MAX_VALUES``."""
    allowance = allowance or Allowance(MAX_VALUES)
    plain: dict[str, Any] = {}
    for name, field, entry, has_presence in _fields(message.DESCRIPTOR):
        value = getattr(message, name)
        if entry is not None:
            plain[name] = {str(key): _told(entry, value[key], allowance) for key in sorted(value)}
        elif field.is_repeated:
            plain[name] = [_told(field, each, allowance) for each in value]
        elif not has_presence or message.HasField(name):
            plain[name] = _told(field, value, allowance)
    return plain


@functools.cache
def _fields(message: Any) -> tuple[tuple[str, Any, Any, bool], ...]:
    """Of a descriptor: each field's name, the field, that of the values if it is a map, and whether
    it may be absent."""
    found = []
    for field in message.fields:
        kind = field.message_type
        is_map = kind is not None and kind.GetOptions().map_entry
        entry = kind.fields_by_name["value"] if is_map else None
        found.append((field.name, field, entry, field.has_presence))
    return tuple(found)


def _told(field: Any, value: Any, allowance: Allowance) -> Any:
    allowance.spend()
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return told(value, allowance)
    if field.type == FieldDescriptor.TYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    return value


def written(kind: Any, plain: Any) -> Any:
    """The message of class ``kind`` that ``plain`` tells; members it has no field for are left out.
    Raises ValueError for what does not fit a field."""
    try:
        return ParseDict(plain, kind(), ignore_unknown_fields=True)
    except (ParseError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(str(error)[:200]) from None
