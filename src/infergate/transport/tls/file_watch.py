"""Detects changed certificate files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

_CHECK_INTERVAL: Final = 1.0  # seconds between two checks


class FileWatch:
    """Checks at most once a second whether ``files`` were changed or replaced."""

    def __init__(
        self, files: Iterable[Path | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Elements of ``files`` that are None are ignored. ``clock`` returns seconds."""
        self._files: Final = [file for file in files if file is not None]
        self._clock: Final = clock
        self._checked_at = clock()
        self._identities = self._read_identities()

    def has_changed(self) -> bool:
        """Return whether the files have changed since the last check."""
        if not self._files or (now := self._clock()) < self._checked_at + _CHECK_INTERVAL:
            return False
        before, self._checked_at, self._identities = self._identities, now, self._read_identities()
        return self._identities != before

    def _read_identities(self) -> list[tuple[int, ...] | None]:
        return list(map(_identity, self._files))


def _identity(file: Path) -> tuple[int, ...] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
