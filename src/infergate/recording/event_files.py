"""Writes events to JSON Lines files: each line is a CloudEvent in the JSON format.

Each process writes its own files, ``events-TIME-PID-NUMBER.jsonl``, with mode 0600. When a file is
full, the process begins a new file. To make space, it deletes the oldest files, including those of
other processes. A failed write leaves no incomplete line and no empty file. After a failure,
nothing is written for a few seconds.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

from infergate.recording.cloud_events import STRUCTURED_TYPE, CloudEvent, structured_json
from infergate.recording.payload_log import FAILED, SENT, TOO_LARGE, WireEvent

_PREFIX: Final = "events-"
_SUFFIX: Final = ".jsonl"
_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_RETRY_SECONDS: Final = 5.0
"""Seconds to wait after a file system error before the next write."""
_SHORT_OF_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def structured_line(event: CloudEvent) -> WireEvent:
    """Return the content type and the line of ``event``."""
    return {"content-type": STRUCTURED_TYPE}, structured_json(event) + b"\n"


class EventFiles:
    """An ``EventSink`` that writes files of up to ``file_bytes`` to ``folder``. All files together
    have at most ``total_bytes`` plus ``file_bytes`` for each process. ``clock`` returns seconds."""

    encode = staticmethod(structured_line)
    max_batch: int = 256
    max_wait: float = 0.2
    max_concurrent: int = 1

    def __init__(
        self,
        folder: Path,
        file_bytes: int,
        total_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create ``folder`` if it is missing. Raises OSError if the folder cannot be created or
        written to."""
        self.error = ""
        self._folder: Final = folder
        self._file_bytes: Final = file_bytes
        self._total_bytes: Final = total_bytes
        self._clock: Final = clock
        self._numbers: Final = count(1)
        self._lock: Final = threading.Lock()
        """Serializes writes, because the thread of a cancelled ``send`` continues to run."""
        self._path: Path | None = None
        """The file for the next line, or None to begin a new file."""
        self._retry_at = -math.inf
        folder.mkdir(0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(f"payload_log.file.path: the folder '{folder}' is not writable")

    async def send(self, events: Sequence[WireEvent]) -> Counter[str]:
        """Append ``events`` in a thread."""
        return await asyncio.to_thread(self._append, [line for _, line in events])

    async def close(self) -> None:
        """Do nothing: no file stays open after ``send``."""

    def _append(self, lines: Sequence[bytes]) -> Counter[str]:
        waiting = deque(line for line in lines if len(line) <= self._file_bytes)
        usable = len(waiting)
        with self._lock:
            if self._clock() >= self._retry_at:
                try:
                    while waiting:
                        self._fill_file(waiting)
                except OSError as error:
                    self.error = f"cannot write to '{self._folder}': {error.strerror}"
                    self._retry_at = self._clock() + _RETRY_SECONDS
        failed = len(waiting)
        return +Counter({SENT: usable - failed, FAILED: failed, TOO_LARGE: len(lines) - usable})

    def _fill_file(self, lines: deque[bytes]) -> None:
        """Move lines from the front of ``lines`` to the current file until the file is full. Raises
        OSError.

        If the disk is full, later lines go to the same file, so that a full disk does not collect
        many short files. After any other error, later lines go to a new file, because the error may
        affect only the current file, for example on a network file system."""
        try:
            path, descriptor = self._open()
        finally:
            self._path = None
        with os.fdopen(descriptor, "ab", buffering=0) as file:
            size = file.tell()
            try:
                while lines and size + len(lines[0]) <= self._file_bytes:
                    view = memoryview(lines[0])
                    while view:
                        view = view[os.write(file.fileno(), view) :]
                    size += len(lines.popleft())
            except OSError as error:
                if not size:
                    with suppress(OSError):
                        path.unlink()
                else:
                    file.truncate(size)  # removes the incomplete line
                    self._path = path if error.errno in _SHORT_OF_SPACE else None
                raise
        if not lines:
            self._path = path

    def _open(self) -> tuple[Path, int]:
        """Open the current file, or a new file if there is none. A name is never reused, because a
        program that collects the files may have moved the earlier file without renaming it. Raises
        OSError."""
        if self._path is not None:
            with suppress(FileNotFoundError):
                return self._path, os.open(self._path, _FLAGS)
        path = self._new_path()
        return path, os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)

    def _new_path(self) -> Path:
        """Delete the oldest files until a new file fits into ``total_bytes``. Return the path of
        the new file."""
        files = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.startswith(_PREFIX) and entry.name.endswith(_SUFFIX):
                    with suppress(FileNotFoundError):  # another process deleted it
                        status = entry.stat(follow_symlinks=False)
                        files.append((status.st_mtime_ns, status.st_size, entry.path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total + self._file_bytes <= self._total_bytes:
                break
            with suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108 - ``path`` is a string
            total -= size
        started = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        name = f"{_PREFIX}{started}-{os.getpid()}-{next(self._numbers):06}{_SUFFIX}"
        return self._folder / name
