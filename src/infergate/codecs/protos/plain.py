"""Messages ⇄ plain Python values named and nested as their fields: what servers write as JSON.

It is protobuf's JSON form with the fields' own names and with integers as numbers, as Triton's REST
API has it. Fields without presence are always told, messages where they are set.
*Rule.* What is read is as deep as the schema, which no message changes, and no more than
``MAX_VALUES``: an empty message of 2 bytes becomes a value for each of its fields.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import ParseDict, ParseError

from infergate.codecs.protos.scan import Allowance

MAX_VALUES: Final = 262144
"""Members of all objects and lists that are made of one message."""


def told(message: Any, allowance: Allowance | None = None) -> dict[str, Any]:
    """The fields of ``message`` by name. Raises Malformed where they are more than ``allowance``,
    by default ``MAX_VALUES``."""
    allowance = allowance or Allowance(MAX_VALUES)
    plain: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            kind = field.message_type.fields_by_name["value"]
            plain[field.name] = {
                str(key): _told(kind, value[key], allowance) for key in sorted(value)
            }
        elif field.is_repeated:
            plain[field.name] = [_told(field, each, allowance) for each in value]
        elif not field.has_presence or message.HasField(field.name):
            plain[field.name] = _told(field, value, allowance)
    return plain


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
