"""The rules for names of models, versions, repositories, regions and tensors.

Access rules, routes, intermediate proxies and servers must all interpret a name alike
(docs/decisions/0040-name-validation.md). These rules accept empty names, because each operation
decides whether it requires a name."""

from __future__ import annotations

import re
from typing import Any, Final

from infergate.core.bounded_cache import BoundedCache
from infergate.core.errors import GatewayError, bad_request

MAX_NAME_BYTES: Final = 1024
UNSAFE_CHARACTERS: Final = (
    "\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff"
)
"""Ranges for a regular expression's character class: control characters (Cc), line and paragraph
separators, bidirectional text controls and lone surrogates."""
_TO_ESCAPE: Final = re.compile(
    f"[{UNSAFE_CHARACTERS}]".replace(r"\x00-\x1f", r"\x00-\x08\x0b-\x1f")
)
_UNSAFE: Final = re.compile(f"[{UNSAFE_CHARACTERS}]")
_FORBIDDEN: Final = re.compile(
    f"(?P<unsafe>[{UNSAFE_CHARACTERS}])|(?P<escape>%[0-9A-Fa-f]{{2}})|[/\\\\?#]"
)
_MAX_CACHED_NAMES: Final = 4096
_MAX_CACHED_LENGTH: Final = 256
"""Maximum length of a cached name, and of a tensor name for which ``isprintable`` alone is a
sufficient check."""
_CHECKED_FIELDS: Final = (
    ("model", "model name"),
    ("version", "model version"),
    ("repository", "repository's name"),
)


def _is_too_long(name: str) -> bool:
    return len(name) > MAX_NAME_BYTES or (
        4 * len(name) > MAX_NAME_BYTES and len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES
    )


class NameRule:
    """A rule for names, such as names of models and versions. With ``allow_slash``, a name may have
    several non-empty segments."""

    __slots__ = ("_accepted_names", "allow_slash")

    def __init__(self, *, allow_slash: bool = False) -> None:
        self.allow_slash: Final = allow_slash
        self._accepted_names: Final = BoundedCache[str, None](_MAX_CACHED_NAMES)

    def find_problem(self, name: str) -> str:
        """Return the error in ``name``, or an empty string."""
        if _is_too_long(name):
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

    def check(self, name: str, label: str = "model name") -> None:
        """Raise BAD_REQUEST if ``name`` is invalid."""
        is_cacheable = len(name) <= _MAX_CACHED_LENGTH
        if is_cacheable and name in self._accepted_names:
            return
        if problem := self.find_problem(name):
            raise bad_request(f"the {label} {problem}")
        if is_cacheable:
            self._accepted_names[name] = None

    def check_model(self, model: str, version: str) -> None:
        """Raise BAD_REQUEST if the name of a model, or a non-empty version, is invalid."""
        if model and model not in self._accepted_names:
            self.check(model)
        if version and version not in self._accepted_names:
            self.check(version, "model version")

    def check_operation(self, operation: Any) -> None:
        """Raise BAD_REQUEST if a name in ``operation`` is invalid."""
        for field, label in _CHECKED_FIELDS:
            if name := getattr(operation, field, ""):
                self.check(name, label)
        if name := getattr(operation, "name", ""):
            check_region_name(name)


STRICT_RULE: Final = NameRule()


def check_region_name(name: str) -> None:
    """Raise BAD_REQUEST if ``name`` is not a valid name of a shared memory region."""
    STRICT_RULE.check(name, "name of a shared memory region")


def find_tensor_name_problem(name: str) -> str:
    """Return the error in the tensor name ``name``, or an empty string. Unlike model names, tensor
    names may contain ``/``, as in TensorFlow, because they never become part of a path."""
    if len(name) <= _MAX_CACHED_LENGTH and name.isprintable():
        return ""
    if _is_too_long(name):
        return f"is longer than {MAX_NAME_BYTES} bytes"
    match = _UNSAFE.search(name)
    return f"contains the control character U+{ord(match[0]):04X}" if match else ""


def check_tensor_name(name: str, label: str) -> None:
    """Raise BAD_REQUEST if the tensor name ``name`` is invalid. ``label`` describes the tensor, as
    in "input 2"."""
    if problem := find_tensor_name_problem(name):
        raise bad_request(f"the name of {label} {problem}")


def escape_unsafe(text: str) -> str:
    r"""Return ``text`` with ``\uXXXX`` for each of the UNSAFE_CHARACTERS, except line feeds and
    tabs. These characters could hide or forge text in terminals, editors and browsers. Escaping
    does not change the meaning of JSON strings."""
    return _TO_ESCAPE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def are_accepted(rule: NameRule, *names: str) -> bool:
    """Return whether ``rule`` accepts all ``names`` sent by a backend."""
    try:
        for name in names:
            rule.check(name)
    except GatewayError:
        return False
    return True
