"""A flatbuffer reader that works in place and checks each access against the end of the message.

This module replaces the code that flatc generates, which is slower and does not check offsets.
The flatbuffers library has no verifier for Python.

*Rule 1.* The reader reads nothing outside the message. An offset to a position outside the message
raises BAD_REQUEST.

*Rule 2.* The reader accepts the variations that old writers produce: any order and alignment,
vtables after their tables, shared vtables, strings without NUL, absent vectors (read as empty), and
bytes after the last object.

*Rule 3.* Several offsets may point to the same object, so the objects of a message may have far
more bytes than the message. The reader reads at most ``MAX_EXPANSION`` times the message's size.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.tensor import Buffer

MAX_EXPANSION: Final = 4
"""Maximum ratio of bytes read to bytes of the message. The ratio may exceed 1, because several
offsets may point to the same string. No known writer produces such offsets."""
_U8: Final = struct.Struct("<B").unpack_from
_U16: Final = struct.Struct("<H").unpack_from
_U32: Final = struct.Struct("<I").unpack_from
_I32: Final = struct.Struct("<i").unpack_from
_I64: Final = struct.Struct("<q").unpack_from
_OFFSET_BYTES: Final = 4
"""Size in bytes of an offset, and of the length of a vector."""
MIN_BATCH_STRINGS: Final = 64
"""Minimum number of strings that are copied with numpy. A loop takes a microsecond per string."""
LONG_STRING_BYTES: Final = 128
"""Minimum average size of strings, in bytes, at which copying one string at a time is faster than
copying batches."""
_MAX_BATCH_STRINGS: Final = 1 << 13
_MAX_BATCH_BYTES: Final = 1 << 14
"""Limits on a batch. numpy needs several temporary 64-bit integers for each string and for each
byte."""


class TableField(NamedTuple):
    """A field of a table. ``entry`` is the vtable position: 4, plus 2 per preceding field."""

    entry: int
    name: str

    @property
    def slot(self) -> int:
        """The number of preceding fields."""
        return (self.entry - 4) // 2


class FlatbufferMessage:
    """A flatbuffer. ``remaining_bytes`` is the number of bytes that may still be read (Rule 3)."""

    __slots__ = ("data", "end", "remaining_bytes")

    def __init__(self, data: Buffer) -> None:
        self.data: Final = memoryview(data)
        self.end: Final = len(data)
        self.remaining_bytes = MAX_EXPANSION * self.end

    def root(self, label: str) -> FlatbufferTable:
        """Return the root table, which error messages call ``label``. Raises BAD_REQUEST."""
        if self.end < _OFFSET_BYTES:
            raise bad_request(f"{self.end} bytes are too short for the flatbuffer {label}")
        return FlatbufferTable(self, _U32(self.data, 0)[0], label)

    def consume(self, size: int) -> None:
        """Count ``size`` bytes as read (Rule 3). Raises TOO_LARGE."""
        self.remaining_bytes -= size
        if self.remaining_bytes < 0:
            raise GatewayError(
                Kind.TOO_LARGE,
                f"the message has {self.end} bytes and refers to more than {MAX_EXPANSION} times "
                "as many",
            )


class FlatbufferTable:
    """A table, which error messages call ``label``.

    The methods raise BAD_REQUEST for objects outside the message, and TOO_LARGE (Rule 3).
    """

    __slots__ = ("_message", "_size", "_start", "_vtable", "label")

    def __init__(self, message: FlatbufferMessage, start: int, label: str) -> None:
        data, end = message.data, message.end
        if start + _OFFSET_BYTES > end:
            raise _out_of_bounds(label)
        vtable = start - _I32(data, start)[0]
        if not 0 <= vtable <= end - 4:
            raise _out_of_bounds(f"the vtable of {label}")
        size = _U16(data, vtable)[0]
        if size < 4 or vtable + size > end:
            raise _out_of_bounds(f"the vtable of {label}")
        self._message: Final = message
        self._start: Final = start
        self._vtable: Final = vtable
        self._size: Final = size
        self.label: Final = label

    def _position(self, field: TableField, width: int) -> int:
        """Return the position of a field of ``width`` bytes, or 0 if the field is absent."""
        if field.entry + 2 > self._size:
            return 0
        offset: int = _U16(self._message.data, self._vtable + field.entry)[0]
        if offset == 0:
            return 0
        position = self._start + offset
        if position + width > self._message.end:
            raise _out_of_bounds(f"{self.label}.{field.name}")
        return position

    def _target(self, field: TableField) -> int:
        """Return the position of the object that a field refers to, or 0 if the field is absent."""
        position = self._position(field, _OFFSET_BYTES)
        return position + _U32(self._message.data, position)[0] if position else 0

    def _extent(self, position: int, width: int, label: str) -> tuple[int, int]:
        """Return the position of the first element of a vector, and the number of elements."""
        start = position + _OFFSET_BYTES
        if start > self._message.end:
            raise _out_of_bounds(label)
        length: int = _U32(self._message.data, position)[0]
        size = length * width
        if start + size > self._message.end:
            raise _out_of_bounds(label)
        self._message.consume(size)
        return start, length

    def _vector(self, field: TableField, width: int) -> tuple[int, int]:
        position = self._target(field)
        return self._extent(position, width, f"{self.label}.{field.name}") if position else (0, 0)

    def _elements(
        self, field: TableField, max_elements: int, *, truncate: bool = False
    ) -> list[tuple[int, str]]:
        """Return the position and label of up to ``max_elements`` elements. Raises BAD_REQUEST if
        the vector has more elements, unless ``truncate`` is true."""
        start, length = self._vector(field, _OFFSET_BYTES)
        if length > max_elements:
            if not truncate:
                raise bad_request(
                    f"there are {length} {field.name}; the limit is {max_elements}", limit="tensors"
                )
            length = max_elements
        offsets = struct.unpack_from(f"<{length}I", self._message.data, start)
        return [
            (start + _OFFSET_BYTES * index + offset, f"{self.label}.{field.name}[{index}]")
            for index, offset in enumerate(offsets)
        ]

    def _string(self, position: int, label: str) -> bytes:
        start, length = self._extent(position, 1, label)
        return bytes(self._message.data[start : start + length])

    # ---- fields

    def uint8(self, field: TableField) -> int:
        """Return an unsigned byte, or 0 if the field is absent."""
        position = self._position(field, 1)
        return int(_U8(self._message.data, position)[0]) if position else 0

    def int64(self, field: TableField) -> int:
        """Return a signed 64-bit integer, or 0 if the field is absent."""
        position = self._position(field, 8)
        return int(_I64(self._message.data, position)[0]) if position else 0

    def int64s(self, field: TableField, max_elements: int) -> tuple[int, ...]:
        """Return signed 64-bit integers. Raises BAD_REQUEST for more than ``max_elements``."""
        start, length = self._vector(field, 8)
        if length > max_elements:
            raise bad_request(
                f"{self.label}.{field.name} has {length} elements; the limit is {max_elements}",
                limit="rank",
            )
        return struct.unpack_from(f"<{length}q", self._message.data, start)

    def table(self, field: TableField) -> FlatbufferTable | None:
        """Return the table that a field refers to, or None."""
        position = self._target(field)
        return (
            FlatbufferTable(self._message, position, f"{self.label}.{field.name}")
            if position
            else None
        )

    def tables(self, field: TableField, max_tables: int) -> list[FlatbufferTable]:
        """Return the tables of a vector. Raises BAD_REQUEST for more than ``max_tables``."""
        return [FlatbufferTable(self._message, *item) for item in self._elements(field, max_tables)]

    def text(self, field: TableField) -> str:
        """Return a UTF-8 string, which is empty if the field is absent."""
        return _decode(bytes(self.data(field)), f"{self.label}.{field.name}")

    def texts(self, field: TableField, max_texts: int, *, truncate: bool = False) -> list[str]:
        """Return up to ``max_texts`` UTF-8 strings. Raises BAD_REQUEST if the field has more
        strings, unless ``truncate`` is true."""
        items = self._elements(field, max_texts, truncate=truncate)
        return [_decode(self._string(*item), item[1]) for item in items]

    def data(self, field: TableField) -> memoryview:
        """Return a vector of bytes, or a string that need not be UTF-8, without copying."""
        start, length = self._vector(field, 1)
        return self._message.data[start : start + length]

    def length(self, field: TableField) -> int:
        """Return the number of elements of a vector of offsets."""
        return self._vector(field, _OFFSET_BYTES)[1]

    def packed_strings(self, field: TableField) -> bytearray:
        """Return a vector of strings in the canonical layout of BYTES, which has no padding."""
        start, length = self._vector(field, _OFFSET_BYTES)
        if length < MIN_BATCH_STRINGS:
            return self._packed_singly(field, start, length)
        packed = bytearray()
        for first in range(0, length, _MAX_BATCH_STRINGS):
            count = min(_MAX_BATCH_STRINGS, length - first)
            self._pack_batch(packed, field, start + _OFFSET_BYTES * first, count)
        return packed

    def _pack_batch(self, packed: bytearray, field: TableField, begin: int, length: int) -> None:
        data, end = np.frombuffer(self._message.data, np.uint8), self._message.end
        offsets = np.frombuffer(data, "<u4", length, begin)
        starts = np.arange(begin, begin + _OFFSET_BYTES * length, _OFFSET_BYTES) + offsets
        if starts.max() > end - _OFFSET_BYTES:
            raise _out_of_bounds(f"a string of {self.label}.{field.name}")
        # View the data as a 32-bit integer at every byte offset, so that one index operation reads
        # all lengths.
        lengths = np.ndarray((end - _OFFSET_BYTES + 1,), "<u4", data, strides=(1,))
        sizes = _OFFSET_BYTES + lengths[starts].astype(np.int64)
        if (starts + sizes).max() > end:
            raise _out_of_bounds(f"a string of {self.label}.{field.name}")
        self._message.consume(int(sizes.sum()))
        _gather(packed, data, starts, sizes)

    def _packed_singly(self, field: TableField, begin: int, length: int) -> bytearray:
        data, message_end = self._message.data, self._message.end
        remaining_bytes = self._message.remaining_bytes
        packed = bytearray()
        for (offset,) in struct.iter_unpack("<I", data[begin : begin + _OFFSET_BYTES * length]):
            position = begin + offset
            begin += _OFFSET_BYTES
            end = position + _OFFSET_BYTES
            if end <= message_end:
                end += _U32(data, position)[0]
            if end > message_end:
                raise _out_of_bounds(f"a string of {self.label}.{field.name}")
            packed += data[position:end]
            if len(packed) > remaining_bytes:
                break
        self._message.consume(len(packed))
        return packed


def _gather(
    packed: bytearray,
    data: npt.NDArray[np.uint8],
    begins: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
) -> None:
    """Append non-empty pieces of ``data`` to ``packed``. If the pieces are long on average, they
    are copied one by one. Otherwise, they are copied byte by byte with an index array."""
    ends = np.cumsum(sizes)
    total = int(ends[-1])
    if total >= LONG_STRING_BYTES * len(sizes):
        source = data.data
        for begin, end in zip(begins.tolist(), (begins + sizes).tolist(), strict=True):
            packed += source[begin:end]
        return
    starts, shifts = ends - sizes, begins - ends + sizes
    for low in range(0, total, _MAX_BATCH_BYTES):
        high = min(low + _MAX_BATCH_BYTES, total)
        first, last = np.searchsorted(ends, (low, high - 1), "right")
        part = slice(first, last + 1)
        counts = np.minimum(ends[part], high) - np.maximum(starts[part], low)
        packed += data[np.repeat(shifts[part], counts) + np.arange(low, high)].data


def _out_of_bounds(label: str) -> GatewayError:
    return bad_request(f"{label} lies outside the message")


def _decode(data: bytes, label: str) -> str:
    try:
        return data.decode()
    except UnicodeError:
        raise bad_request(f"{label} is not UTF-8") from None
