"""A decorator for cheap immutable values, which are created for every request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """Make ``cls`` a dataclass whose instances are compared, hashed and replaced, but never
    changed.

    mypy rejects assignments to its fields, as for a frozen dataclass. Nothing prevents them at
    runtime: creating a frozen dataclass takes five times as long (docs/decisions/0018).
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
