"""What nobody changes once it is made, and what is made for every request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(made: type[T]) -> type[T]:
    """A dataclass of values that are told, compared and replaced, never changed.

    mypy refuses to assign to a field, as to one of a frozen dataclass. At runtime nothing does: a
    frozen one takes five times as long to make (docs/decisions/0018).
    """
    return dataclass(slots=True, unsafe_hash=True)(made)
