"""A flatbuffer read where it lies, each step checked against the end of the message.

*Strategy.* The code that flatc generates checks nothing: a hostile offset reads whatever is
there, and Python has no verifier to run before it. The schema is small, so its fields are read
here, checked and used in one go, faster than by the generated code.

*Rule 1.* Nothing outside the message is read; what would lie there is BAD_REQUEST naming the field.
*Rule 2.* What old writers do is taken: any order and alignment, vtables behind their tables and
shared ones, strings without NUL, absent vectors (they are empty), bytes after the last object.
*Rule 3.* Offsets may lead to one place again and again, so a message can refer to far more bytes
than it has. What is read is counted, and ends at ``MOST_TIMES`` the message's size.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.tensor import Buffer

MOST_TIMES: Final = 4
"""Writers may tell equal strings by one; none that is known does."""
_U8: Final = struct.Struct("<B").unpack_from
_U16: Final = struct.Struct("<H").unpack_from
_U32: Final = struct.Struct("<I").unpack_from
_I32: Final = struct.Struct("<i").unpack_from
_I64: Final = struct.Struct("<q").unpack_from
_OFFSET: Final = 4
"""Bytes of an offset, and of a vector's length."""
MANY: Final = 64
"""So many strings are read, and written, together: a loop would take a microsecond for each."""
LONG: Final = 128
"""Bytes from which on a string is better copied by itself than with others."""
_STRINGS_AT_ONCE: Final = 1 << 13
_BYTES_AT_ONCE: Final = 1 << 14
"""Bounds of the memory that numpy takes on the way, several times 8 bytes for each."""


class Field(NamedTuple):
    """A field of a table. ``entry`` is where the vtable tells of it: 4, and 2 more for each field
    before it."""

    entry: int
    name: str


class Message:
    """One flatbuffer. ``room`` is how many bytes more may be read of it."""

    __slots__ = ("data", "end", "room")

    def __init__(self, data: Buffer) -> None:
        self.data: Final = memoryview(data)
        self.end: Final = len(data)
        self.room = MOST_TIMES * self.end

    def root(self, what: str) -> Table:
        """The outermost table, called ``what``. Raises BAD_REQUEST."""
        if self.end < _OFFSET:
            raise bad_request(f"{self.end} bytes are no {what}, which is a flatbuffer")
        return Table(self, _U32(self.data, 0)[0], what)

    def count(self, size: int) -> None:
        """Rule 3. Raises TOO_LARGE."""
        self.room -= size
        if self.room < 0:
            raise GatewayError(
                Kind.TOO_LARGE,
                f"the message has {self.end} bytes and refers to more than {MOST_TIMES} times that",
            )


