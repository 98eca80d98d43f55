"""The names of an output's classes: in the config itself, or in a file beside it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from infergate.config.values import parse_text, told

_NEW_LINE: Final = re.compile(r"\r\n?")
"""What a text file may end its lines with besides."""


def parse_labels(value: Any, read: Callable[[str], bytes]) -> tuple[str, ...]:
    """The labels in ``value``: a list of them, or the path of a file with one a line, which is
    ``read``.

    Raises ValueError with a message for the operator.
    """
    match value:
        case tuple() | list():
            labels = tuple(_label(number, each) for number, each in enumerate(value))
        case str():
            labels = _read(value, read)
        case _:
            raise ValueError(f"expected a list of labels or the path of a file, got {told(value)}")
    if not labels:
        raise ValueError("there are no labels")
    return labels


def _label(number: int, value: Any) -> str:
    try:
        return parse_text(value)
    except ValueError as error:
        raise ValueError(f"label {number}: {error}") from None


def _read(path: str, read: Callable[[str], bytes]) -> tuple[str, ...]:
    try:
        text = _NEW_LINE.sub("\n", read(path).decode("utf-8-sig"))
    except OSError as error:
        raise ValueError(f"the file '{path}' cannot be read: {error.strerror}") from None
    except ValueError:  # not UTF-8, or a path that cannot be one
        raise ValueError(f"'{path}' is not a file of UTF-8 text") from None
    return tuple(text.removesuffix("\n").split("\n")) if text else ()
