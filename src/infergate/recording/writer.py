"""Writes a recording file."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from infergate.core.tensor import Buffer
from infergate.core.wire import total_size
from infergate.recording.format import (
    COMPRESSION_LEVEL,
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    ID_BYTES,
    FrameHeader,
    pack_file_header,
    pack_frame_header,
    zstd,
)

_PIECE_BYTES: Final = 1 << 17
"""Number of bytes that are compressed at a time. zstd's Python module releases the interpreter lock
while it compresses, but not while it copies the result, so longer pieces would delay the event
loop."""
_MAX_JOINED_BYTES: Final = 1 << 16
"""Data up to this size is collected in memory, because each system call costs a few
microseconds."""


def max_frame_bytes(record_bytes: int) -> int:
    """Return the maximum number of bytes that a record of ``record_bytes`` adds to a file,
    including the file header. zstd adds at most 1/256 of the size plus 64 bytes
    (``ZSTD_COMPRESSBOUND``)."""
    return FILE_HEADER_BYTES + FRAME_HEADER_BYTES + record_bytes + (record_bytes >> 8) + 64


class RecordingFile:
    """A new recording file. Its methods block, so call them in a thread or a helper process. It is
    not thread-safe.

    Records are compressed in pieces, so that a large record needs little memory. The header of a
    frame is written after its contents. After an OSError, the file contains the records up to the
    last successful ``flush``, and must be closed."""

    def __init__(self, path: str | os.PathLike[str], level: int = COMPRESSION_LEVEL) -> None:
        """Create the file, which must not exist, with mode 0600. Raises OSError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor: Final = os.open(path, flags, 0o600)
        self._compressor: Final = zstd.ZstdCompressor(level)
        self._id: Final = os.urandom(ID_BYTES)
        self._written_bytes = self._flushed_bytes = 0
        self._buffer = bytearray(pack_file_header(self._id))
        try:
            self.flush()
        except BaseException:
            os.close(self._descriptor)
            Path(path).unlink()
            raise

    @property
    def size(self) -> int:
        """The size of the file in bytes, including bytes that are not written yet."""
        return self._written_bytes + len(self._buffer)

    @property
    def is_empty(self) -> bool:
        """Whether no record has been passed to the operating system."""
        return self._flushed_bytes <= FILE_HEADER_BYTES

    def append(self, parts: Sequence[Buffer]) -> int:
        """Append the record in ``parts`` and return the size of its frame in bytes. The frame may
        stay in memory until ``flush``. Raises OSError."""
        start, size, crc = self.size, total_size(parts), 0
        self._buffer += bytes(FRAME_HEADER_BYTES)
        for payload in self._compress(parts, size):
            crc = zlib.crc32(payload, crc)
            self._add(payload)
        payload_bytes = self.size - start - FRAME_HEADER_BYTES
        header = pack_frame_header(self._id, FrameHeader(payload_bytes, size, crc))
        offset = start - self._written_bytes
        if offset >= 0:
            self._buffer[offset : offset + FRAME_HEADER_BYTES] = header
        else:
            self._write_buffer()
            self._write(header, start)
        return self.size - start

    def _compress(self, parts: Sequence[Buffer], size: int) -> Iterator[bytes]:
        compressor = self._compressor
        if size <= _MAX_JOINED_BYTES:  # one call is faster than several
            yield compressor.compress(b"".join(parts), compressor.FLUSH_FRAME)
            return
        compressor.set_pledged_input_size(size)
        for piece in _pieces(parts):
            yield compressor.compress(piece)
        yield compressor.flush()

    def _add(self, payload: bytes) -> None:
        if len(self._buffer) + len(payload) <= _MAX_JOINED_BYTES:
            self._buffer += payload
        else:
            self._write_buffer()
            self._write(payload, self._written_bytes)
            self._written_bytes += len(payload)

    def _write_buffer(self) -> None:
        buffer, self._buffer = self._buffer, bytearray()
        self._write(buffer, self._written_bytes)
        self._written_bytes += len(buffer)

    def _write(self, data: Buffer, position: int) -> None:
        try:
            remaining = memoryview(data)
            while remaining:
                count = os.pwrite(self._descriptor, remaining, position)
                remaining, position = remaining[count:], position + count
        except OSError:
            self._buffer.clear()
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._flushed_bytes)
            raise

    def flush(self) -> None:
        """Pass all records to the operating system. Raises OSError."""
        self._write_buffer()
        self._flushed_bytes = self._written_bytes

    def close(self) -> None:
        """Write all records to the disk and close the file. The file is closed even if this method
        raises OSError."""
        try:
            self.flush()
            os.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)


def _pieces(parts: Sequence[Buffer]) -> Iterator[Buffer]:
    """Yield the data of ``parts`` in pieces of at most ``_PIECE_BYTES``. Only short parts are
    copied."""
    short: list[Buffer] = []
    short_bytes = 0
    for part in parts:
        if len(part) <= _MAX_JOINED_BYTES - short_bytes:
            short.append(part)
            short_bytes += len(part)
            continue
        yield b"".join(short)
        short, short_bytes = [], 0
        view = memoryview(part)
        for begin in range(0, len(view), _PIECE_BYTES):
            yield view[begin : begin + _PIECE_BYTES]
    yield b"".join(short)
