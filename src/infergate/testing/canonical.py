"""Converts between canonical operations or responses and JSON, for test vectors and comparisons.

The form is ``{"type": "InferRequest", ...fields}``; fields with their default value are omitted.
Tensor data and other bytes are hex strings, and a datatype is its name. All other values are plain
JSON."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Mapping
from typing import Any

from infergate.core.datatypes import DATATYPES_BY_NAME, Datatype
from infergate.core.messages import Operation, Response

_BUFFER = bytes | bytearray | memoryview
_TYPES: dict[str, type] = {
    kind.__name__: kind for kind in (*typing.get_args(Operation), *typing.get_args(Response))
}


def to_json(value: Operation | Response) -> dict[str, Any]:
    """Return ``value`` as JSON objects, lists and scalars."""
    return {"type": type(value).__name__, **_fields_to_json(value)}


def _fields_to_json(value: Any) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        field_value = getattr(value, field.name)
        if not _is_default(field_value, field):
            document[field.name] = _to_json(field_value)
    return document


def _is_default(value: Any, field: dataclasses.Field[Any]) -> bool:
    if field.default is not dataclasses.MISSING:
        return bool(value == field.default)
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    return False


def _to_json(content: Any) -> Any:
    if isinstance(content, _BUFFER):
        return content.hex()
    if isinstance(content, Datatype):
        return content.value
    if isinstance(content, Mapping):
        return {
            key: value.hex() if isinstance(value, _BUFFER) else value
            for key, value in content.items()
        }
    if isinstance(content, tuple):
        return [_to_json(item) for item in content]
    if dataclasses.is_dataclass(content):
        return _fields_to_json(content)
    return content


def from_json(document: Mapping[str, Any]) -> Any:
    """Return the value for which :func:`to_json` returns ``document``. Raises KeyError, TypeError
    or ValueError if ``document`` is invalid."""
    fields = {name: value for name, value in document.items() if name != "type"}
    return _from_fields(_TYPES[document["type"]], fields)


_hints = functools.cache(typing.get_type_hints)


def _from_fields(cls: type, fields: Mapping[str, Any]) -> Any:
    hints = _hints(cls)
    return cls(**{name: _from_json(hints[name], content) for name, content in fields.items()})


def _from_json(hint: Any, value: Any) -> Any:
    if hint is Datatype:
        return DATATYPES_BY_NAME[value]
    if hint == _BUFFER or hint is bytes:
        return bytes.fromhex(value)
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        return tuple(_from_json(item, element) for element in value)
    if isinstance(hint, types.UnionType) and isinstance(value, Mapping):
        hint = next((arg for arg in hint.__args__ if dataclasses.is_dataclass(arg)), hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _from_fields(hint, value)
    return value


def to_text(value: Operation | Response) -> str:
    """Return ``value`` as JSON text with sorted keys. Equal values have equal texts, even if they
    contain NaN. 1 and 1.0 have different texts."""
    return json.dumps(to_json(value), sort_keys=True)


def assert_same(label: str, expected: Operation | Response, actual: Operation | Response) -> None:
    """Raise AssertionError with a message that begins with ``label``, unless both values are equal
    bit for bit."""
    assert to_text(expected) == to_text(actual), (
        f"{label}: {to_text(actual)} instead of {to_text(expected)}"
    )


def is_same(left: Operation | Response, right: Operation | Response) -> bool:
    """Return whether both values are equal bit for bit."""
    return to_text(left) == to_text(right)
