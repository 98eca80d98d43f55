"""Importing this makes records refuse what mypy refuses: to be assigned to once they are made.

At runtime nothing else does (``infergate.core.records``), so every test looks for it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from infergate.core import records


def _frozen(**_: Any) -> Any:
    return dataclasses.dataclass(frozen=True, slots=True)


records.dataclass = _frozen  # type: ignore[attr-defined]
