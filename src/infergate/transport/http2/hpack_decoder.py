"""Decodes header blocks (RFC 7541) into pairs of name and value. A peer can encode a field in a
single byte. The loop therefore does as little work per field as possible, and limits the decoded
size. An error ends the connection, because the state of the dynamic table is unknown afterwards.
The exception is a block that is too large, which can be skipped if the table is disabled."""

from __future__ import annotations

from collections import deque
from typing import Final

from hpack.exceptions import HPACKError
from hpack.table import HeaderTable

from infergate.transport.http2 import huffman
from infergate.transport.http2.frames import Code, Http2ConnectionError

HeaderField = tuple[bytes, bytes]

FIELD_OVERHEAD: Final = 32
"""Overhead counted for each field in addition to its bytes (RFC 9113, 6.5.2; RFC 7541, 4.1)."""
STATIC_FIELDS: Final[tuple[HeaderField, ...]] = tuple(HeaderTable.STATIC_TABLE)
_FIRST_DYNAMIC_INDEX: Final = len(STATIC_FIELDS) + 1
_DEFAULT_TABLE_SIZE: Final = 4096
"""Size of a peer's dynamic table before the peer acknowledges the SETTINGS with size 0."""
MAX_PREFIX_LENGTH: Final = 0x7F
"""The largest value of the 7-bit prefix of a string's length. A smaller length shares one byte with
the Huffman bit."""
_MAX_SHIFT: Final = 28
"""Maximum shift, in bits, of the last byte of an integer. No valid length or index needs more."""


class HeaderBlockTooLargeError(Http2ConnectionError):
    """The decoded size of a block exceeds the limit. The effect of the block on the dynamic table
    is unknown."""

    def __init__(self) -> None:
        super().__init__("the decoded header block is too large", Code.ENHANCE_YOUR_CALM)


class HpackDecoder:
    """Decodes the blocks of one connection. `is_stateless` means that the last block neither read
    nor changed the dynamic table. `is_resized` means that the last block changed the table's
    size."""

    def __init__(self, max_size: int) -> None:
        """`max_size` is the largest decoded size of a block. Each field counts as `FIELD_OVERHEAD`
        bytes more than its name and value."""
        self._max_size: Final = max_size
        self._entries: deque[HeaderField] = deque()  # the newest first
        self._table_size = 0
        self._table_limit = self._max_table_limit = _DEFAULT_TABLE_SIZE
        self.is_resized = False
        self.is_stateless = True

    def disable_table(self) -> None:
        """Drop the dynamic table, because the peer acknowledged size 0 (RFC 7541, 4.2)."""
        self._max_table_limit = self._table_limit = 0
        self._evict()

    def decode(self, block: bytes) -> list[HeaderField]:
        """Return the fields of `block`. Raises Http2ConnectionError."""
        self.is_resized = False
        self.is_stateless = True
        try:
            return self._decode(block)
        except (IndexError, HPACKError) as error:
            reason = f"the header block is not valid HPACK: {error}"
            raise Http2ConnectionError(reason, Code.COMPRESSION_ERROR) from error

    def _decode(self, block: bytes) -> list[HeaderField]:
        fields: list[HeaderField] = []
        size, position, end = 0, 0, len(block)
        while position < end:
            first = block[position]
            if first & 0x80:
                index, position = read_integer(block, position, 0x7F)
                pair = self._lookup(index)
            elif first & 0xE0 == 0x20:
                if fields:
                    raise IndexError("dynamic table size update after the first field")
                size_limit, position = read_integer(block, position, 0x1F)
                self._resize(size_limit)
                continue
            else:
                index, position = read_integer(block, position, 0x3F if first & 0x40 else 0x0F)
                if index:
                    name = self._lookup(index)[0]
                else:
                    name, position = read_string(block, position)
                value, position = read_string(block, position)
                pair = name, value
                if first & 0x40:
                    self._add(pair)
            size += len(pair[0]) + len(pair[1]) + FIELD_OVERHEAD
            if size > self._max_size:
                raise HeaderBlockTooLargeError
            fields.append(pair)
        return fields

    def _lookup(self, index: int) -> HeaderField:
        if 0 < index < _FIRST_DYNAMIC_INDEX:
            return STATIC_FIELDS[index - 1]
        self.is_stateless = False
        if not index:
            raise IndexError("the index is 0")
        return self._entries[index - _FIRST_DYNAMIC_INDEX]

    def _add(self, pair: HeaderField) -> None:
        if not self._table_limit:
            return  # a table of size 0 stays empty (RFC 7541, 4.4)
        self.is_stateless = False
        self._entries.appendleft(pair)
        self._table_size += len(pair[0]) + len(pair[1]) + FIELD_OVERHEAD
        self._evict()

    def _resize(self, limit: int) -> None:
        if limit > self._max_table_limit:
            raise IndexError("the size of the dynamic table exceeds its limit")
        if limit != self._table_limit:  # an update to the same size changes nothing
            self.is_resized, self.is_stateless = True, False
            self._table_limit = limit
            self._evict()

    def _evict(self) -> None:
        while self._table_size > self._table_limit:
            name, value = self._entries.pop()
            self._table_size -= len(name) + len(value) + FIELD_OVERHEAD


def read_integer(block: bytes, position: int, prefix_mask: int) -> tuple[int, int]:
    """Return the integer at `position` (RFC 7541, 5.1) and the position after it. Raises
    IndexError."""
    value = block[position] & prefix_mask
    position += 1
    if value < prefix_mask:
        return value, position
    shift = 0
    while True:
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > _MAX_SHIFT:
            raise IndexError("an integer is too long")


def read_string(block: bytes, position: int) -> tuple[bytes, int]:
    """Return the string at `position` (RFC 7541, 5.2) and the position after it. Raises IndexError
    and HPACKError."""
    is_huffman = block[position] & 0x80
    length, position = read_integer(block, position, MAX_PREFIX_LENGTH)
    end = position + length
    if end > len(block):
        raise IndexError("a string is truncated")
    text = block[position:end]
    return (huffman.decode(text) if is_huffman else text), end
