"""A file that is read again when it changes.

*Strategy.* Who needs it looks at it, once a second at most: nothing runs while nobody asks, and
nobody gets what was taken out of the file longer than that. Secrets that Kubernetes mounts are
links, which stat follows.
*Rule.* A file that cannot be read, or makes no sense, leaves what was read before, and is told of.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from infergate.core.vocabulary import ACCESS_FILE_REFUSED, ACCESS_FILE_TAKEN

T = TypeVar("T")
_log = logging.getLogger("infergate.access")

PERIOD: Final = 1.0
"""Seconds."""
_PATIENCE: Final = 2.0
"""Seconds for a file system that hangs."""
_Stamp = tuple[int, int, int, int]


class Watched(Generic[T]):
    """What ``parse`` makes of the file at ``path``."""

    def __init__(
        self, path: Path, parse: Callable[[bytes], T], value: T, failed: Callable[[], None]
    ) -> None:
        """``parse`` raises ValueError; ``value`` is what it made of the file before, ``failed`` is
        called where it does not."""
        self._path: Final = path
        self._parse: Final = parse
        self._value = value
        self._failed: Final = failed
        self._stamp: _Stamp | None = None
        self._data: bytes | None = None
        self._said = ""
        self._due = 0.0
        self._looks = 0
        self._lock: Final = asyncio.Lock()

    async def current(self, now: float) -> T:
        """What it holds; ``now`` is of ``time.monotonic``."""
        if now >= self._due:
            looks = self._looks
            async with self._lock:
                if looks == self._looks:  # nobody has looked since, who may have had to wait long
                    await self._look()
                    self._looks += 1
                    self._due = now + PERIOD
        return self._value

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                await asyncio.to_thread(self._read)
        except (OSError, TimeoutError) as error:
            self._tell(getattr(error, "strerror", None) or "it does not answer")
        except ValueError as error:
            self._tell(str(error))

    def _read(self) -> None:
        """By a thread: the file may be long, and far away. Raises OSError, ValueError."""
        told = self._path.stat()
        stamp = told.st_mtime_ns, told.st_size, told.st_ino, told.st_dev
        if stamp == self._stamp:
            return
        data = self._path.read_bytes()
        if data != self._data:
            self._stamp = stamp  # also where it makes no sense: that is told once
            self._value = self._parse(data)
            if self._data is not None:
                _log.info("%s was read again", self._path, extra=ACCESS_FILE_TAKEN)
            self._data = data
        self._stamp = stamp
        self._said = ""

    def _tell(self, why: str) -> None:
        self._failed()
        if why != self._said:
            self._said = why
            _log.error(
                "%s cannot be used, what it held before stays in force: %s",
                self._path,
                why,
                extra=ACCESS_FILE_REFUSED,
            )
