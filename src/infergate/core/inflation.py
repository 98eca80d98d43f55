"""Decompresses gzip and deflate in small pieces.

Zlib inflates about 280 MB a second, and the output may be a thousand times as large as the input.
The event loop can serve other requests between two pieces."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from typing import Final

from infergate.core.limits import KIB
from infergate.core.tensor import Buffer

GZIP: Final = 31
ZLIB: Final = 15
RAW: Final = -15
"""The zlib window bits for RFC 1952 (gzip), RFC 1950 (zlib) and RFC 1951 (raw deflate)."""
PIECE_BYTES: Final = 64 * KIB
"""The largest piece of output. Inflating it takes a quarter of a millisecond."""
MAX_RATIO: Final = 1032
"""The highest compression ratio of deflate."""
_TRAILER_BYTES: Final = 4
"""The size of the last field of a gzip member: the member's inflated length modulo 2**32."""
MAX_MEMBERS: Final = 4096
"""Maximum number of members in one gzip body over HTTP. ``bgzip`` ends a member every 64 KiB, so a
body of the default maximum size has a quarter of this number."""
_INPUT_CHUNK_BYTES: Final = 16 * KIB
"""Number of bytes that are passed to zlib in one call. Zlib copies the part that it does not
consume."""
_GZIP_MAGIC: Final = b"\x1f\x8b"
_MEMBER_HEADER: Final = re.compile(rb"\x1f\x8b\x08[\x00-\x1f]")
"""Matches the start of every gzip member: deflate, with no reserved flags. Zlib rejects any other
start."""
_MAX_SEARCHED_BYTES: Final = 4 * 1024 * KIB
"""The length of the longest body that is searched for member headers. The search takes two
milliseconds."""


class CorruptDataError(Exception):
    """The data is not in the declared format. The error's text is a predicate, such as "ends too
    early"."""


class InflatedTooLargeError(Exception):
    """The data inflates to more than is allowed."""


def zlib_window_bits(encoding: str, data: Buffer) -> int | None:
    """Return the zlib window bits for the HTTP content coding ``encoding`` of ``data``, or None for
    an unknown coding."""
    match encoding:
        case "gzip" | "x-gzip":
            return GZIP
        case "deflate":
            # HTTP's deflate is the zlib format, but some senders omit the zlib header: two bytes
            # that contain compression method 8 and are a multiple of 31.
            has_zlib_header = (
                len(data) > 1 and data[0] & 15 == 8 and (data[0] << 8 | data[1]) % 31 == 0
            )
            return ZLIB if has_zlib_header else RAW
    return None


def max_inflated_bytes(data: Buffer, window: int | None) -> int:
    """Return an upper bound on the inflated size of ``data``.

    A gzip member ends with its inflated length, which zlib verifies. The last four bytes, and the
    four bytes before each apparent member header, are summed. The result is too high if the header
    pattern occurs by chance. For other formats, and for bodies that are too short or too long to
    search, the bound is ``MAX_RATIO`` times the size."""
    max_bytes = len(data) * MAX_RATIO
    if window != GZIP or not _TRAILER_BYTES < len(data) <= _MAX_SEARCHED_BYTES:
        return max_bytes
    total = int.from_bytes(data[-_TRAILER_BYTES:], "little")
    for match in _MEMBER_HEADER.finditer(data, _TRAILER_BYTES):
        if total >= max_bytes:
            break
        total += int.from_bytes(data[match.start() - _TRAILER_BYTES : match.start()], "little")
    return min(total, max_bytes)


def inflate_pieces(
    data: Buffer, window: int, max_bytes: int, max_members: int = 1
) -> Iterator[bytes]:
    """Inflate ``data`` to at most ``max_bytes``, in pieces that may be empty.

    ``data`` is a zlib or deflate stream, or at most ``max_members`` gzip members one after another
    (RFC 1952, 2.2). Raises CorruptDataError and InflatedTooLargeError."""
    view = memoryview(data)
    position = 0
    for _ in range(max_members):
        inflater = zlib.decompressobj(window)
        while not inflater.eof:
            chunk = view[position : position + _INPUT_CHUNK_BYTES]
            try:
                piece = inflater.decompress(chunk, PIECE_BYTES)
            except zlib.error as error:
                raise CorruptDataError(f"is corrupt: {error}") from None
            if not (chunk or piece or inflater.eof):
                raise CorruptDataError("ends too early")
            # After a full piece, both attributes hold the bytes after the end of the stream.
            unconsumed = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
            position += len(chunk) - len(unconsumed)
            max_bytes -= len(piece)
            if max_bytes < 0:
                raise InflatedTooLargeError
            yield piece
        if window != GZIP or bytes(view[position : position + 2]) != _GZIP_MAGIC:
            break
    else:
        if max_members > 1:
            raise CorruptDataError(f"has more than {max_members} members")
    if position < len(view):
        raise CorruptDataError(f"is followed by {len(view) - position} extra bytes")
