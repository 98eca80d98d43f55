"""Reads header blocks (RFC 7541) as fields, each a pair of bytes.

*Strategy.* One loop over the block, with nothing done for a field that need not be: a client may
make a field of one byte, so what a field costs is what a byte costs.

*Rule.* What is decoded is bounded while it is decoded; what goes wrong ends the connection, for the
table is then not known any more.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from hpack.exceptions import HPACKError
from hpack.table import HeaderTable

from infergate.transport.h2 import huffman
from infergate.transport.h2.frames import Code, ConnectionFault

Pair = tuple[bytes, bytes]

PER_FIELD: Final = 32
"""What a field costs beside its bytes (RFC 9113, 6.5.2; RFC 7541, 4.1)."""
_STATIC: Final[tuple[Pair, ...]] = tuple(HeaderTable.STATIC_TABLE)
_FIRST_OF_OURS: Final = len(_STATIC) + 1
_LARGEST_TABLE: Final = 4096
"""Which a peer may use until it acknowledges the SETTINGS that announce a table of no bytes."""
_MOST_SHIFT: Final = 28
"""Bits of an integer: no length or index is longer."""


class TooManyHeaders(ConnectionFault):
    """A block comes to more than is taken. What it did to the table is not known."""

    def __init__(self) -> None:
        super().__init__(Code.ENHANCE_YOUR_CALM, "too many headers")


class Decoder:
    """Of one connection. ``is_stateless``: the last block would mean the same as long as the table
    keeps its size; ``is_resized``: it gave it another one."""

    __slots__ = ("_entries", "_largest", "_most", "_room", "_size", "is_resized", "is_stateless")

    def __init__(self, most: int) -> None:
        """``most``: how much a block may come to, ``PER_FIELD`` counted."""
        self._most: Final = most
        self._entries: deque[Pair] = deque()  # the newest first
        self._size = 0
        self._room = self._largest = _LARGEST_TABLE
        self.is_resized = False
        self.is_stateless = True

    def settle(self) -> None:
        """The peer acknowledged that there is no table any more (RFC 7541, 4.2)."""
        self._largest = self._room = 0
        self._shrink()

    def read(self, block: bytes) -> list[Pair]:
        """What ``block`` says. Raises ConnectionFault."""
        self.is_resized = False
        self.is_stateless = True
        try:
            return self._read(block)
        except (IndexError, HPACKError) as error:
            raise ConnectionFault(Code.COMPRESSION_ERROR, "HPACK") from error

    def _read(self, block: bytes) -> list[Pair]:
        found: list[Pair] = []
        size, at, end = 0, 0, len(block)
        while at < end:
            first = block[at]
            if first & 0x80:
                index, at = _integer(block, at, 0x7F)
                pair = self._entry(index)
            elif first & 0xE0 == 0x20:
                if found:
                    raise IndexError("the table's size changes inside a block")
                room, at = _integer(block, at, 0x1F)
                self._resize(room)
                continue
            else:
                index, at = _integer(block, at, 0x3F if first & 0x40 else 0x0F)
                if index:
                    name = self._entry(index)[0]
                else:
                    name, at = _text(block, at)
                value, at = _text(block, at)
                pair = name, value
                if first & 0x40:
                    self._add(pair)
            size += len(pair[0]) + len(pair[1]) + PER_FIELD
            if size > self._most:
                raise TooManyHeaders
            found.append(pair)
        return found

    def _entry(self, index: int) -> Pair:
        """Raises IndexError."""
        if 0 < index < _FIRST_OF_OURS:
            return _STATIC[index - 1]
        self.is_stateless = False
        if not index:
            raise IndexError("there is no field 0")
        return self._entries[index - _FIRST_OF_OURS]

    def _add(self, pair: Pair) -> None:
        self.is_stateless = False
        self._entries.appendleft(pair)
        self._size += len(pair[0]) + len(pair[1]) + PER_FIELD
        self._shrink()

    def _resize(self, room: int) -> None:
        if room > self._largest:
            raise IndexError("the table is too large")
        if room != self._room:  # else it is the same table
            self.is_resized, self.is_stateless = True, False
            self._room = room
            self._shrink()

    def _shrink(self) -> None:
        while self._size > self._room:
            name, value = self._entries.pop()
            self._size -= len(name) + len(value) + PER_FIELD


def _integer(block: bytes, at: int, most: int) -> tuple[int, int]:
    """RFC 7541, 5.1: the integer that begins at ``at``, and where it ends. Raises IndexError."""
    value = block[at] & most
    at += 1
    if value < most:
        return value, at
    shift = 0
    while True:
        more = block[at]
        at += 1
        value += (more & 0x7F) << shift
        if more < 0x80:
            return value, at
        shift += 7
        if shift > _MOST_SHIFT:
            raise IndexError("an integer is too long")


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    """RFC 7541, 5.2. Raises IndexError, HPACKError."""
    is_huffman = block[at] & 0x80
    length, at = _integer(block, at, 0x7F)
    end = at + length
    if end > len(block):
        raise IndexError("a text is cut short")
    text = block[at:end]
    return (huffman.decode(text) if is_huffman else text), end
