"""Importing this makes records refuse what mypy refuses: to be assigned to once they are made.

At runtime nothing else does (``infergate.core.records``), so every test looks for it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from infergate.core import records


def _dataclass(**_: Any) -> Any:
    def decorate(made: type) -> type:
        kept: Any = dataclasses.dataclass(frozen=True, slots=True)(made)
        # They are pickled as those of other processes are, which do not import this.
        del kept.__getstate__
        kept.__setstate__ = _restore
        return kept

    return decorate


def _restore(kept: object, state: tuple[None, dict[str, object]]) -> None:
    for name, value in state[1].items():
        object.__setattr__(kept, name, value)


records.dataclass = _dataclass  # type: ignore[attr-defined]
