"""The layout of recording files: a file header, then frames with one compressed record each.

docs/recording.md describes the layout byte by byte. Integers are little-endian.

*Rule.* Each frame begins with a marker that contains the random id of the file. When a reader that
knows the id searches for the next frame, it therefore never mistakes tensor data for a frame, even
if a tensor contains a recording.
"""

from __future__ import annotations

import struct
import sys
import zlib
from typing import Any, Final, NamedTuple

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["zstd"]

FILE_MAGIC: Final = b"\x89IGREC\r\n"
"""The first bytes of a file. As in PNG, a transfer in text mode changes these bytes, so that
readers detect such a transfer."""
FRAME_MAGIC: Final = b"\x89IGF"
FORMAT_VERSION: Final = 1
"""The version of the format that this module reads and writes."""
ID_BYTES: Final = 8
_FILE_HEADER: Final = struct.Struct(f"<8sI{ID_BYTES}s")
_FRAME_HEADER: Final = struct.Struct(f"<4s{ID_BYTES}sQQI")
_CRC: Final = struct.Struct("<I")
FILE_HEADER_BYTES: Final = _FILE_HEADER.size + _CRC.size
FRAME_HEADER_BYTES: Final = _FRAME_HEADER.size + _CRC.size

COMPRESSION_LEVEL: Final = -1
MAX_WINDOW_LOG: Final = 23
"""The base-2 logarithm of the maximum window size that a reader allocates: 8 MiB."""
MAX_RECORD_BYTES: Final = 1 << 30
"""The maximum size of a record before compression. Larger records are not written."""
MAX_METADATA_BYTES: Final = 4 << 20
"""The maximum size of a record without its tensor data."""


SUFFIX: Final = ".igrec"


class RecordingError(Exception):
    """A recording cannot be read. The message names the file or folder."""


class FrameHeader(NamedTuple):
    """The header of a frame. Sizes are in bytes."""

    payload_bytes: int
    """The size of the compressed record, which follows the header."""
    record_bytes: int
    """The size of the record before compression."""
    payload_crc: int
    """The CRC-32 of the compressed record."""


def pack_file_header(file_id: bytes) -> bytes:
    """Return the header of a file with the random id ``file_id``."""
    return _with_crc(_FILE_HEADER.pack(FILE_MAGIC, FORMAT_VERSION, file_id))


def unpack_file_header(data: bytes) -> tuple[int, bytes] | None:
    """Return the version and the id in a file header, or None if ``data`` is not a file header."""
    if not _is_intact(data, FILE_MAGIC, FILE_HEADER_BYTES):
        return None
    _, version, file_id = _FILE_HEADER.unpack_from(data)
    return version, file_id


def pack_frame_header(file_id: bytes, header: FrameHeader) -> bytes:
    """Return ``header`` as bytes, for a frame of the file with the id ``file_id``."""
    return _with_crc(_FRAME_HEADER.pack(FRAME_MAGIC, file_id, *header))


def unpack_frame_header(data: bytes) -> tuple[bytes, FrameHeader] | None:
    """Return the file's id and the header of a frame, or None if ``data`` is not a frame
    header."""
    if not _is_intact(data, FRAME_MAGIC, FRAME_HEADER_BYTES):
        return None
    _, file_id, *sizes = _FRAME_HEADER.unpack_from(data)
    return file_id, FrameHeader(*sizes)


def make_decompressor() -> Any:
    """Return a decompressor whose window is at most 8 MiB."""
    options: Any = {zstd.DecompressionParameter.window_log_max: MAX_WINDOW_LOG}
    return zstd.ZstdDecompressor(options=options)


def _with_crc(header: bytes) -> bytes:
    return header + _CRC.pack(zlib.crc32(header))


def _is_intact(data: bytes, magic: bytes, size: int) -> bool:
    if len(data) < size or not data.startswith(magic):
        return False
    end = size - _CRC.size
    return data[end:size] == _CRC.pack(zlib.crc32(data[:end]))
