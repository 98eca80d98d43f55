"""The protobuf text format, as the C++ servers print and parse it.

Parsing with protobuf's ``text_format`` takes 1 to 2.5 µs per character, and clients repeat their
headers, so this module caches texts. This module does not use protobuf to print, because protobuf
for Python prints ``8.0`` where C++ prints ``8``. Printed strings are ASCII without control
characters."""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.text_encoding import CEscape

from infergate.core.bounded_cache import BoundedCache

MAX_CACHED: Final = 2048
"""Maximum number of characters of a short text. The caches of short texts take less than 8 MiB."""
MAX_ON_LOOP: Final = 8192
"""Maximum number of characters that are parsed on the event loop."""
CACHE_SIZE: Final = 512
_FLOAT: Final = struct.Struct("<f")
_RECENT_SIZE: Final = 8
"""Maximum number of cached texts of more than ``MAX_CACHED`` characters. Long texts are cached
because the header of a single request is parsed several times."""
_VALID_ESCAPES: Final = re.compile(
    r"(?:[^\\]++|\\(?:[abfnrtv\\'\"]|[0-3][0-7]{0,2}|[4-7][0-7]?(?![0-7])"
    r"|x[0-9A-Fa-f]|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}))*+"
)
"""Matches text whose escape sequences are all valid in C++. Protobuf for Python also accepts
Python's escape sequences, with a warning."""


def parse(message_class: Any, text: str) -> Any:
    """Parse ``text`` as a ``message_class``. The caller must not modify the result. Raises
    ValueError."""
    return (_cached_parse if len(text) <= MAX_CACHED else _recent_parse)(message_class, text)


def _parse(message_class: Any, text: str) -> Any:
    if "\\" in text and _VALID_ESCAPES.fullmatch(text) is None:
        raise ValueError("it contains an invalid escape sequence")
    try:
        return text_format.Parse(text, message_class())
    except text_format.ParseError as error:
        raise ValueError(str(error)) from None


_cached_parse: Final = functools.lru_cache(maxsize=CACHE_SIZE)(_parse)
_recent_parse: Final = functools.lru_cache(maxsize=_RECENT_SIZE)(_parse)


def to_line(message: Any) -> str:
    """Print ``message`` on one line, like C++ ``ShortDebugString``."""
    return _print_cached(_print_line, message)


def to_lines(message: Any) -> str:
    """Print ``message`` with one line for each field, like C++ ``DebugString``."""
    return _print_cached(_print_lines, message)


_printed_cache: Final = BoundedCache[Any, str](CACHE_SIZE)


def _print_cached(printer: Callable[[Any], str], message: Any) -> str:
    """Print ``message``, and cache the text if the text and the serialized message are short."""
    data = message.SerializeToString(deterministic=True)
    if len(data) > MAX_CACHED:
        return printer(message)
    key = (printer, type(message), data)
    text = _printed_cache.get(key)
    if text is None:
        text = printer(message)
        if len(text) <= MAX_CACHED:
            _printed_cache[key] = text
    return text


def _print_line(message: Any) -> str:
    return " ".join([text for _, text in _lines(message.ListFields(), 0)])


def _print_lines(message: Any) -> str:
    lines = _lines(message.ListFields(), 0)
    return "".join([f"{'  ' * depth}{text}\n" for depth, text in lines])


def _lines(fields: Iterable[tuple[Any, Any]], depth: int) -> Iterator[tuple[int, str]]:
    """Yield the indentation and the text of each line of ``fields`` and their values."""
    for field, value in fields:  # in the order of field numbers
        if field.message_type is None:
            for item in value if field.is_repeated else (value,):
                yield depth, f"{field.name}: {_scalar(field, item)}"
            continue
        for nested_fields in _nested_fields(field, value):
            yield depth, f"{field.name} {{"
            yield from _lines(nested_fields, depth + 1)
            yield depth, "}"


def _nested_fields(field: Any, value: Any) -> list[Iterable[tuple[Any, Any]]]:
    """Return the fields of each message, or of each map entry, in ``value``."""
    if field.message_type.GetOptions().map_entry:
        key_field, value_field = field.message_type.fields
        return [((key_field, key), (value_field, value[key])) for key in sorted(value)]
    return [message.ListFields() for message in (value if field.is_repeated else (value,))]


def _scalar(field: Any, value: Any) -> str:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            return f'"{CEscape(value, as_utf8=False)}"'
        case FieldDescriptor.CPPTYPE_ENUM:
            enum_value = field.enum_type.values_by_number.get(value)
            return str(value) if enum_value is None else str(enum_value.name)
        case FieldDescriptor.CPPTYPE_BOOL:
            return "true" if value else "false"
        case FieldDescriptor.CPPTYPE_FLOAT:
            return format_float(value)
    return str(value)


def format_float(value: float) -> str:
    """Format a 32-bit float like C++ ``SimpleFtoa``: with six digits, or with nine digits if six
    digits do not identify the float."""
    short = f"{value:.6g}"
    return short if _FLOAT.unpack(_FLOAT.pack(float(short)))[0] == value else f"{value:.9g}"
