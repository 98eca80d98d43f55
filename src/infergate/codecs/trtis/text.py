"""The protobuf text format, as the C++ servers print and parse it.

Parsing uses the library's ``text_format``, which has the whole grammar and takes about 1 µs per
byte. Clients send the same header again and again, so short messages are cached, as are short
printed responses. Printing is implemented here because the library prints floats differently
(``8.0`` where C++ prints ``8``).

*Rule 1.* A parsed message may be in the cache and must not be modified.
*Rule 2.* Printed text is ASCII without control characters, so that it can be used in a header.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable
from typing import Any, Final

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.text_encoding import CEscape

LONGEST_REMEMBERED: Final = 2048
"""Characters. The caches hold less than 8 MiB with entries of this size."""
LONGEST_ON_LOOP: Final = 8192
"""Characters that are parsed on the event loop, at 1 to 2.5 µs each."""
REMEMBERED: Final = 512
_FLOAT: Final = struct.Struct("<f")
_JUST_READ: Final = 8
"""Longer texts in the cache: the header of a request is parsed several times."""
_ESCAPES: Final = re.compile(
    r"(?:[^\\]++|\\(?:[abfnrtv\\'\"]|[0-3][0-7]{0,2}|[4-7][0-7]?(?![0-7])"
    r"|x[0-9A-Fa-f]|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}))*+"
)
"""Text with the escape sequences of C++ only. The library interprets others like Python, with a
warning."""


def read(kind: Any, text: str) -> Any:
    """Parse ``text`` to a message of ``message_class``, which must not be modified. Raises
    ValueError."""
    return (_remembered if len(text) <= LONGEST_REMEMBERED else _just_read)(kind, text)


def _read(kind: Any, text: str) -> Any:
    if "\\" in text and _ESCAPES.fullmatch(text) is None:
        raise ValueError("it contains an invalid escape sequence")
    try:
        return text_format.Parse(text, kind())
    except text_format.ParseError as error:
        raise ValueError(str(error)) from None


_remembered: Final = functools.lru_cache(maxsize=REMEMBERED)(_read)
_just_read: Final = functools.lru_cache(maxsize=_JUST_READ)(_read)


def line(message: Any) -> str:
    """Print ``message`` on one line, like C++ ``ShortDebugString``."""
    return _printed(_line, message)


def lines(message: Any) -> str:
    """Print ``message`` with a line for each field, indented by two spaces a level, like C++
    ``DebugString``."""
    return _printed(_indented, message)


_known: Final[dict[Any, str]] = {}


def _printed(how: Callable[[Any], str], message: Any) -> str:
    """Print ``message``, with a cache by its bytes if these and the text are short: a byte may
    become ten characters."""
    data = message.SerializeToString(deterministic=True)
    if len(data) > LONGEST_REMEMBERED:
        return how(message)
    key = (how, type(message), data)
    text = _known.get(key)
    if text is None:
        text = how(message)
        if len(text) <= LONGEST_REMEMBERED:
            if len(_known) >= REMEMBERED:
                _known.clear()
            _known[key] = text
    return text


def _line(message: Any) -> str:
    return " ".join([text for _, text in _lines(message)])


def _indented(message: Any) -> str:
    return "".join([f"{'  ' * depth}{text}\n" for depth, text in _lines(message)])


_Lines = list[tuple[int, str]]


def _lines(message: Any) -> _Lines:
    """Return the lines of ``message`` with their depths."""
    lines: _Lines = []
    _add_fields(lines, message, 0)
    return lines


def _add_fields(found: _Lines, message: Any, depth: int) -> None:
    for field, value in message.ListFields():  # in the order of field numbers
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _add_entries(found, field, value, depth)
        else:
            for item in value if field.is_repeated else (value,):
                _add_field(found, field, item, depth)


def _add_entries(found: _Lines, field: Any, entries: Any, depth: int) -> None:
    """Add the entries of a map, sorted by key."""
    key, value = field.message_type.fields
    for entry in sorted(entries):
        found.append((depth, f"{field.name} {{"))
        _add_field(found, key, entry, depth + 1)
        _add_field(found, value, entries[entry], depth + 1)
        found.append((depth, "}"))


def _add_field(found: _Lines, field: Any, value: Any, depth: int) -> None:
    if field.message_type is None:
        found.append((depth, f"{field.name}: {_scalar(field, value)}"))
    else:
        found.append((depth, f"{field.name} {{"))
        _add_fields(found, value, depth + 1)
        found.append((depth, "}"))


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
            return spell_float(value)
    return str(value)


def spell_float(value: float) -> str:
    """Format a 32-bit float like C++ ``SimpleFtoa``: with six digits if these identify it, else
    with nine."""
    short = f"{value:.6g}"
    return short if _FLOAT.unpack(_FLOAT.pack(float(short)))[0] == value else f"{value:.9g}"
