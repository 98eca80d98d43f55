"""The files in memory that all workers have open."""

from __future__ import annotations

import os
from typing import NamedTuple

from infergate.access.shared_rates import SharedBuckets
from infergate.runtime.workers.lines import Turn


class Files(NamedTuple):
    """Their descriptors. They are made by the supervisor, and outlast every worker."""

    lines: int
    """Of the turn to write lines."""
    rates: int
    """Of what rates have counted."""

    @classmethod
    def made(cls) -> Files:
        """New ones."""
        return cls(Turn.file(), SharedBuckets.file())

    def close(self) -> None:
        """Nobody is handed them any more."""
        for each in self:
            os.close(each)
