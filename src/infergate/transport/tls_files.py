"""Whether files of certificates are others than before."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

_EVERY: Final = 1.0
"""Seconds between two looks."""


class Watch:
    """Looks at ``files`` when asked, at most once a second: a change of what is in one, another
    one in its place, and another target of a symbolic link before it, are all seen."""

    def __init__(
        self, files: Iterable[Path | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Of ``files`` None is passed over. ``clock`` is in seconds."""
        self._files: Final = [each for each in files if each is not None]
        self._clock: Final = clock
        self._looked = clock()
        self._seen = self._look()

    def has_changed(self) -> bool:
        """Whether they are others than at the last look."""
        if not self._files or (now := self._clock()) < self._looked + _EVERY:
            return False
        before, self._looked, self._seen = self._seen, now, self._look()
        return self._seen != before

    def _look(self) -> list[tuple[int, ...] | None]:
        return list(map(_identity, self._files))


def _identity(file: Path) -> tuple[int, ...] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
