r"""What a client calls a model that its backend has under another name, where that can be told.

*Rule.* It can of a regular expression that is fixed text around one group, rewritten to fixed text
around that group: ``/prod\.(.+)/`` to ``\1``. What comes of it is a guess until it is matched.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_TEXT: Final = r"(?:[^\\()\[\]{}.*+?|^$]|\\[^\w\s])*"
"""Of a regular expression: characters that stand for themselves, and escaped punctuation."""
_ONE_GROUP: Final = re.compile(rf"\^?({_TEXT})\((?!\?)(?:[^\\()]|\\.)*\)({_TEXT})\$?")
_TEMPLATE: Final = re.compile(r"([^\\]*)\\(?:1|g<1>)(\D[^\\]*|)")


def inverse(expression: str, template: str) -> Callable[[str], str | None] | None:
    """What makes a client's name of a backend's; None where Rule does not hold."""
    pattern = _ONE_GROUP.fullmatch(expression)
    rewritten = _TEMPLATE.fullmatch(template)
    if pattern is None or rewritten is None:
        return None
    before, after = (re.sub(r"\\(.)", r"\1", text) for text in pattern.groups())
    prefix, suffix = rewritten.groups()

    def client_model(theirs: str) -> str | None:
        if len(theirs) < len(prefix) + len(suffix):
            return None
        if not (theirs.startswith(prefix) and theirs.endswith(suffix)):
            return None
        return before + theirs[len(prefix) : len(theirs) - len(suffix)] + after

    return client_model
