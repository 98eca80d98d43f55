"""The rules for names of models, versions, regions and tensors.

Access rules, routes, intermediate proxies and servers must all interpret a name alike
(docs/decisions/0040-name-validation.md). Empty names are accepted here: each operation decides
whether it needs one.
"""

from __future__ import annotations

import re
from typing import Any, Final

from infergate.core.errors import GatewayError, bad_request

MAX_NAME_BYTES: Final = 1024
UNSAFE: Final = (
    "\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff"
)
"""Ranges for a regular expression's character class: control characters (Cc), line and paragraph
separators, bidirectional text controls and lone surrogates."""
_ESCAPED: Final = re.compile(f"[{UNSAFE}]".replace(r"\x00-\x1f", r"\x00-\x08\x0b-\x1f"))
_UNSAFE: Final = re.compile(f"[{UNSAFE}]")
_FORBIDDEN: Final = re.compile(f"(?P<unsafe>[{UNSAFE}])|(?P<escape>%[0-9A-Fa-f]{{2}})|[/\\\\?#]")
_REMEMBERED: Final = 4096
_LONGEST: Final = 256
"""The longest name that is cached, or that one call of ``isprintable`` accepts."""
_FIELDS: Final = (
    ("model", "model name"),
    ("version", "model version"),
    ("repository", "repository's name"),
)


def _oversized(name: str) -> bool:
    return len(name) > MAX_NAME_BYTES or (
        4 * len(name) > MAX_NAME_BYTES and len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES
    )


class NameRule:
    """The rule for names of models and versions. With ``allow_slash``, a model name may have
    several non-empty segments."""

    __slots__ = ("_accepted", "allow_slash")

    def __init__(self, *, allow_slash: bool = False) -> None:
        self.allow_slash: Final = allow_slash
        self._accepted: Final[set[str]] = set()

    def problem(self, name: str) -> str:
        """Return what is wrong with ``name``, or an empty string."""
        if _oversized(name):
            return f"is longer than {MAX_NAME_BYTES} bytes"
        for match in _FORBIDDEN.finditer(name):
            if match["unsafe"]:
                return f"contains the control character U+{ord(match[0]):04X}"
            if match["escape"]:
                return f"contains the percent-escape '{match[0]}'"
            if match[0] != "/" or not self.allow_slash:
                return f"contains '{match[0]}'"
        segments = name.split("/")
        if "" in segments[1:] or (not segments[0] and name):
            return "has an empty segment"
        return next((f"has the segment '{s}'" for s in segments if s in {".", ".."}), "")

    def check(self, name: str, what: str = "model name") -> None:
        """Raise BAD_REQUEST if ``name`` is invalid."""
        is_cacheable = len(name) <= _LONGEST
        if is_cacheable and name in self._accepted:
            return
        if problem := self.problem(name):
            raise bad_request(f"the {what} {problem}")
        if is_cacheable:  # clients choose the names, so the cache is bounded
            if len(self._accepted) >= _REMEMBERED:
                self._accepted.clear()
            self._accepted.add(name)

    def check_operation(self, operation: Any) -> None:
        """Raise BAD_REQUEST if a name in ``operation`` is invalid."""
        for field, label in _FIELDS:
            if name := getattr(operation, field, ""):
                self.check(name, label)
        if name := getattr(operation, "name", ""):
            check_region(name)


STRICT: Final = NameRule()


def check_region(name: str) -> None:
    """Raise BAD_REQUEST if ``name`` is no valid name of a shared memory region."""
    STRICT.check(name, "name of a shared memory region")


def tensor_name_problem(name: str) -> str:
    """Return what is wrong with the tensor name ``name``, or an empty string. TensorFlow's tensor
    names contain ``/``, which is harmless: tensor names never become part of a path."""
    if len(name) <= _LONGEST and name.isprintable():
        return ""
    if _oversized(name):
        return f"is longer than {MAX_NAME_BYTES} bytes"
    match = _UNSAFE.search(name)
    return f"contains the control character U+{ord(match[0]):04X}" if match else ""


def check_tensor_name(name: str, what: str) -> None:
    """Raise BAD_REQUEST if the tensor name ``name`` is invalid; ``label`` is like "input 2"."""
    if problem := tensor_name_problem(name):
        raise bad_request(f"the name of {what} {problem}")


def escaped(text: str) -> str:
    r"""Return ``text`` with ``\uXXXX`` for each character that names must not contain, except line
    feeds and tabs. Such characters hide or forge text in terminals, editors and browsers. Escaped
    JSON text has the same meaning."""
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def is_accepted(rule: NameRule, *names: str) -> bool:
    """Return whether ``rule`` accepts all ``names``, which come from a backend."""
    try:
        for name in names:
            rule.check(name)
    except GatewayError:
        return False
    return True
