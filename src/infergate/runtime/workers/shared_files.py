"""The in-memory files that all workers have open."""

from __future__ import annotations

import os
from typing import NamedTuple

from infergate.access.shared_rates import SharedBuckets
from infergate.caching.shared_store import SharedStore
from infergate.runtime.workers.log_lock import LogLock


class SharedFiles(NamedTuple):
    """The descriptors of the files. The supervisor creates the files, which outlast every
    worker."""

    log_lock: int
    """The lock for writing log lines."""
    rate_buckets: int
    """The shared rate limit buckets."""
    response_cache: int
    """The shared response cache."""

    @classmethod
    def create(cls) -> SharedFiles:
        return cls(LogLock.create_file(), SharedBuckets.create_file(), SharedStore.create_file())

    def close(self) -> None:
        """Close the descriptors of this process. Workers keep their descriptors."""
        for descriptor in self:
            os.close(descriptor)
