"""The recording files of one process: rotation, and the limit on their total size.

All workers of a gateway share a folder. The name of a file contains the number of the worker that
wrote it. Each of *n* workers manages the files whose number modulo *n* is its own number, including
the files of earlier workers. A worker may use 1/*n* of the maximum total size, so that all workers
together never exceed this size.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from infergate.core.records import record
from infergate.core.tensor import Buffer
from infergate.core.wire import total_size
from infergate.recording.encoding import UnrecordableError
from infergate.recording.format import SUFFIX
from infergate.recording.writer import RecordingFile, max_frame_bytes

_NAME: Final = re.compile(r"[0-9]{8}T[0-9]{6}\.[0-9]{6}Z-([0-9]+)-[0-9]+" + re.escape(SUFFIX))


@record
class DirectorySettings:
    """The settings of a :class:`RecordingDirectory`. ``total_bytes`` limits the files of all
    ``workers``. If ``removes_oldest``, old files are removed when the limit is reached."""

    path: Path
    file_bytes: int
    total_bytes: int
    removes_oldest: bool = False
    worker: int = 0
    workers: int = 1


class DirectoryFullError(Exception):
    """The recording files have reached their maximum total size."""


class _StoredFile(NamedTuple):
    name: str
    size: int


class RecordingDirectory:
    """Appends records to files in a folder, which is created with mode 0700. The object is not
    thread-safe, and its methods block."""

    def __init__(self, settings: DirectorySettings) -> None:
        self._settings: Final = settings
        self._max_bytes: Final = settings.total_bytes // settings.workers
        self._max_file_bytes: Final = min(settings.file_bytes, self._max_bytes)
        self._file: RecordingFile | None = None
        self._name = ""
        self._stored: list[_StoredFile] = []
        """The other files that this process manages, from old to new."""

    @property
    def current(self) -> str:
        """The name of the file that is being written, or an empty string."""
        return self._name

    def append(self, parts: Sequence[Buffer]) -> int:
        """Append the record ``parts`` and return the size of its frame in bytes. A part of the
        frame may stay in memory until ``flush``. Raises DirectoryFullError, OSError, and
        UnrecordableError for a record that is larger than this process's share of the total
        size."""
        size = max_frame_bytes(total_size(parts))
        if size > self._max_bytes:
            raise UnrecordableError(
                "the record is larger than this process's share of the total size"
            )
        if self._file is not None and self._file.size + size > self._max_file_bytes:
            self.close_file()
        if self._file is None:
            self._stored = self._list()
        self._make_space(size)
        if self._file is None:
            self._open()
        assert self._file is not None
        return self._file.append(parts)

    def flush(self) -> None:
        """Pass all records to the operating system. Raises OSError."""
        if self._file is not None:
            self._file.flush()

    def close_file(self) -> None:
        """Complete the current file, or remove the file if a failure left it without a record. The
        next record begins a new file. Raises OSError."""
        file, path = self._file, self._settings.path / self._name
        self._file, self._name = None, ""
        if file is not None:
            try:
                file.close()
            finally:
                if file.is_empty:
                    with suppress(OSError):
                        path.unlink()

    def _open(self) -> None:
        settings = self._settings
        settings.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        time = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        name = f"{time}-{settings.worker}-{os.getpid()}{SUFFIX}"
        self._file, self._name = RecordingFile(settings.path / name), name

    def _make_space(self, size: int) -> None:
        """Make space for ``size`` bytes. Raises DirectoryFullError."""
        if self._fits(size):
            return
        self._stored = self._list()  # an operator may have moved or deleted files
        while not self._fits(size):
            if not (self._settings.removes_oldest and self._stored):
                raise DirectoryFullError(
                    f"the files in {self._settings.path} have reached this process's share of the "
                    f"maximum total size of {self._settings.total_bytes} bytes"
                )
            with suppress(FileNotFoundError):
                (self._settings.path / self._stored[0].name).unlink()
            del self._stored[0]

    def _fits(self, size: int) -> bool:
        used = sum(file.size for file in self._stored)
        current = 0 if self._file is None else self._file.size
        return used + current + size <= self._max_bytes

    def _list(self) -> list[_StoredFile]:
        """Return the files that this worker manages, except the current file."""
        files = []
        with suppress(FileNotFoundError), os.scandir(self._settings.path) as entries:
            for entry in entries:
                match = _NAME.fullmatch(entry.name)
                if match and int(match[1]) % self._settings.workers == self._settings.worker:
                    with suppress(FileNotFoundError):
                        files.append(_StoredFile(entry.name, entry.stat().st_size))
        return sorted(file for file in files if file.name != self._name)
