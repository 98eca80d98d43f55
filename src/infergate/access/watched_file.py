"""A file that is read again when it changes.

The file is checked when its content is needed, but at most once a second. An entry that is removed
from the file therefore stays valid for at most a second. Symbolic links, as in secrets mounted by
Kubernetes, are followed.

If the file cannot be read or parsed, the previous content stays valid. The error is logged once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from infergate.core.log_events import ACCESS_FILE_LOADED, ACCESS_FILE_REFUSED

T = TypeVar("T")
_log = logging.getLogger("infergate.access")

CHECK_INTERVAL_SECONDS: Final = 1.0
_READ_TIMEOUT_SECONDS: Final = 2.0
"""Seconds to wait for a file system that hangs."""
_FileStamp = tuple[int, int, int, int]


class WatchedFile(Generic[T]):
    """Holds the result of ``parse`` for the content of the file at ``path``."""

    def __init__(
        self, path: Path, parse: Callable[[bytes], T], value: T, on_failure: Callable[[], None]
    ) -> None:
        """``parse`` raises ValueError for invalid content. ``value`` is the initial value.
        ``on_failure`` is called when the file cannot be read or parsed."""
        self._path: Final = path
        self._parse: Final = parse
        self._value = value
        self._on_failure: Final = on_failure
        self._stamp: _FileStamp | None = None
        self._data: bytes | None = None
        self._last_error = ""
        self._next_check = 0.0
        self._check_count = 0
        self._lock: Final = asyncio.Lock()

    def current_if_checked(self, now: float) -> T | None:
        """Return the current value, or None if the file must be checked first."""
        return None if now >= self._next_check else self._value

    async def current(self, now: float) -> T:
        """Return the current value. ``now`` is from ``time.monotonic``."""
        if now >= self._next_check:
            check_count = self._check_count
            async with self._lock:
                if check_count == self._check_count:  # no other request has checked the file
                    await self._check()
                    self._check_count += 1
                    self._next_check = now + CHECK_INTERVAL_SECONDS
        return self._value

    refreshed = current
    """Implements ``JwkSource``. A token whose key is unknown needs no extra check of the file,
    because ``current`` checks the file often enough."""

    async def _check(self) -> None:
        try:
            async with asyncio.timeout(_READ_TIMEOUT_SECONDS):
                await asyncio.to_thread(self._read)
        except (OSError, TimeoutError) as error:
            reason = getattr(error, "strerror", None) or "the file system did not respond in time"
            self._report_failure(reason)
        except ValueError as error:
            self._report_failure(str(error))

    def _read(self) -> None:
        """Read the file if it has changed. Runs in a thread, because the file may be on a network
        file system. Raises OSError and ValueError."""
        status = self._path.stat()
        stamp = status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev
        if stamp == self._stamp:
            return
        data = self._path.read_bytes()
        if data != self._data:
            self._stamp = stamp  # set even if parsing fails, so that the file is not parsed again
            self._value = self._parse(data)
            if self._data is not None:
                _log.info("%s was read again", self._path, extra=ACCESS_FILE_LOADED)
            self._data = data
        self._stamp = stamp
        self._last_error = ""

    def _report_failure(self, reason: str) -> None:
        self._on_failure()
        if reason != self._last_error:
            self._last_error = reason
            _log.error(
                "%s cannot be used; its previous content stays valid: %s",
                self._path,
                reason,
                extra=ACCESS_FILE_REFUSED,
            )
