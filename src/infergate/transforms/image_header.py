"""Reads the format and the size of an encoded image from the header, without decoding the image.

This module limits the number of segments, scans, chunks and fill bytes, because a small file with
many of them can occupy a decoder for minutes."""

from __future__ import annotations

import re
import struct
from typing import Final

from infergate.core.records import record

DEFAULT_MAX_PIXELS: Final = 1 << 26
DEFAULT_MAX_IMAGES: Final = 256
"""The default limits on the total pixels and on the number of images of a tensor."""
JPEG: Final = "JPEG"
PNG: Final = "PNG"
WEBP: Final = "WEBP"
_PNG_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
BASE64_PREFIXES: Final = (b"/9j/", b"iVBORw0KGgo", b"UklGR")
"""The first characters of JPEG, PNG and WebP images in Base64."""
_MAX_SEGMENTS: Final = 1024
"""Maximum number of JPEG segments before the image data. Cameras write fewer than 20 segments."""
_MAX_FILL_BYTES: Final = 4096
"""Maximum number of fill bytes before a JPEG marker. Encoders write at most a few fill bytes, and
Pillow reads each of them in Python."""
_EXIF: Final = b"Exif\0\0"
_MAX_EXIF_SEGMENTS: Final = 32
"""Maximum number of EXIF segments of a JPEG. Cameras write one segment. Pillow appends each segment
to the previous segments, which takes quadratic time."""
_MAX_SCANS: Final = 100
"""Maximum number of scans of a JPEG. Encoders write about 10 scans in a progressive JPEG. A decoder
visits every pixel in each scan, even if the scan is short."""
_MAX_CHUNKS: Final = 1 << 16
"""Maximum number of chunks of a PNG. Pillow reads each chunk in Python."""
_START_OF_FRAME: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_START_OF_SCAN: Final = 0xDA
_FILL_BYTES: Final = re.compile(rb"\xff+")
_WITHOUT_LENGTH: Final = frozenset({0x00, 0x01, *range(0xD0, 0xDA)})
"""Markers without a length field."""


@record
class ImageHeader:
    """The format and the size of an encoded image."""

    format: str
    """The name of the format in Pillow: ``JPEG``, ``PNG`` or ``WEBP``."""
    width: int
    height: int

    @property
    def pixels(self) -> int:
        return self.width * self.height


def read_header(data: bytes) -> ImageHeader:
    """Return the header of the image in ``data``. Raises ValueError for unsupported formats,
    invalid or truncated headers, and images that exceed a limit."""
    try:
        if data.startswith(b"\xff\xd8\xff"):
            header = _read_jpeg(data)
        elif data.startswith(_PNG_SIGNATURE):
            header = _read_png(data)
        elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            header = _read_webp(data)
        else:
            raise ValueError("it is not a JPEG, PNG or WebP image")
    except (struct.error, IndexError):
        raise ValueError("its header is cut off") from None
    if not header.pixels:
        raise ValueError("it has no pixels")
    return header


def _read_jpeg(data: bytes) -> ImageHeader:
    position = 2
    header: ImageHeader | None = None
    for _ in range(_MAX_SEGMENTS):
        position = data.find(b"\xff", position)
        if position < 0:
            raise IndexError
        fill = _FILL_BYTES.match(data, position)
        assert fill is not None
        if fill.end() - position > _MAX_FILL_BYTES:
            raise ValueError(f"its header has more than {_MAX_FILL_BYTES} fill bytes in a row")
        position = fill.end()
        marker = data[position]
        position += 1
        if marker in _WITHOUT_LENGTH:
            continue
        if marker == _START_OF_SCAN:
            if header is None:
                raise ValueError("its header has no size")
            _check_repeated_parts(data, position - 2)
            return header
        if marker in _START_OF_FRAME:
            if header is not None:
                raise ValueError("its header has two sizes")
            height, width = struct.unpack_from(">HH", data, position + 3)
            header = ImageHeader(JPEG, width, height)
        position += struct.unpack_from(">H", data, position)[0]
    raise ValueError(f"its header has more than {_MAX_SEGMENTS} segments")


def _check_repeated_parts(data: bytes, scan: int) -> None:
    """Raise ValueError if the JPEG ``data``, with its first scan at ``scan``, has too many EXIF
    segments or scans."""
    if data.count(_EXIF, 0, scan) > _MAX_EXIF_SEGMENTS:
        raise ValueError(f"it has more than {_MAX_EXIF_SEGMENTS} EXIF segments")
    if data.count(b"\xff\xda", scan) > _MAX_SCANS:
        raise ValueError(f"it has more than {_MAX_SCANS} scans")


def _read_png(data: bytes) -> ImageHeader:
    if data[12:16] != b"IHDR":
        raise ValueError("its first chunk is not IHDR")
    width, height = struct.unpack_from(">II", data, 16)
    position = 8
    for _ in range(_MAX_CHUNKS + 1):
        if position + 8 > len(data):
            return ImageHeader(PNG, width, height)
        (length,) = struct.unpack_from(">I", data, position)
        position += 12 + length
    raise ValueError(f"it has more than {_MAX_CHUNKS} chunks")


def _read_webp(data: bytes) -> ImageHeader:
    kind = data[12:16]
    if kind == b"VP8X":
        width = int.from_bytes(_read_bytes(data, 24, 3), "little") + 1
        height = int.from_bytes(_read_bytes(data, 27, 3), "little") + 1
    elif kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        width, height = (bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1
    elif kind == b"VP8 ":
        width, height = (size & 0x3FFF for size in struct.unpack_from("<HH", data, 26))
    else:
        raise ValueError("its first chunk is not an image")
    return ImageHeader(WEBP, width, height)


def _read_bytes(data: bytes, start: int, count: int) -> bytes:
    if len(data) < start + count:
        raise IndexError
    return data[start : start + count]
