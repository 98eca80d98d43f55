"""Lines that say the same again and again: of many in one second most are left out."""

from __future__ import annotations

import logging
from typing import Final

_MOST: Final = 20
"""Lines alike in a second."""
_KINDS: Final = 1024
"""Kinds that are remembered."""
_ALL: Final = frozenset({"infergate.audit"})
"""Loggers each of whose lines is told."""


class Repeated(logging.Filter):
    """Lets ``most`` lines a second of a kind through: those of one logger with one text, whatever
    is filled in. The next one after a second tells how many were left out."""

    def __init__(self, most: int = _MOST) -> None:
        super().__init__()
        self._most: Final = most
        self._kinds: Final[dict[tuple[str, str], list[int]]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether ``record`` is told."""
        if record.name in _ALL:
            return True
        kind, second = (record.name, str(record.msg)), int(record.created)
        counted = self._kinds.get(kind)
        if counted is None:
            if len(self._kinds) >= _KINDS:
                self._kinds.clear()
            counted = self._kinds[kind] = [second, 0]
        if counted[0] != second:
            more = counted[1] - self._most
            counted[:] = second, 0
            if more > 0:
                record.msg = f"{record.msg} ({more} lines like it were left out before)"
        counted[1] += 1
        return counted[1] <= self._most
