"""Converts protobuf messages to and from plain Python values, which can be written as JSON.

The values have the format of Triton's REST API: protobuf's JSON format, with the original field
names and with integers as numbers. Fields with presence are written only if they are set. All other
fields are always written."""

from __future__ import annotations

import functools
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import ParseDict, ParseError

from infergate.codecs.protos.wire_scanner import FieldBudget

MAX_VALUES: Final = 131072
"""Maximum number of values in a message. An empty submessage takes 2 bytes, but becomes
one value per field."""


def to_plain(message: Any, budget: FieldBudget | None = None) -> dict[str, Any]:
    """Return the fields of ``message`` by name. Raises MalformedMessageError for more values than
    ``budget``, which is ``MAX_VALUES`` by default."""
    budget = budget or FieldBudget(MAX_VALUES)
    plain: dict[str, Any] = {}
    for name, field, map_value, has_presence in _fields(message.DESCRIPTOR):
        value = getattr(message, name)
        if map_value is not None:
            plain[name] = {
                str(key): _plain_value(map_value, value[key], budget) for key in sorted(value)
            }
        elif field.is_repeated:
            plain[name] = [_plain_value(field, item, budget) for item in value]
        elif not has_presence or message.HasField(name):
            plain[name] = _plain_value(field, value, budget)
    return plain


@functools.cache
def _fields(descriptor: Any) -> tuple[tuple[str, Any, Any, bool], ...]:
    """Return the name and the descriptor of each field, the descriptor of a map's values or None,
    and whether the field has presence."""
    fields = []
    for field in descriptor.fields:
        message_type = field.message_type
        is_map = message_type is not None and message_type.GetOptions().map_entry
        map_value = message_type.fields_by_name["value"] if is_map else None
        fields.append((field.name, field, map_value, field.has_presence))
    return tuple(fields)


def _plain_value(field: Any, value: Any, budget: FieldBudget) -> Any:
    budget.spend()
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return to_plain(value, budget)
    if field.type == FieldDescriptor.TYPE_ENUM:
        enum_value = field.enum_type.values_by_number.get(value)
        return value if enum_value is None else enum_value.name
    return value


def from_plain(message_class: Any, plain: Any) -> Any:
    """Return a ``message_class`` with the fields in ``plain``. Unknown members are ignored. Raises
    ValueError if a value does not fit its field."""
    try:
        return ParseDict(plain, message_class(), ignore_unknown_fields=True)
    except (ParseError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(str(error)[:200]) from None
