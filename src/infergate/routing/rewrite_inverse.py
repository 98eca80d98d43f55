r"""Derives the client's name of a model from the backend's name on routes with a regex.

The regex must be fixed text around one group, and the rewrite must be fixed text around that group.
An example is the regex ``/prod\.(.+)/`` with the rewrite ``\1``. Callers must match the result
against the route."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_TEXT: Final = r"(?:[^\\()\[\]{}.*+?|^$]|\\[^\w\s])*"
"""Matches the literal characters of a regex, including escaped punctuation."""
_ONE_GROUP: Final = re.compile(rf"\^?({_TEXT})\((?!\?)(?:[^\\()]|\\.)*\)({_TEXT})\$?")
_TEMPLATE: Final = re.compile(r"([^\\]*)\\(?:1|g<1>)(\D[^\\]*|)")


def invert_rewrite(expression: str, template: str) -> Callable[[str], str | None] | None:
    """Return a function that maps a backend's name to the client's name, or to None if the name
    does not match. Return None if ``expression`` or ``template`` is not supported."""
    pattern = _ONE_GROUP.fullmatch(expression)
    rewritten = _TEMPLATE.fullmatch(template)
    if pattern is None or rewritten is None:
        return None
    before, after = (re.sub(r"\\(.)", r"\1", text) for text in pattern.groups())
    prefix, suffix = rewritten.groups()

    def client_model(name: str) -> str | None:
        if len(name) < len(prefix) + len(suffix):
            return None
        if not (name.startswith(prefix) and name.endswith(suffix)):
            return None
        return before + name[len(prefix) : len(name) - len(suffix)] + after

    return client_model
