"""Protobuf's text form: as the C++ servers print it, and as they read it.

*Strategy.* Reading is the library's (``text_format``): the whole grammar, about 1 µs a byte.
Clients send the same header again and again, so what short ones say is remembered; so is how short
answers are printed. Printing is written here: the library's floats look different (``8.0`` where
C++ prints ``8``).

*Rule 1.* A message that was read may be in the memory: nobody changes it.
*Rule 2.* What is printed is ASCII without control characters: it can stand in a header.
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
"""Characters. 256 requests and as many answers with a message of each are under 8 MiB."""
LONGEST_ON_LOOP: Final = 8192
"""Characters that the event loop reads: each takes it 1 to 2.5 µs."""
REMEMBERED: Final = 512
_FLOAT: Final = struct.Struct("<f")
_JUST_READ: Final = 8
"""Longer ones: a request's header is looked at more than once on its way."""
_ESCAPES: Final = re.compile(
    r"(?:[^\\]++|\\(?:[abfnrtv\\'\"]|[0-3][0-7]{0,2}|[4-7][0-7]?(?![0-7])"
    r"|x[0-9A-Fa-f]|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}))*+"
)
"""Text whose backslashes are C++'s. The library takes others as Python would, with a warning."""


def read(kind: Any, text: str) -> Any:
    """The message of class ``kind`` that ``text`` says; not to be changed. Raises ValueError."""
    return (_remembered if len(text) <= LONGEST_REMEMBERED else _just_read)(kind, text)


def _read(kind: Any, text: str) -> Any:
    if "\\" in text and _ESCAPES.fullmatch(text) is None:
        raise ValueError("it holds a wrong escape sequence")
    try:
        return text_format.Parse(text, kind())
    except text_format.ParseError as error:
        raise ValueError(str(error)) from None


_remembered: Final = functools.lru_cache(maxsize=REMEMBERED)(_read)
_just_read: Final = functools.lru_cache(maxsize=_JUST_READ)(_read)


def line(message: Any) -> str:
    """C++ ``ShortDebugString``: all on one line."""
    return _printed(_line, message)


def lines(message: Any) -> str:
    """C++ ``DebugString``: a line for each field, indented by two spaces a level."""
    return _printed(_indented, message)


_known: Final[dict[Any, str]] = {}


def _printed(how: Callable[[Any], str], message: Any) -> str:
    """How ``message`` is printed, remembered by its bytes where these and the text are short: one
    byte may become ten characters."""
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
    """The lines of ``message`` with their depths."""
    found: _Lines = []
    _add_fields(found, message, 0)
    return found


def _add_fields(found: _Lines, message: Any, depth: int) -> None:
    for field, value in message.ListFields():  # in the order of the fields' numbers
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _add_entries(found, field, value, depth)
        else:
            for each in value if field.is_repeated else (value,):
                _add_field(found, field, each, depth)


def _add_entries(found: _Lines, field: Any, entries: Any, depth: int) -> None:
    """A map's entries, in the order of their keys."""
    key, value = field.message_type.fields
    for each in sorted(entries):
        found.append((depth, f"{field.name} {{"))
        _add_field(found, key, each, depth + 1)
        _add_field(found, value, entries[each], depth + 1)
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
            known = field.enum_type.values_by_number.get(value)
            return str(value) if known is None else str(known.name)
        case FieldDescriptor.CPPTYPE_BOOL:
            return "true" if value else "false"
        case FieldDescriptor.CPPTYPE_FLOAT:
            return spell_float(value)
    return str(value)


def spell_float(value: float) -> str:
    """C++ ``SimpleFtoa``: six digits where they tell this float from its neighbours, else nine."""
    short = f"{value:.6g}"
    return short if _FLOAT.unpack(_FLOAT.pack(float(short)))[0] == value else f"{value:.9g}"
