"""pydantic's findings in plain words, and the way through the schema along a path."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from infergate.config.mistakes import Finding, Path, nearest, or_else
from infergate.config.schema import Config
from infergate.config.values import told

_EXPECTED = {
    "bool_type": "expected true or false",
    "dict_type": "expected a mapping (key: value)",
    "int_type": "expected a whole number",
    "model_type": "expected a mapping (key: value)",
    "tuple_type": "expected a list",
}
_BOUNDS = {
    "greater_than": ("gt", "must be more than {}"),
    "greater_than_equal": ("ge", "must be at least {}"),
    "less_than": ("lt", "must be less than {}"),
    "less_than_equal": ("le", "must be at most {}"),
}


def explain(errors: list[ErrorDetails]) -> Iterator[Finding]:
    """Each error as a path and a message. A key that is missing because it is misspelt is told
    once, as the misspelling."""
    meant = {
        (*path[:-1], nearest(str(path[-1]), keys_at(path[:-1])))
        for path in (error["loc"] for error in errors if error["type"] == "extra_forbidden")
    }
    for error in errors:
        is_told = error["type"] == "missing" and error["loc"] in meant
        # a list whose items are all wrong counts as short, though it is not empty
        is_filled = error["type"] == "too_short" and bool(error["input"])
        if not (is_told or is_filled):
            yield error["loc"], _message(error)


def _message(error: ErrorDetails) -> str:
    kind, path, value = error["type"], error["loc"], error["input"]
    if kind in _EXPECTED:
        return f"{_EXPECTED[kind]}, got {told(value)}"
    if kind in _BOUNDS:
        key, text = _BOUNDS[kind]
        return f"{text.format(error['ctx'][key])}, got {told(value)}"
    match kind:
        case "extra_forbidden":
            return f"unknown key '{path[-1]}'{or_else(str(path[-1]), keys_at(path[:-1]))}"
        case "missing":
            return "this key is required"
        case "literal_error":
            choices = typing.get_args(_annotation_at(path))
            return f"{told(value)} is not a choice here{or_else(str(value), choices)}"
        case "too_short" | "string_too_short":
            return "must not be empty"
        case _:  # "mistake": a message of the schema's own
            return error["msg"]


def keys_at(path: Path) -> list[str]:
    """The keys that the section at ``path`` may have."""
    section: type[BaseModel] = _annotation_at(path)
    return [field.alias or name for name, field in section.model_fields.items()]


def _annotation_at(path: Path) -> Any:
    """The type that the schema gives the value at ``path``."""
    here: Any = Config
    for step in path:
        if isinstance(here, type) and issubclass(here, BaseModel):
            fields = {field.alias or name: field for name, field in here.model_fields.items()}
            here = without_none(fields[str(step)].annotation)
        else:  # dict[str, X] or tuple[X, ...]
            here = typing.get_args(here)[isinstance(step, str)]
    return here


def without_none(annotation: Any) -> Any:
    """``X`` for ``X | None``; anything else as it is."""
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        (annotation,) = (a for a in typing.get_args(annotation) if a is not types.NoneType)
    return annotation
