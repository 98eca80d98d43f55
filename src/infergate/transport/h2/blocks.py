"""Decodes header blocks (RFC 7541) into fields, each a pair of bytes.

The decoder is one loop over the block and does no avoidable work per field: a client can encode a
field in a single byte, so the cost of a field is a cost per byte.

Decoded size is limited while decoding. Any error ends the connection, because the state of the
dynamic table is unknown afterwards.
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
"""Overhead counted for each field in addition to its bytes (RFC 9113, 6.5.2; RFC 7541, 4.1)."""
_STATIC: Final[tuple[Pair, ...]] = tuple(HeaderTable.STATIC_TABLE)
_FIRST_OF_OURS: Final = len(_STATIC) + 1
_LARGEST_TABLE: Final = 4096
"""Size of the dynamic table that a peer may use until it acknowledges the SETTINGS that announce
size 0."""
_MOST_SHIFT: Final = 28
"""Maximum bits of an integer; no length or index is longer."""


class TooManyHeaders(ConnectionFault):
    """A block exceeds the size limit. Its effect on the dynamic table is unknown."""

    def __init__(self) -> None:
        super().__init__(Code.ENHANCE_YOUR_CALM, "too many headers")


class Decoder:
    """The decoder of one connection.

    `is_stateless`: the last block neither read nor changed the dynamic table, so it means the same
    for as long as the table keeps its size. `is_resized`: the last block changed that size.
    """

    __slots__ = ("_entries", "_largest", "_most", "_room", "_size", "is_resized", "is_stateless")

    def __init__(self, most: int) -> None:
        """`max_size`: the largest decoded size of a block, including `FIELD_OVERHEAD` for each
        field."""
        self._most: Final = most
        self._entries: deque[Pair] = deque()  # the newest first
        self._size = 0
        self._room = self._largest = _LARGEST_TABLE
        self.is_resized = False
        self.is_stateless = True

    def settle(self) -> None:
        """Drop the dynamic table: the peer acknowledged that its size is 0 (RFC 7541, 4.2)."""
        self._largest = self._room = 0
        self._shrink()

    def read(self, block: bytes) -> list[Pair]:
        """Return the fields of `block`. Raises Http2ConnectionError."""
        self.is_resized = False
        self.is_stateless = True
        try:
            return self._read(block)
        except (IndexError, HPACKError) as error:
            raise ConnectionFault(Code.COMPRESSION_ERROR, "HPACK") from error

    def _read(self, block: bytes) -> list[Pair]:
        fields: list[Pair] = []
        size, position, end = 0, 0, len(block)
        while position < end:
            first = block[position]
            if first & 0x80:
                index, position = _integer(block, position, 0x7F)
                pair = self._entry(index)
            elif first & 0xE0 == 0x20:
                if fields:
                    raise IndexError("dynamic table size update after the first field")
                size_limit, position = _integer(block, position, 0x1F)
                self._resize(size_limit)
                continue
            else:
                index, position = _integer(block, position, 0x3F if first & 0x40 else 0x0F)
                if index:
                    name = self._entry(index)[0]
                else:
                    name, position = _text(block, position)
                value, position = _text(block, position)
                pair = name, value
                if first & 0x40:
                    self._add(pair)
            size += len(pair[0]) + len(pair[1]) + PER_FIELD
            if size > self._most:
                raise TooManyHeaders
            fields.append(pair)
        return fields

    def _entry(self, index: int) -> Pair:
        """Return the field at `index`. Raises IndexError."""
        if 0 < index < _FIRST_OF_OURS:
            return _STATIC[index - 1]
        self.is_stateless = False
        if not index:
            raise IndexError("index 0")
        return self._entries[index - _FIRST_OF_OURS]

    def _add(self, pair: Pair) -> None:
        self.is_stateless = False
        self._entries.appendleft(pair)
        self._size += len(pair[0]) + len(pair[1]) + PER_FIELD
        self._shrink()

    def _resize(self, room: int) -> None:
        if room > self._largest:
            raise IndexError("the dynamic table is too large")
        if room != self._room:  # an update to the same size changes nothing
            self.is_resized, self.is_stateless = True, False
            self._room = room
            self._shrink()

    def _shrink(self) -> None:
        while self._size > self._room:
            name, value = self._entries.pop()
            self._size -= len(name) + len(value) + PER_FIELD


def _integer(block: bytes, at: int, most: int) -> tuple[int, int]:
    """Read the integer at `position` (RFC 7541, 5.1); return it and the position after it. Raises
    IndexError."""
    value = block[at] & most
    at += 1
    if value < most:
        return value, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > _MOST_SHIFT:
            raise IndexError("the integer is too long")


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    """Read the string at `position` (RFC 7541, 5.2); return it and the position after it. Raises
    IndexError and HPACKError."""
    is_huffman = block[at] & 0x80
    length, at = _integer(block, at, 0x7F)
    end = at + length
    if end > len(block):
        raise IndexError("truncated string")
    text = block[at:end]
    return (huffman.decode(text) if is_huffman else text), end
