"""gzip and deflate, undone a piece at a time.

Zlib inflates about 280 MB a second, and a few bytes may inflate to a thousand times as many: an
event loop serves others between two pieces.
"""

from __future__ import annotations

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
_CHUNK: Final = 16 * KIB
"""Bytes of input for one piece. Zlib copies what it leaves of them."""
_GZIP_MAGIC: Final = b"\x1f\x8b"


class Corrupt(Exception):  # noqa: N818 - it is what the peer sent
    """The data is not what it is said to be. The text is a predicate: "ends too early"."""


class Oversized(Exception):  # noqa: N818 - the same
    """The data inflates to more than is allowed."""


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
            place += len(chunk) - len(inflater.unconsumed_tail)
            most -= len(piece)
            if most < 0:
                raise Oversized
            yield piece
        place -= len(inflater.unused_data)
        if window != GZIP or bytes(view[place : place + 2]) != _GZIP_MAGIC:
            break
    else:
        if members > 1:
            raise Corrupt(f"has more than {members} members")
    if place < len(view):
        raise Corrupt(f"is over, but {len(view) - place} bytes follow it")
