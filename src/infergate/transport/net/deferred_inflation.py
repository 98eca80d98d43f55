"""Decompresses long messages, one piece at a time.

A message that inflates to at most ``PIECE_BYTES``, in a few pieces, is inflated immediately. Only
the beginning of any other message is inflated before the request is admitted, because the beginning
identifies the request. An event loop inflates one piece per iteration, and the long messages take
turns. Each piece is charged to the memory budget.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from infergate.core.inflation import MAX_RATIO, PIECE_BYTES
from infergate.core.memory import MemoryAccount
from infergate.core.tensor import Buffer

_inflation_locks: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]] = (
    WeakKeyDictionary()
)
_MIN_DEFERRED_PIECES: Final = 8


def inflate_or_defer(
    pieces: Iterator[bytes], length: int, max_bytes: int
) -> Buffer | DeferredInflation:
    """Inflate a message of ``length`` compressed bytes, or defer the inflation of a long message.
    ``pieces`` yields at most ``max_bytes`` bytes in total. Errors of ``pieces`` propagate."""
    beginning: list[bytes] = []
    size = 0
    for piece in pieces:
        beginning.append(piece)
        size += len(piece)
        if size > PIECE_BYTES or len(beginning) >= _MIN_DEFERRED_PIECES:
            return DeferredInflation(b"".join(beginning), pieces, length, max_bytes)
    return b"".join(beginning)


class DeferredInflation:
    """A compressed ``DeferredMessage``. Only ``prefix`` has been inflated."""

    def __init__(
        self, beginning: bytes, pieces: Iterator[bytes], length: int, max_bytes: int
    ) -> None:
        self.prefix: Final = beginning
        self.error: Exception | None = None  # the error that ended the inflation, or None
        self._pieces: Final = pieces
        self._length: Final = length
        self._max_bytes: Final = max_bytes

    def __len__(self) -> int:
        return self._length

    async def inflate(self, memory: MemoryAccount) -> Buffer:
        """Inflate the complete message. Raises OVERLOADED. Errors of ``pieces`` propagate."""
        # Pages use no memory until they are written.
        buffer = np.empty(min(self._length * MAX_RATIO, self._max_bytes), np.uint8).data
        inflation_lock = _inflation_locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        filled = 0
        piece: bytes | None = self.prefix
        try:
            while piece is not None:
                end = filled + len(piece)
                memory.grow(len(piece))
                buffer[filled:end] = piece
                filled = end
                async with inflation_lock:
                    piece = next(self._pieces, None)
                    await asyncio.sleep(0)
        except BaseException as error:
            memory.shrink(filled)
            if isinstance(error, Exception):
                self.error = error
            del buffer, piece  # the stored error refers to this frame
            raise
        return buffer[:filled]
