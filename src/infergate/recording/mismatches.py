"""Stores inferences with mismatched responses, one inference per recording file.

A file holds the request, the outcome that the client received, and the outcome of the mirrored
copy, so that each file can be replayed alone. A file gets its final name when it is complete. All
methods block, so call them in a thread.

*Rule 1.* A folder never exceeds its limits, even if several processes share it, because each
process locks the folder.
*Rule 2.* When the folder is full, nothing is stored until files expire or are removed. Replacing
the oldest files instead would write to the disk continuously if every response differed.
*Rule 3.* Only files with names of the form ``mismatch-TIME-PID-NUMBER`` are counted and deleted,
because other programs may keep files in the folder.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from infergate.comparison.settings import MismatchStorage
from infergate.core.exchange import Exchange, Outcome
from infergate.core.log_events import MISMATCHES_NOT_STORED
from infergate.core.tensor import Buffer
from infergate.core.wire import total_size
from infergate.recording.encoding import UnrecordableError, encode_exchange
from infergate.recording.format import SUFFIX
from infergate.recording.redaction import Redaction
from infergate.recording.writer import RecordingFile, max_frame_bytes

STORED: Final = "stored"
FULL: Final = "full"
FAILED: Final = "failed"
_PARTIAL: Final = ".partial"
_NAME: Final = re.compile(
    rf"mismatch-[0-9]+-[0-9]+-[0-9]+({re.escape(SUFFIX)}|{re.escape(_PARTIAL)})"
)
_RETRY_SECONDS: Final = 60.0
"""Seconds to wait after a file system error before the next file is stored."""
_FULL_SECONDS: Final = 1.0
"""Seconds to wait before a full folder is listed again."""
_log = logging.getLogger(__name__)


class MismatchFolder:
    """Stores mismatches in the folder of ``storage``, and creates the folder with the first
    file."""

    def __init__(self, storage: MismatchStorage) -> None:
        self._storage: Final = storage
        self._redaction: Final = Redaction(storage.headers, storage.removed, storage.zeroed)
        self._numbers: Final = itertools.count()
        self._retry_at = self._full_until = 0.0

    def store(self, exchange: Exchange, mirrored: Outcome, mirror: str) -> str:
        """Store ``exchange`` with ``mirrored``, the outcome of its copy at the backend ``mirror``.
        Return STORED, FULL or FAILED. Never raises."""
        now = time.monotonic()
        if now < self._retry_at:
            return FAILED
        if now < self._full_until:
            return FULL
        try:
            redacted = self._redaction.apply(exchange, {mirror: mirrored})
            return self._store(encode_exchange(*redacted))
        except UnrecordableError as error:
            _log.warning("%s", error, extra=MISMATCHES_NOT_STORED)
        except OSError as error:
            self._retry_at = time.monotonic() + _RETRY_SECONDS
            text = "%s: no mismatch is stored for %d seconds: %s"
            path = self._storage.path
            _log.warning(text, path, _RETRY_SECONDS, error, extra=MISMATCHES_NOT_STORED)
        return FAILED

    def _store(self, parts: list[Buffer]) -> str:
        storage, size = self._storage, max_frame_bytes(total_size(parts))
        with self._locked():
            sizes = list(self._current_sizes())
            if len(sizes) >= storage.max_count or sum(sizes) + size > storage.max_bytes:
                self._full_until = time.monotonic() + _FULL_SECONDS
                return FULL
            name = f"mismatch-{time.time_ns()}-{os.getpid()}-{next(self._numbers)}"
            partial = storage.path / f"{name}{_PARTIAL}"
            try:
                with closing(RecordingFile(partial)) as file:
                    file.append(parts)
                partial.rename(storage.path / f"{name}{SUFFIX}")
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
        return STORED

    def remove_expired(self) -> None:
        """Delete the files that have reached their maximum age, and partial files."""
        with suppress(OSError):
            if self._storage.path.exists():
                with self._locked():
                    list(self._current_sizes())

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the folder (Rule 1). Raises OSError."""
        path = self._storage.path
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _current_sizes(self) -> Iterator[int]:
        """Yield the sizes of complete files, and delete expired and partial files (Rule 3). The
        process that wrote a partial file has ended: a running writer would hold the lock."""
        oldest = time.time() - self._storage.max_age
        for entry in os.scandir(self._storage.path):
            if not _NAME.fullmatch(entry.name):
                continue
            status = entry.stat(follow_symlinks=False)
            if status.st_mtime < oldest or entry.name.endswith(_PARTIAL):
                Path(entry).unlink(missing_ok=True)
            else:
                yield status.st_size
