"""Rewords pydantic's errors for operators, and looks up the schema's type at a path."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from infergate.config.mistakes import Finding, KeyPath, nearest, suggestion
from infergate.config.schema import Config
from infergate.config.values import describe_value

_EXPECTED = {
    "bool_type": "expected true or false",
    "dict_type": "expected a mapping (key: value)",
    "int_type": "expected a whole number",
    "model_type": "expected a mapping (key: value)",
    "tuple_type": "expected a list",
}
_LIMITS = {
    "greater_than": ("gt", "must be more than {}"),
    "greater_than_equal": ("ge", "must be at least {}"),
    "less_than": ("lt", "must be less than {}"),
    "less_than_equal": ("le", "must be at most {}"),
}


def explain(errors: list[ErrorDetails]) -> Iterator[Finding]:
    """Yield the path and the message of each error.

    A misspelt required key is reported only as an unknown key, not as a missing key."""
    misspelt = {
        (*path[:-1], nearest(str(path[-1]), keys_at(path[:-1])))
        for path in (error["loc"] for error in errors if error["type"] == "extra_forbidden")
    }
    for error in errors:
        is_reported = error["type"] == "missing" and error["loc"] in misspelt
        # pydantic reports a list as too short if all its items are invalid
        is_filled = error["type"] == "too_short" and bool(error["input"])
        if not (is_reported or is_filled):
            yield error["loc"], _message(error)


def _message(error: ErrorDetails) -> str:
    kind, path, value = error["type"], error["loc"], error["input"]
    if kind in _EXPECTED:
        return f"{_EXPECTED[kind]}, got {describe_value(value)}"
    if kind in _LIMITS:
        key, text = _LIMITS[kind]
        return f"{text.format(error['ctx'][key])}, got {describe_value(value)}"
    match kind:
        case "extra_forbidden":
            return f"unknown key '{path[-1]}'{suggestion(str(path[-1]), keys_at(path[:-1]))}"
        case "missing":
            return "this key is required"
        case "literal_error":
            choices = typing.get_args(_annotation_at(path))
            return f"{describe_value(value)} is not allowed here{suggestion(str(value), choices)}"
        case "too_short" | "string_too_short":
            return "must not be empty"
        case "value_error":  # a validator in the schema raised the error
            return str(error["ctx"]["error"])
        case _:
            return error["msg"]


def keys_at(path: KeyPath) -> list[str]:
    """Return the keys that the section at ``path`` may have."""
    section: type[BaseModel] = _annotation_at(path)
    return [field.alias or name for name, field in section.model_fields.items()]


def _annotation_at(path: KeyPath) -> Any:
    annotation: Any = Config
    for step in path:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            fields = {field.alias or name: field for name, field in annotation.model_fields.items()}
            annotation = without_none(fields[str(step)].annotation)
        else:  # dict[str, X] or tuple[X, ...]
            annotation = typing.get_args(annotation)[isinstance(step, str)]
    return annotation


def without_none(annotation: Any) -> Any:
    """Return ``X`` for ``X | None``, and any other annotation unchanged."""
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        (annotation,) = (a for a in typing.get_args(annotation) if a is not types.NoneType)
    return annotation
