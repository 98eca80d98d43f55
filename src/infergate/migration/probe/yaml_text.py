"""Writes values as YAML text in flow style, for files with comments. PyYAML cannot write
comments."""

from __future__ import annotations

import re
from typing import Any, Final

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*")
_SPECIAL: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off"})


def flow(value: Any) -> str:
    """Return ``value`` (JSON data) in flow style. ``${`` in strings is escaped, except in keys,
    where routes.yaml has no variables."""
    match value:
        case dict():
            members = (f"{scalar(str(key))}: {flow(item)}" for key, item in value.items())
            return "{" + ", ".join(members) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(flow, value)) + "]"
        case str():
            return scalar(value.replace("${", "$${"))
        case bool():
            return "true" if value else "false"
        case None:
            return "null"
    return str(value)


def scalar(text: str) -> str:
    """Return ``text`` as a YAML scalar, in quotes if necessary."""
    if _PLAIN.fullmatch(text) and text.lower() not in _SPECIAL:
        return text
    return '"' + "".join(map(_escape, text)) + '"'


def _escape(character: str) -> str:
    if character in {'"', "\\"}:
        return f"\\{character}"
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
