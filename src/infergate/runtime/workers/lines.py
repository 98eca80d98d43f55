"""Who writes to the output that several processes have, one at a time."""

from __future__ import annotations

import fcntl
import os
from types import TracebackType


class Turn:
    """Held by one process at a time, and let go when that ends, however. A pipe would mix long
    lines of several: what the system writes at once is 4096 bytes. ``fd`` is a file that all have
    open."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @staticmethod
    def file() -> int:
        """The descriptor of a new one."""
        return os.memfd_create("infergate-lines")

    def __enter__(self) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_EX)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN)
