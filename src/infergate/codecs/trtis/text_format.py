"""The protobuf text format, as the C++ servers print and parse it.

Parsing with protobuf's ``text_format`` takes about 1 µs per byte. Clients send the same header
again and again, so short messages and short printed responses are cached. This module does not use
protobuf to print, because protobuf prints floats in another form than C++ (``8.0`` instead of
``8``). Printed text is ASCII without control characters."""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable
from typing import Any, Final

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.text_encoding import CEscape

from infergate.core.bounded_cache import BoundedCache

MAX_CACHED: Final = 2048
"""Maximum number of characters of a cached text. The caches take less than 8 MiB."""
MAX_ON_LOOP: Final = 8192
"""Maximum number of characters that are parsed on the event loop. Parsing a character takes 1 to
2.5 µs."""
CACHE_SIZE: Final = 512
_FLOAT: Final = struct.Struct("<f")
_RECENT_SIZE: Final = 8
"""Cache size for longer texts. Longer texts are cached because a request's header is parsed
repeatedly."""
_VALID_ESCAPES: Final = re.compile(
    r"(?:[^\\]++|\\(?:[abfnrtv\\'\"]|[0-3][0-7]{0,2}|[4-7][0-7]?(?![0-7])"
    r"|x[0-9A-Fa-f]|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}))*+"
)
"""Matches text with only the escape sequences of C++. Protobuf also accepts Python's escape
sequences, with a warning."""


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
    """Print ``message``. If its bytes and the text are short, the text is cached."""
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
    return " ".join([text for _, text in _lines(message)])


def _print_lines(message: Any) -> str:
    return "".join([f"{'  ' * depth}{text}\n" for depth, text in _lines(message)])


_Lines = list[tuple[int, str]]


def _lines(message: Any) -> _Lines:
    lines: _Lines = []
    _add_fields(lines, message, 0)
    return lines


def _add_fields(printed_lines: _Lines, message: Any, depth: int) -> None:
    for field, value in message.ListFields():  # in the order of field numbers
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _add_entries(printed_lines, field, value, depth)
        else:
            for item in value if field.is_repeated else (value,):
                _add_field(printed_lines, field, item, depth)


def _add_entries(printed_lines: _Lines, field: Any, entries: Any, depth: int) -> None:
    key, value = field.message_type.fields
    for entry in sorted(entries):
        printed_lines.append((depth, f"{field.name} {{"))
        _add_field(printed_lines, key, entry, depth + 1)
        _add_field(printed_lines, value, entries[entry], depth + 1)
        printed_lines.append((depth, "}"))


def _add_field(printed_lines: _Lines, field: Any, value: Any, depth: int) -> None:
    if field.message_type is None:
        printed_lines.append((depth, f"{field.name}: {_scalar(field, value)}"))
    else:
        printed_lines.append((depth, f"{field.name} {{"))
        _add_fields(printed_lines, value, depth + 1)
        printed_lines.append((depth, "}"))


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
    """Format a 32-bit float like C++ ``SimpleFtoa``, with six digits if they suffice, and otherwise
    with nine digits."""
    short = f"{value:.6g}"
    return short if _FLOAT.unpack(_FLOAT.pack(float(short)))[0] == value else f"{value:.9g}"
