"""Immutable values that are cheap to create, because every request creates several of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """Make ``cls`` a dataclass whose instances are never changed. Like instances of a frozen
    dataclass, they can be compared, hashed and replaced.

    mypy rejects assignments to the fields. Python does not prevent assignments at runtime, because
    creating an instance of a frozen dataclass takes five times as long (docs/decisions/0018)."""
    return dataclass(slots=True, unsafe_hash=True)(cls)


class _EmptyMapping(dict[Any, Any]):
    __slots__ = ()
    __hash__ = object.__hash__  # type: ignore[assignment]

    def _reject_change(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("this mapping stays empty")

    __setitem__ = __ior__ = setdefault = update = _reject_change

    def __reduce__(self) -> str:
        return "EMPTY_MAPPING"


EMPTY_MAPPING: Final = _EmptyMapping()
"""A mapping that rejects changes. It is hashable, so a dataclass field can have it as its default;
a ``default_factory`` would cost a call for each object."""
