"""Detects engines compiled by mypyc, and defines the decorator for the classes that mypyc compiles
(setup.py, docs/decisions/0050-compiled-engines.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from infergate.core import bounded_cache

T = TypeVar("T")

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr  # noqa: PLC0414 - exports it
else:

    def mypyc_attr(**_: Any) -> Callable[[type[T]], type[T]]:
        """Return a decorator that mypyc reads and Python ignores."""
        return lambda cls: cls


def is_compiled() -> bool:
    """Return whether the engines are compiled. `bounded_cache` is part of every compiled build."""
    return not bounded_cache.__file__.endswith(".py")


def version_text(version: str) -> str:
    """Return ``version``, with a note if the engines are compiled."""
    return f"{version} (compiled engines)" if is_compiled() else version
