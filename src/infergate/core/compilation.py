"""Whether mypyc compiled the installed engines, and how it treats classes (setup.py,
docs/decisions/0050)."""

from __future__ import annotations

from typing import TypeVar

from infergate import __version__
from infergate.core import wire

T = TypeVar("T")


def is_compiled() -> bool:
    """Return whether the engines are compiled: `wire` is, wherever they are."""
    return not wire.__file__.endswith(".py")


def version_text() -> str:
    """Return the version, and whether the engines are compiled."""
    return f"{__version__} (compiled engines)" if is_compiled() else __version__


def regular_class(cls: type[T]) -> type[T]:
    """Return ``cls`` unchanged. mypyc compiles the methods of a class with this decorator, but
    keeps it a regular Python class, which may have any attributes and bases."""
    return cls
