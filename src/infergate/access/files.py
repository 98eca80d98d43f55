"""A file that is read again when it changes.

The file is checked when its content is needed, at most once a second, so nothing runs while there
are no requests and removed entries stay valid for at most a second. Kubernetes mounts secrets as
symbolic links, which stat follows.

If the file cannot be read or parsed, the previous content stays in force and the error is logged.
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
"""Seconds between two checks."""
_PATIENCE: Final = 2.0
"""Seconds after which a file system that hangs is given up."""
_Stamp = tuple[int, int, int, int]


class Watched(Generic[T]):
    """The result of ``parse`` on the file at ``path``."""

    def __init__(
        self, path: Path, parse: Callable[[bytes], T], value: T, failed: Callable[[], None]
    ) -> None:
        """``parse`` raises ValueError; ``value`` is the result for the content that was read
        before. ``on_failure`` is called when the file cannot be read or parsed."""
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
        """Return the current value. ``now`` is from ``time.monotonic``."""
        if now >= self._due:
            check_count = self._looks
            async with self._lock:
                if check_count == self._looks:  # else another request has just checked
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
        """Run in a thread: the file may be long, and on a network file system. Raises OSError,
        ValueError."""
        status = self._path.stat()
        stamp = status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev
        if stamp == self._stamp:
            return
        data = self._path.read_bytes()
        if data != self._data:
            self._stamp = stamp  # set even if parsing fails, so that the error is logged once
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
                "%s cannot be used, its previous content stays in force: %s",
                self._path,
                why,
                extra=ACCESS_FILE_REFUSED,
            )
