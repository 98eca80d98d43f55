"""Compressed gRPC messages that inflate to much: a piece at a time, when somebody wants them.

*Rule 1.* A message that inflates to no more than one piece is inflated where it is received. Of any
other only the beginning is, by which a request is recognized; the rest waits until the request was
admitted.
*Rule 2.* Of all such messages of an event loop one piece is inflated in each of its turns, so that
others wait for one piece at most, and messages share the time fairly.
*Rule 3.* Each piece is counted in the memory budget before it is kept. When inflating fails or is
cancelled, what was counted is given back at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from infergate.core.inflation import PIECE, RATIO
from infergate.core.memory import MemoryShare
from infergate.core.tensor import Buffer

_turns: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]] = WeakKeyDictionary()


_BEGINNING: Final = 8
"""Pieces that are inflated at once, at most."""


def inflated(pieces: Iterator[bytes], length: int, most: int) -> Buffer | Late:
    """A message of ``length`` bytes that inflates to ``pieces``, which come to ``most`` bytes at
    most. Raises what they do."""
    begun: list[bytes] = []
    size = 0
    for piece in pieces:
        begun.append(piece)
        size += len(piece)
        if size > PIECE or len(begun) >= _BEGINNING:
            return Late(b"".join(begun), pieces, length, most)
    return b"".join(begun)


class Late:
    """A message of which more than the ``beginning`` is to be inflated. Implements
    :class:`infergate.core.wire.LateMessage`."""

    __slots__ = ("_length", "_most", "_pieces", "beginning", "error")

    def __init__(self, beginning: bytes, pieces: Iterator[bytes], length: int, most: int) -> None:
        self.beginning: Final = beginning
        self.error: Exception | None = None
        """What was wrong with it."""
        self._pieces: Final = pieces
        self._length: Final = length
        self._most: Final = most

    def __len__(self) -> int:
        """As long as it is compressed."""
        return self._length

    async def whole(self, memory: MemoryShare) -> Buffer:
        """See LateMessage. Raises also what the pieces raise."""
        # touched only as bytes come
        room = np.empty(min(self._length * RATIO, self._most), np.uint8).data
        turn = _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        filled = 0
        piece: bytes | None = self.beginning
        try:
            while piece is not None:
                end = filled + len(piece)
                memory.grow(len(piece))
                room[filled:end] = piece
                filled = end
                async with turn:
                    piece = next(self._pieces, None)
                    await asyncio.sleep(0)
        except BaseException as error:
            memory.shrink(filled)
            if isinstance(error, Exception):
                self.error = error
            del room, piece  # the error that is kept knows this frame
            raise
        return room[:filled]
