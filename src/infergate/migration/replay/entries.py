"""Reads the inferences of recording files in the order in which they were sent.

A file holds inferences in the order in which they ended. Each worker of a gateway writes its own
file, so files that overlap in time are merged.

*Rule.* Memory does not depend on the size of the files. For each open file, at most
``_MAX_WAITING`` inferences and ``_MAX_WAITING_BYTES`` are held, or a single larger inference.
An inference that ended much later than it began may therefore be returned late."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from infergate.core.exchange import Outcome
from infergate.core.limits import MIB
from infergate.recording.encoding import RecordedExchange
from infergate.recording.format import RecordingError
from infergate.recording.reader import DamagedPart, read_recording

_MAX_TIME: Final = 2.0**33
"""The year 2242, in seconds since the Unix epoch. Later times are clock errors."""
_MAX_WAITING: Final = 256
_MAX_WAITING_BYTES: Final = 16 * MIB


@dataclass(frozen=True, slots=True)
class DamagedFilePart:
    """A part of ``file`` that holds no readable inference."""

    file: str
    part: DamagedPart

    @property
    def text(self) -> str:
        """The file, the position and the reason."""
        part = self.part
        end = part.position + part.length - 1
        return f"{self.file}: bytes {part.position} to {end}: {part.reason}"


Entry = RecordedExchange | DamagedFilePart


def start_time(entry: RecordedExchange) -> float:
    """Return the time at which the request arrived, in seconds since the Unix epoch, or 0 if the
    file has no valid time."""
    started_at = entry.exchange.started_at
    return started_at if 0 <= started_at < _MAX_TIME else 0.0


def valid_outcome(outcome: Outcome) -> Outcome:
    """Return ``outcome`` with the duration 0 if the file has no valid duration."""
    return outcome if 0 <= outcome.duration < math.inf else replace(outcome, duration=0.0)


def read_entries(files: Sequence[Path]) -> Iterator[Entry]:
    """Yield the inferences of all ``files``, sorted by the time at which they began, and the
    damaged parts.

    Raises RecordingError if a file cannot be read or, before the first entry, if a file is not a
    recording."""
    waiting = sorted(((_first_time(file), index) for index, file in enumerate(files)), reverse=True)
    return _merge(files, waiting)


def of_model(entries: Iterator[Entry], model: str | None) -> Iterator[Entry]:
    """Yield the damaged parts, and the inferences of ``model`` or, if ``model`` is None, of all
    models."""
    for entry in entries:
        is_other = isinstance(entry, RecordedExchange) and entry.exchange.request.model != model
        if model is None or not is_other:
            yield entry


def read_entry(file: Path, number: int) -> RecordedExchange:
    """Return inference ``number`` of ``file``. Inferences are counted from 1 in file order; damaged
    parts are not counted. Raises RecordingError."""
    count = 0
    for entry in _read(file):
        if isinstance(entry, RecordedExchange):
            count += 1
            if count == number:
                return entry
    raise RecordingError(f"{file} has {count} readable inferences; there is no number {number}")


def total_bytes(files: Sequence[Path]) -> int:
    """Return the size of all ``files``. Raises RecordingError."""
    try:
        return sum(file.stat().st_size for file in files)
    except OSError as error:
        raise RecordingError(f"{error.filename} cannot be read: {error.strerror}") from None


def _read(file: Path) -> Iterator[Entry]:
    try:
        for entry in read_recording(file):
            yield DamagedFilePart(str(file), entry) if isinstance(entry, DamagedPart) else entry
    except OSError as error:
        raise RecordingError(f"{file} cannot be read: {error.strerror}") from None


def _first_time(file: Path) -> float:
    """Return the time of the first inference in ``file``, or infinity if there is none."""
    times = (start_time(entry) for entry in _read(file) if isinstance(entry, RecordedExchange))
    return next(times, math.inf)


def _merge(files: Sequence[Path], waiting: list[tuple[float, int]]) -> Iterator[Entry]:
    """Yield the entries of ``files``. ``waiting`` has the first times of the files in descending
    order. A file is opened only when the merge reaches the time of its first inference."""
    heads: list[tuple[float, int, RecordedExchange]] = []
    sources: dict[int, Iterator[Entry]] = {}

    def advance(index: int) -> Iterator[DamagedFilePart]:
        for entry in sources[index]:
            if isinstance(entry, RecordedExchange):
                heapq.heappush(heads, (start_time(entry), index, entry))
                return
            yield entry
        del sources[index]

    while heads or waiting:
        while waiting and (not heads or waiting[-1][0] <= heads[0][0]):
            _, index = waiting.pop()
            sources[index] = _reorder(_read(files[index]))
            yield from advance(index)
        if heads:
            _, index, entry = heapq.heappop(heads)
            yield entry
            yield from advance(index)


def _reorder(entries: Iterator[Entry]) -> Iterator[Entry]:
    """Yield the entries of one file, the inferences sorted within a limited window."""
    window: list[tuple[float, int, RecordedExchange]] = []
    size = 0
    for number, entry in enumerate(entries):
        if not isinstance(entry, RecordedExchange):
            yield entry
            continue
        heapq.heappush(window, (start_time(entry), number, entry))
        size += entry.size
        while len(window) > _MAX_WAITING or (size > _MAX_WAITING_BYTES and window):
            earliest = heapq.heappop(window)[2]
            size -= earliest.size
            yield earliest
    while window:
        yield heapq.heappop(window)[2]
