"""A lock that processes hold while they write to their common log output."""

from __future__ import annotations

import fcntl
import os


class LogLock:
    """A lock that one process holds at a time. The lock is released if the process ends. Without
    the lock, long lines of several processes could mix in a pipe, because only writes of up to 4096
    bytes are atomic. ``fd`` is a file that all processes have open."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @staticmethod
    def create_file() -> int:
        """Create the file and return its descriptor."""
        return os.memfd_create("infergate-lines")

    def __enter__(self) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN)
