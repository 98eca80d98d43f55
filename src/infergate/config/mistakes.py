"""Errors in a configuration, with their locations and suggestions for misspelt names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

K = TypeVar("K")
V = TypeVar("V")
KeyPath = tuple[str | int, ...]
"""The location of a value: the keys and list positions that lead to it from the top of the file."""

Finding = tuple[KeyPath, str]
"""The location of a value, and a message about the value."""

_PLAIN_KEY = re.compile(r"[\w*?-]+")


@dataclass(frozen=True, slots=True)
class Mistake:
    """An error in the configuration, or a warning about it. ``line`` counts from 1, and is 0 if
    unknown. ``path`` is empty if the message is not about a single value."""

    file: str
    line: int
    path: str
    message: str

    def __str__(self) -> str:
        location = f"{self.file}:{self.line}" if self.line else self.file
        return ": ".join(part for part in (location, self.path, self.message) if part)


class ConfigError(Exception):
    """An invalid configuration, with all errors found in it."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__("\n".join(map(str, mistakes)))
        self.mistakes = tuple(mistakes)

    @classmethod
    def of_file(cls, file: Path | str, message: str, line: int = 0) -> Self:
        """Return an error with a single mistake, without a path."""
        return cls([Mistake(str(file), line, "", message)])


def format_path(path: KeyPath) -> str:
    """Format ``("routes", 0, "backend")`` as ``routes[0].backend``, and unusual keys as
    ``['key']``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN_KEY.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f"[{step!r}]"
    return text


def nearest(name: str, expected: Collection[str]) -> str | None:
    """Return the expected name that is most similar to ``name``, or None if no name is similar."""
    by_folded = {k.lower().replace("-", "_"): k for k in expected}
    close = difflib.get_close_matches(name.lower().replace("-", "_"), by_folded, n=1)
    return by_folded[close[0]] if close else None


def duplicates(items: Iterable[tuple[K, V]]) -> Iterator[tuple[K, K, V]]:
    """Yield (key, earlier key, value) for each item with the same value as an earlier item."""
    first: dict[V, K] = {}
    for key, value in items:
        if value in first:
            yield key, first[value], value
        first.setdefault(value, key)


def suggestion(name: str, expected: Collection[str]) -> str:
    """Return the end of a message about an unknown ``name``: a similar expected name, or all
    expected names."""
    close = nearest(name, expected)
    if close is not None:
        return f"; did you mean '{close}'?"
    return f"; expected one of: {', '.join(sorted(expected))}" if expected else ""
