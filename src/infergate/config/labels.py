"""Parses the class labels of an output from routes.yaml or a text file."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from infergate.config.values import describe_value, parse_text

_NEW_LINE: Final = re.compile(r"\r\n?")
"""Matches the line endings CRLF and CR."""


def parse_labels(value: Any, read: Callable[[str], bytes]) -> tuple[str, ...]:
    """Parse labels: a list, or the path of a text file with one label per line.

    ``read`` returns the content of a file. Raises ValueError with a message for the operator."""
    match value:
        case tuple() | list():
            labels = tuple(_label(number, label) for number, label in enumerate(value))
        case str():
            labels = _read(value, read)
        case _:
            raise ValueError(
                f"expected a list of labels or the path of a file, got {describe_value(value)}"
            )
    if not labels:
        raise ValueError("expected at least one label")
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
    except ValueError:  # not UTF-8, or an invalid path
        raise ValueError(f"'{path}' is not a file of UTF-8 text") from None
    return tuple(text.removesuffix("\n").split("\n")) if text else ()
