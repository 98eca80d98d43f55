"""Reads recording files.

A damaged byte makes at most one record unreadable. The reader reports the damaged part and
continues at the next marker that begins a valid frame header.

*Rule.* Before memory is allocated, declared sizes are compared with the limits. The size of a
compressed record is also compared with the size of the file.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from infergate.codecs.protos.wire_scanner import MalformedMessageError
from infergate.core.records import record
from infergate.recording.encoding import RecordedExchange, decode_exchange
from infergate.recording.format import (
    FILE_HEADER_BYTES,
    FORMAT_VERSION,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    MAX_RECORD_BYTES,
    SUFFIX,
    FrameHeader,
    RecordingError,
    make_decompressor,
    unpack_file_header,
    unpack_frame_header,
    zstd,
)

_SCAN_BYTES: Final = 1 << 20
"""Number of bytes that are searched at a time for the next frame."""
_MAX_WASTED_READS: Final = 2
"""Maximum number of bytes that are read from damaged frames, as a multiple of the file's size. The
maximum size of a record is added to this limit. Only a file that was crafted to be slow to read
exceeds the sum."""
_NO_HEADER: Final = "there is no valid frame header"


@record
class DamagedPart:
    """``length`` bytes at ``position`` that contain no readable record."""

    position: int
    length: int
    reason: str


def read_recording(
    path: str | os.PathLike[str], max_record_bytes: int = MAX_RECORD_BYTES
) -> Iterator[RecordedExchange | DamagedPart]:
    """Yield the records and the damaged parts of a file in order. Records of more than
    ``max_record_bytes`` are reported as damaged parts. Tensors are views of the record's bytes.

    Raises OSError, and RecordingError if the file is not a recording, has a newer format version or
    has too many damaged frames."""
    with Path(path).open("rb") as file:
        yield from _RecordingReader(file, os.fspath(path), max_record_bytes).read()


def recording_files(names: Iterable[str]) -> list[Path]:
    """Return the files with these names. A folder is replaced by its recordings, sorted by name.
    Raises RecordingError for a folder without recordings."""
    files: list[Path] = []
    for path in map(Path, names):
        recordings = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
        if not recordings:
            raise RecordingError(f"{path}: the folder has no recordings (*{SUFFIX})")
        files += recordings
    return files


class _RecordingReader:
    def __init__(self, file: BinaryIO, name: str, max_record_bytes: int) -> None:
        self._file: Final = file
        self._name: Final = name
        self._max_record_bytes: Final = max_record_bytes
        self._size: Final = os.fstat(file.fileno()).st_size
        self._id: bytes | None = None
        """The file's id. None if the file header is damaged and no frame has been read yet."""
        self._wasted_bytes = 0

    def read(self) -> Iterator[RecordedExchange | DamagedPart]:
        position = 0
        header = unpack_file_header(self._read_at(0, FILE_HEADER_BYTES))
        if header is not None:
            version, self._id = header
            if version > FORMAT_VERSION:
                raise RecordingError(
                    f"{self._name}: byte 8: the format version is {version}; this infergate reads "
                    f"versions up to {FORMAT_VERSION}"
                )
            position = FILE_HEADER_BYTES
        else:
            start = self._next_frame(0)
            if start == self._size:
                raise RecordingError(
                    f"{self._name}: byte 0: this is not an infergate recording: it has neither "
                    "a file header nor a frame"
                )
            yield DamagedPart(0, start, "the file header is damaged")
            position = start
        while position < self._size:
            result = self._frame(position)
            if isinstance(result, RecordedExchange):
                yield result
                position += result.length
                continue
            following = self._next_frame(position + 1)
            yield DamagedPart(position, following - position, result)
            position = following

    def _frame(self, position: int) -> RecordedExchange | str:
        """Return the record of the frame at ``position``, or the reason why it cannot be read."""
        header = self._header(position)
        if header is None:
            return _NO_HEADER
        self._id, frame = header
        size = max(frame.record_bytes, frame.payload_bytes)
        if size > self._max_record_bytes:
            return f"the record has {size} bytes; the limit is {self._max_record_bytes}"
        start = position + FRAME_HEADER_BYTES
        missing = start + frame.payload_bytes - self._size
        if missing > 0:
            return f"the file ends {missing} bytes before the end of the record"
        payload = self._read_at(start, frame.payload_bytes)
        if zlib.crc32(payload) != frame.payload_crc:
            self._count_wasted(position, len(payload))
            return "the checksum of the record is wrong"
        try:
            data = _decompress(payload, frame.record_bytes)
            length = FRAME_HEADER_BYTES + frame.payload_bytes
            return decode_exchange(data, position, length)
        except (zstd.ZstdError, MalformedMessageError) as error:
            self._count_wasted(position, frame.record_bytes)
            return f"the record is invalid: {error}"

    def _header(self, position: int) -> tuple[bytes, FrameHeader] | None:
        """Return the file's id and the frame header at ``position``, or None if there is no valid
        header."""
        header = unpack_frame_header(self._read_at(position, FRAME_HEADER_BYTES))
        return header if header is not None and self._id in {None, header[0]} else None

    def _next_frame(self, position: int) -> int:
        """Return the position of the first valid frame header at or after ``position``, or the size
        of the file if there is none."""
        marker = FRAME_MAGIC + (self._id or b"")
        while position < self._size:
            data = self._read_at(position, _SCAN_BYTES)
            offset = data.find(marker)
            while offset >= 0:
                if self._header(position + offset) is not None:
                    return position + offset
                offset = data.find(marker, offset + 1)
            # A marker may extend beyond the end of ``data``.
            position += max(len(data) - len(marker) + 1, 1)
        return self._size

    def _read_at(self, position: int, size: int) -> bytes:
        self._file.seek(position)
        return self._file.read(size)

    def _count_wasted(self, position: int, size: int) -> None:
        self._wasted_bytes += size
        if self._wasted_bytes > _MAX_WASTED_READS * self._size + self._max_record_bytes:
            raise RecordingError(
                f"{self._name}: byte {position}: too many frames are damaged; infergate did not "
                "write this file"
            )


def _decompress(payload: bytes, size: int) -> bytes:
    """Decompress ``payload`` to ``size`` bytes. Raises MalformedMessageError and ZstdError."""
    decompressor = make_decompressor()
    data: bytes = decompressor.decompress(payload, size + 1)
    if len(data) != size or not decompressor.eof or decompressor.unused_data:
        raise MalformedMessageError(f"its size differs from the {size} bytes in the frame header")
    return data
