"""Importing this makes records refuse what mypy refuses: to be assigned to once they are made.

At runtime nothing else does (``infergate.core.records``), so every test looks for it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from infergate.core import records


def _assign_once(kept: object, name: str, value: object) -> None:
    if hasattr(kept, name):
        raise dataclasses.FrozenInstanceError(f"cannot assign to field '{name}'")
    object.__setattr__(kept, name, value)


def _dataclass(**options: Any) -> Any:
    def decorate(made: type) -> type:
        kept = dataclasses.dataclass(**options)(made)
        kept.__setattr__ = _assign_once  # type: ignore[assignment]
        return kept

    return decorate


records.dataclass = _dataclass  # type: ignore[attr-defined]
