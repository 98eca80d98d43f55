"""Rate limiting of repeated log lines."""

from __future__ import annotations

import logging
from typing import Final

from infergate.observe.log_sampler import LogSampler

_MAX_LINES: Final = 20
"""Maximum number of similar lines per second."""
_MAX_KINDS: Final = 1024
_UNLIMITED: Final = frozenset({"infergate.audit"})


class LogRateLimit(logging.Filter):
    """Passes at most ``max_lines`` lines per second with the same logger and message template. The
    next such line that passes states how many lines were dropped. The audit log is not limited."""

    def __init__(self, max_lines: int = _MAX_LINES) -> None:
        super().__init__()
        self._sampler: Final = LogSampler(max_lines, every=0, max_kinds=_MAX_KINDS)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name in _UNLIMITED:
            return True
        left_out = self._sampler.count_left_out(record.name, str(record.msg), record.created)
        if left_out:
            record.msg = f"{record.msg} ({left_out} similar lines were dropped before this line)"
        return left_out is not None
