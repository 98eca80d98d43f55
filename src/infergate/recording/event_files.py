"""Events in files: JSON Lines, one CloudEvent in the JSON format per line.

Each process writes its own files, ``events-TIME-PID-NUMBER.jsonl``, with mode 0600. When a file is
full, the process begins a new one, and deletes the oldest files of all processes. A failed write
leaves no incomplete line and no empty file. After a failure, nothing is written for a few seconds.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

from infergate.recording.cloud_events import STRUCTURED_TYPE, CloudEvent, structured_json
from infergate.recording.payload_log import FAILED, SENT, TOO_LARGE, WireEvent

_PREFIX: Final = "events-"
_SUFFIX: Final = ".jsonl"
_MAX_BATCH: Final = 256
_WAIT_SECONDS: Final = 0.2
_FOLDER_MODE: Final = 0o700
_FILE_MODE: Final = 0o600
_CLOSE_TIMEOUT_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 5.0
"""Seconds after a file system error during which nothing is written."""
_SHORT_OF_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def structured_line(event: CloudEvent) -> WireEvent:
    """Return ``event`` as a line."""
    return {"content-type": STRUCTURED_TYPE}, structured_json(event) + b"\n"


class EventFiles:
    """An ``EventSink`` that writes files of up to ``file_bytes`` to ``folder``. All files together
    have at most ``total_bytes``, plus ``file_bytes`` for each process. ``clock`` returns
    seconds."""

    encode = staticmethod(structured_line)
    max_batch: int = _MAX_BATCH
    max_wait: float = _WAIT_SECONDS
    max_concurrent: int = 1

    def __init__(
        self,
        folder: Path,
        file_bytes: int,
        total_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create ``folder`` if it is missing. Raises OSError if it cannot be written to."""
        self.error = ""
        self._folder: Final = folder
        self._file_bytes: Final = file_bytes
        self._total_bytes: Final = total_bytes
        self._clock: Final = clock
        self._numbers: Final = count(1)
        self._lock: Final = threading.Lock()
        """A lock that is held while lines are written, because the thread of a cancelled ``send``
        continues to run."""
        self._file = -1
        self._path = folder
        self._size = 0
        self._retry_at = -math.inf
        folder.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(f"payload_log.file.path: the folder '{folder}' is not writable")

    async def send(self, events: Sequence[WireEvent]) -> Counter[str]:
        """Append ``events`` in a thread."""
        return await asyncio.to_thread(self._append, [line for _, line in events])

    async def close(self) -> None:
        await asyncio.to_thread(self._close_when_idle)

    def _close_when_idle(self) -> None:
        if self._lock.acquire(timeout=_CLOSE_TIMEOUT_SECONDS):
            self._close()
            self._lock.release()

    def _append(self, lines: list[bytes]) -> Counter[str]:
        results = Counter[str]()
        with self._lock:
            if self._file >= 0 and os.fstat(self._file).st_nlink == 0:
                self._close()  # another process deleted the file
            for line in lines:
                results[self._write_or_report(line)] += 1
        return results

    def _write_or_report(self, line: bytes) -> str:
        if len(line) > self._file_bytes:
            return TOO_LARGE
        if self._clock() < self._retry_at:
            return FAILED
        try:
            self._write(line)
        except OSError as error:
            self.error = f"cannot write to '{self._folder}': {error.strerror}"
            self._retry_at = self._clock() + _RETRY_SECONDS
            self._restore(error)
            return FAILED
        return SENT

    def _write(self, line: bytes) -> None:
        if self._file < 0 or self._size + len(line) > self._file_bytes:
            self._close()
            self._open()
        view = memoryview(line)
        while view:
            view = view[os.write(self._file, view) :]
        self._size += len(line)

    def _restore(self, error: OSError) -> None:
        """Remove the incomplete line that ``error`` left, or the file if it has no other line.

        If the disk is full, later lines go to the same file, so that a full disk does not collect
        many short files. After other errors, the next line goes to a new file, which may succeed,
        for example on a network file system."""
        if self._file < 0:
            return
        try:
            os.ftruncate(self._file, self._size)
            is_usable = self._size > 0 and error.errno in _SHORT_OF_SPACE
        except OSError:
            is_usable = False
        if is_usable:
            return
        self._close()
        if not self._size:
            with suppress(OSError):
                self._path.unlink()

    def _open(self) -> None:
        self._delete_oldest()
        started = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        name = f"{_PREFIX}{started}-{os.getpid()}-{next(self._numbers):06}{_SUFFIX}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._path = self._folder / name
        self._size = 0
        self._file = os.open(self._path, flags, _FILE_MODE)

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _delete_oldest(self) -> None:
        """Delete the oldest files until a new file fits into ``total_bytes``."""
        found = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.startswith(_PREFIX) and entry.name.endswith(_SUFFIX):
                    with suppress(FileNotFoundError):  # another process deleted it
                        status = entry.stat(follow_symlinks=False)
                        found.append((status.st_mtime_ns, status.st_size, entry.path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total + self._file_bytes <= self._total_bytes:
                break
            with suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108 - a path, not a Path
            total -= size
