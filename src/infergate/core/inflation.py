"""gzip and deflate, undone a piece at a time.

Zlib inflates about 280 MB a second, and a few bytes may inflate to a thousand times as many: an
event loop serves others between two pieces.
"""

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
"""Formats, as zlib calls them: RFC 1952, 1950 and 1951."""
PIECE: Final = 64 * KIB
"""Bytes of one piece at most: a quarter of a millisecond."""
RATIO: Final = 1032
"""No deflate stream inflates to more times its size."""
_TRAILER: Final = 4
"""Bytes of the length that a member of gzip ends with, modulo 2**32."""
MAX_MEMBERS: Final = 4096
"""Of one gzip body over HTTP. ``bgzip`` ends a member every 64 KiB, so the largest body has a
quarter."""
_CHUNK: Final = 16 * KIB
"""Bytes of input for one piece. Zlib copies what it leaves of them."""
_GZIP_MAGIC: Final = b"\x1f\x8b"


_MEMBER: Final = re.compile(rb"\x1f\x8b\x08[\x00-\x1f]")
"""How each member of gzip begins: deflate, no reserved flags. Zlib refuses others."""
_SEARCHED: Final = 4 * 1024 * KIB
"""Bytes that are searched for members: two milliseconds."""


class Corrupt(Exception):  # noqa: N818 - it is what the peer sent
    """The data is not what it is said to be. The text is a predicate: "ends too early"."""


class Oversized(Exception):  # noqa: N818 - the same
    """The data inflates to more than is allowed."""


def window_of(encoding: str, data: Buffer) -> int | None:
    """The format of HTTP's content-coding ``encoding``; None where there is no such."""
    match encoding:
        case "gzip" | "x-gzip":
            return GZIP
        case "deflate":
            # the standard's deflate is zlib; some senders send it bare. A zlib header's two bytes
            # are a multiple of 31 and name method 8.
            named = len(data) > 1 and data[0] & 15 == 8 and (data[0] << 8 | data[1]) % 31 == 0
            return ZLIB if named else RAW
    return None


def inflated_most(data: Buffer, window: int | None) -> int:
    """How many bytes ``data`` inflates to, at most. Members of gzip end with their lengths, which
    zlib checks; so what precedes whatever looks like a member's beginning is added up, and it is
    exact but for one body in thousands."""
    bound = len(data) * RATIO
    if window != GZIP or not _TRAILER < len(data) <= _SEARCHED:
        return bound
    total = int.from_bytes(data[-_TRAILER:], "little")
    for found in _MEMBER.finditer(data, _TRAILER):
        if total >= bound:
            break
        total += int.from_bytes(data[found.start() - _TRAILER : found.start()], "little")
    return min(total, bound)


def pieces(data: Buffer, window: int, most: int, members: int = 1) -> Iterator[bytes]:
    """Inflate ``data``, a zlib or deflate stream or at most ``members`` members of gzip (RFC 1952,
    2.2: "one after another"), to at most ``most`` bytes. Pieces may be empty. Raises Corrupt,
    Oversized."""
    view = memoryview(data)
    place = 0
    for _ in range(members):
        inflater = zlib.decompressobj(window)
        while not inflater.eof:
            chunk = view[place : place + _CHUNK]
            try:
                piece = inflater.decompress(chunk, PIECE)
            except zlib.error as error:
                raise Corrupt(f"is corrupt: {error}") from None
            if not (chunk or piece or inflater.eof):
                raise Corrupt("ends too early")
            # what follows the end is in both where a piece before was full
            left = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
            place += len(chunk) - len(left)
            most -= len(piece)
            if most < 0:
                raise Oversized
            yield piece
        if window != GZIP or bytes(view[place : place + 2]) != _GZIP_MAGIC:
            break
    else:
        if members > 1:
            raise Corrupt(f"has more than {members} members")
    if place < len(view):
        raise Corrupt(f"is over, but {len(view) - place} bytes follow it")
