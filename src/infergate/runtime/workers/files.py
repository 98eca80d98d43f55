"""The in-memory files that all workers have open."""

from __future__ import annotations

import os
from typing import NamedTuple

from infergate.access.shared_rates import SharedBuckets
from infergate.runtime.workers.lines import Turn


class Files(NamedTuple):
    """Their descriptors, created by the supervisor. They outlast every worker."""

    lines: int
    """The lock for writing log lines."""
    rates: int
    """The shared rate-limit counters."""

    @classmethod
    def made(cls) -> Files:
        """Create the files."""
        return cls(Turn.file(), SharedBuckets.file())

    def close(self) -> None:
        """Close the descriptors; workers keep theirs."""
        for descriptor in self:
            os.close(descriptor)
