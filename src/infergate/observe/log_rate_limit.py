"""Rate limiting of repeated log lines."""

from __future__ import annotations

import logging
from typing import Final

from infergate.core.bounded_cache import BoundedCache

_MAX_LINES: Final = 20
"""Maximum number of similar lines per second."""
_MAX_KINDS: Final = 1024
_UNLIMITED: Final = frozenset({"infergate.audit"})


class LogRateLimit(logging.Filter):
    """Passes at most ``max_lines`` lines per second with the same logger and message template. The
    first such line after that second has the number of lines left out."""

    def __init__(self, max_lines: int = _MAX_LINES) -> None:
        super().__init__()
        self._max_lines: Final = max_lines
        self._kinds: Final = BoundedCache[tuple[str, str], list[int]](_MAX_KINDS)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log ``record``."""
        if record.name in _UNLIMITED:
            return True
        kind, second = (record.name, str(record.msg)), int(record.created)
        counts = self._kinds.get(kind)
        if counts is None:
            counts = self._kinds[kind] = [second, 0]
        if counts[0] != second:
            dropped = counts[1] - self._max_lines
            counts[:] = second, 0
            if dropped > 0:
                record.msg = f"{record.msg} ({dropped} similar lines left out before)"
        counts[1] += 1
        return counts[1] <= self._max_lines
