"""Which names of models, versions, regions and tensors are accepted.

A name means the same to the access rules, to the routes, to every proxy on the way and to the
server (docs/decisions/0040-names.md). Empty names are not judged here: each operation says whether
it needs one.
"""

from __future__ import annotations

import re
from typing import Any, Final

from infergate.core.errors import GatewayError, bad_request

MAX_NAME_BYTES: Final = 1024
UNSAFE: Final = (
    "\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff"
)
"""As a class of a regular expression: the control characters (Cc), line and paragraph separators,
the controls of bidirectional text, and lone surrogates."""
_ESCAPED: Final = re.compile(f"[{UNSAFE}]".replace(r"\x00-\x1f", r"\x00-\x08\x0b-\x1f"))
_UNSAFE: Final = re.compile(f"[{UNSAFE}]")
_FORBIDDEN: Final = re.compile(f"(?P<unsafe>[{UNSAFE}])|(?P<escape>%[0-9A-Fa-f]{{2}})|[/\\\\?#]")
_REMEMBERED: Final = 4096
_LONGEST: Final = 256
"""Characters of a name that is remembered, or accepted by one call of ``isprintable``."""
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
    """The rule for the names of models and versions. ``allow_slash``: a model's name may consist of
    several segments, none of them empty."""

    __slots__ = ("_accepted", "allow_slash")

    def __init__(self, *, allow_slash: bool = False) -> None:
        self.allow_slash: Final = allow_slash
        self._accepted: Final[set[str]] = set()

    def problem(self, name: str) -> str:
        """What is wrong with ``name``; empty if nothing is."""
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
        """Raise BAD_REQUEST for a ``name`` that is not accepted."""
        short = len(name) <= _LONGEST
        if short and name in self._accepted:
            return
        if problem := self.problem(name):
            raise bad_request(f"the {what} {problem}")
        if short:  # clients choose names: the number of those remembered is bounded
            if len(self._accepted) >= _REMEMBERED:
                self._accepted.clear()
            self._accepted.add(name)

    def check_operation(self, operation: Any) -> None:
        """Raise BAD_REQUEST for an ``operation`` one of whose names is not accepted."""
        for field, what in _FIELDS:
            if name := getattr(operation, field, ""):
                self.check(name, what)
        if name := getattr(operation, "name", ""):
            check_region(name)


STRICT: Final = NameRule()


def check_region(name: str) -> None:
    """Raise BAD_REQUEST for the name of a shared memory region that is not accepted."""
    STRICT.check(name, "name of a shared memory region")


def tensor_name_problem(name: str) -> str:
    """What is wrong with a tensor's ``name``; empty if nothing is. TensorFlow's names contain
    ``/``, and tensor names are never part of a path."""
    if len(name) <= _LONGEST and name.isprintable():
        return ""
    if _oversized(name):
        return f"is longer than {MAX_NAME_BYTES} bytes"
    match = _UNSAFE.search(name)
    return f"contains the control character U+{ord(match[0]):04X}" if match else ""


def check_tensor_name(name: str, what: str) -> None:
    """Raise BAD_REQUEST for a tensor's ``name`` that is not accepted; ``what`` is "input 2"."""
    if problem := tensor_name_problem(name):
        raise bad_request(f"the name of {what} {problem}")


def escaped(text: str) -> str:
    r"""``text`` with ``\uXXXX`` in place of each character that no name may contain, but for line
    feeds and tabs. JSON stays the same JSON. Such characters hide or forge text in terminals,
    editors and browsers."""
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def is_accepted(rule: NameRule, *names: str) -> bool:
    """Whether ``rule`` accepts all ``names``, which a backend has sent."""
    try:
        for name in names:
            rule.check(name)
    except GatewayError:
        return False
    return True