class Table:
    """A table, called ``what``. Its methods raise BAD_REQUEST for what is not in the message, and
    TOO_LARGE by Rule 3."""

    __slots__ = ("_message", "_size", "_start", "_vtable", "what")

    def __init__(self, message: Message, start: int, what: str) -> None:
        data, end = message.data, message.end
        if start + _OFFSET > end:
            raise _outside(what)
        vtable = start - _I32(data, start)[0]
        if not 0 <= vtable <= end - 4:
            raise _outside(f"the vtable of {what}")
        size = _U16(data, vtable)[0]
        if size < 4 or vtable + size > end:
            raise _outside(f"the vtable of {what}")
        self._message: Final = message
        self._start: Final = start
        self._vtable: Final = vtable
        self._size: Final = size
        self.what: Final = what

    def _place(self, field: Field, width: int) -> int:
        """Where the ``width`` bytes of a field begin; 0 where it is absent."""
        if field.entry + 2 > self._size:
            return 0
        offset: int = _U16(self._message.data, self._vtable + field.entry)[0]
        if offset == 0:
            return 0
        place = self._start + offset
        if place + width > self._message.end:
            raise _outside(f"{self.what}.{field.name}")
        return place

    def _target(self, field: Field) -> int:
        """Where what a field refers to begins; 0 where it is absent."""
        place = self._place(field, _OFFSET)
        return place + _U32(self._message.data, place)[0] if place else 0

    def _extent(self, place: int, width: int, what: str) -> tuple[int, int]:
        """Where the elements of the vector at ``place`` begin, and how many there are."""
        begin = place + _OFFSET
        if begin > self._message.end:
            raise _outside(what)
        length: int = _U32(self._message.data, place)[0]
        size = length * width
        if begin + size > self._message.end:
            raise _outside(what)
        self._message.count(size)
        return begin, length

    def _vector(self, field: Field, width: int) -> tuple[int, int]:
        place = self._target(field)
        return self._extent(place, width, f"{self.what}.{field.name}") if place else (0, 0)

    def _items(self, field: Field, most: int, *, cut: bool = False) -> list[tuple[int, str]]:
        """Where each of ``most`` elements begins, and what it is called. If there are more, the
        rest is ``cut`` off, or refused."""
        begin, length = self._vector(field, _OFFSET)
        if length > most:
            if not cut:
                raise bad_request(
                    f"there are {length} {field.name}, the limit is {most}", limit="tensors"
                )
            length = most
        offsets = struct.unpack_from(f"<{length}I", self._message.data, begin)
        return [
            (begin + _OFFSET * index + offset, f"{self.what}.{field.name}[{index}]")
            for index, offset in enumerate(offsets)
        ]

    def _string(self, place: int, what: str) -> bytes:
        begin, length = self._extent(place, 1, what)
        return bytes(self._message.data[begin : begin + length])

    # ---- what a table is asked for

    def byte(self, field: Field) -> int:
        """An unsigned byte, 0 where it is absent."""
        place = self._place(field, 1)
        return int(_U8(self._message.data, place)[0]) if place else 0

    def long(self, field: Field) -> int:
        """A signed integer of 64 bits, 0 where it is absent."""
        place = self._place(field, 8)
        return int(_I64(self._message.data, place)[0]) if place else 0

    def longs(self, field: Field, most: int) -> tuple[int, ...]:
        """Up to ``most`` signed integers of 64 bits."""
        begin, length = self._vector(field, 8)
        if length > most:
            raise bad_request(
                f"{self.what}.{field.name} has {length} elements, the limit is {most}",
                limit="rank",
            )
        return struct.unpack_from(f"<{length}q", self._message.data, begin)

    def table(self, field: Field) -> Table | None:
        """The table it refers to."""
        place = self._target(field)
        return Table(self._message, place, f"{self.what}.{field.name}") if place else None

    def tables(self, field: Field, most: int) -> list[Table]:
        """Up to ``most`` tables."""
        return [Table(self._message, *item) for item in self._items(field, most)]

    def text(self, field: Field) -> str:
        """A string that has to be UTF-8; empty where it is absent."""
        return _decoded(bytes(self.data(field)), f"{self.what}.{field.name}")

    def texts(self, field: Field, most: int, *, cut: bool = False) -> list[str]:
        """Up to ``most`` strings, each UTF-8. If there are more, the rest is ``cut`` off unread."""
        items = self._items(field, most, cut=cut)
        return [_decoded(self._string(*item), item[1]) for item in items]

    def data(self, field: Field) -> memoryview:
        """A vector of bytes or a string, which may be any bytes; not copied."""
        begin, length = self._vector(field, 1)
        return self._message.data[begin : begin + length]

    def length(self, field: Field) -> int:
        """How many elements a vector of offsets has."""
        return self._vector(field, _OFFSET)[1]

    def packed(self, field: Field) -> bytearray:
        """All strings of a vector in the canonical layout of BYTES, which is each as it lies here
        but for its padding."""
        begin, length = self._vector(field, _OFFSET)
        if length < MANY:
            return self._packed_few(field, begin, length)
        found = bytearray()
        for first in range(0, length, _STRINGS_AT_ONCE):
            count = min(_STRINGS_AT_ONCE, length - first)
            self._pack_many(found, field, begin + _OFFSET * first, count)
        return found

    def _pack_many(self, found: bytearray, field: Field, begin: int, length: int) -> None:
        data, end = np.frombuffer(self._message.data, np.uint8), self._message.end
        offsets = np.frombuffer(data, "<u4", length, begin)
        begins = np.arange(begin, begin + _OFFSET * length, _OFFSET) + offsets
        if begins.max() > end - _OFFSET:
            raise _outside(f"a string of {self.what}.{field.name}")
        lengths = np.ndarray((end - _OFFSET + 1,), "<u4", data, strides=(1,))  # one at each byte
        sizes = _OFFSET + lengths[begins].astype(np.int64)
        if (begins + sizes).max() > end:
            raise _outside(f"a string of {self.what}.{field.name}")
        self._message.count(int(sizes.sum()))
        _gather(found, data, begins, sizes)

    def _packed_few(self, field: Field, begin: int, length: int) -> bytearray:
        data, end, room = self._message.data, self._message.end, self._message.room
        found = bytearray()
        for (offset,) in struct.iter_unpack("<I", data[begin : begin + _OFFSET * length]):
            place = begin + offset
            begin += _OFFSET
            stop = place + _OFFSET
            if stop <= end:
                stop += _U32(data, place)[0]
            if stop > end:
                raise _outside(f"a string of {self.what}.{field.name}")
            found += data[place:stop]
            if len(found) > room:
                break
        self._message.count(len(found))
        return found


def _gather(
    found: bytearray,
    data: npt.NDArray[np.uint8],
    begins: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
) -> None:
    """Append to ``found`` the pieces of ``data`` that begin there and have so many bytes: long ones
    one by one, short ones a byte by its index. None is empty."""
    ends = np.cumsum(sizes)
    total = int(ends[-1])
    if total >= LONG * len(sizes):
        source = data.data
        for begin, end in zip(begins.tolist(), (begins + sizes).tolist(), strict=True):
            found += source[begin:end]
        return
    starts, shifts = ends - sizes, begins - ends + sizes
    for low in range(0, total, _BYTES_AT_ONCE):
        high = min(low + _BYTES_AT_ONCE, total)
        first, last = np.searchsorted(ends, (low, high - 1), "right")
        part = slice(first, last + 1)
        counts = np.minimum(ends[part], high) - np.maximum(starts[part], low)
        found += data[np.repeat(shifts[part], counts) + np.arange(low, high)].data


def _outside(what: str) -> GatewayError:
    return bad_request(f"{what} does not lie within the message")


def _decoded(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeError:
        raise bad_request(f"{what} is not UTF-8") from None
