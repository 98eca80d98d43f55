"""Inferences written as flatbuffers around their tensors' data, which is not copied.

*Strategy.* flatbuffers' own Builder copies all it is given, and is slow for small parts. Here a
message is written front to back: a beginning that is always the same (the vtables and the outermost
tables), what these refer to, then the tensors' data, each a part of the body by itself.

*Rule 1.* An offset leads forward only, so whatever is referred to stands behind.
*Rule 2.* Every vector is written, also an empty one: clients break on an absent one. All empty ones
are one and the same.
*Rule 3.* Data is aligned to 8 bytes, the rest as C++ verifiers want it; strings end in NUL.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from infergate.codecs.graphpipe.datatypes import number_of
from infergate.codecs.graphpipe.fields import INFER
from infergate.codecs.graphpipe.reading import LONG, MANY
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.tensor import Buffer, Tensor
from infergate.core.wire import size

LARGEST: Final = 2**31 - 1
"""Bytes of a flatbuffer (its own limit)."""
_U32: Final = struct.Struct("<I")
_NULS: Final = (b"\0\0\0\0", b"\0\0\0", b"\0\0", b"\0")
"""What follows a string by its length modulo 4: its end, and the way to the next 4 bytes."""

# Each beginning: the offset of the outermost table, vtables (their size, their table's size, where
# each field stands in it), tables (the way back to the vtable, fields; offsets are filled in later)

_TENSOR_VTABLE: Final = 4
_TENSOR_VTABLES: Final = struct.pack("<6H", 12, 20, 4, 8, 12, 16)
_TENSOR: Final = struct.Struct("<iB3xIII")
"""Fields: type, shape, data, string_val."""

_REQUEST: Final = b"".join(
    (
        struct.pack("<I", 36),
        _TENSOR_VTABLES,
        struct.pack("<6H", 12, 20, 4, 8, 12, 16),  # at 16, of InferRequest
        struct.pack("<4H", 8, 12, 4, 8),  # at 28, of Request
        struct.pack("<iB3xI", 36 - 28, INFER, 4),  # at 36: the Request
        struct.pack("<iIIII", 48 - 16, 0, 0, 0, 0),  # at 48: the InferRequest
    )
)
_CONFIG, _INPUT_NAMES, _INPUT_TENSORS, _OUTPUT_NAMES = 52, 56, 60, 64

_RESPONSE: Final = b"".join(
    (
        struct.pack("<I", 24),
        _TENSOR_VTABLES,
        struct.pack("<4H", 8, 12, 4, 8),  # at 16, of InferResponse
        struct.pack("<iII", 24 - 16, 0, 0),  # at 24: the InferResponse
    )
)
_OUTPUT_TENSORS, _ERRORS = 28, 32


def write_request(
    config: bytes, tensors: Sequence[Tensor], output_names: Sequence[str]
) -> list[Buffer]:
    """A Request for an inference. Raises UNSUPPORTED for datatypes GraphPipe lacks, TOO_LARGE."""
    layout = _Layout(_REQUEST)
    layout.string(_CONFIG, config)
    layout.texts(_INPUT_NAMES, [tensor.name for tensor in tensors])
    layout.texts(_OUTPUT_NAMES, output_names)
    layout.tensors(_INPUT_TENSORS, tensors)
    return layout.parts()


def write_response(tensors: Sequence[Tensor]) -> list[Buffer]:
    """An InferResponse. Raises UNSUPPORTED for datatypes GraphPipe lacks, TOO_LARGE."""
    layout = _Layout(_RESPONSE)
    layout.empty(_ERRORS)
    layout.tensors(_OUTPUT_TENSORS, tensors)
    return layout.parts()


class _Layout:
    """A message that begins with ``beginning``. ``field`` is where an offset stands."""

    def __init__(self, beginning: bytes) -> None:
        self._head = bytearray(beginning)
        self._empty: Final[list[int]] = []
        self._data: Final[list[tuple[int, int, Sequence[Buffer]]]] = []

    def _point(self, field: int) -> None:
        """The offset at ``field`` leads to what is written next."""
        _U32.pack_into(self._head, field, len(self._head) - field)

    def _vector(self, field: int, length: int) -> range:
        """A vector of ``length`` offsets, and where they stand."""
        self._point(field)
        self._head += _U32.pack(length)
        begin = len(self._head)
        self._head += bytes(4 * length)
        return range(begin, len(self._head), 4)

    def empty(self, field: int) -> None:
        """An empty vector."""
        self._empty.append(field)

    def string(self, field: int, data: bytes) -> None:
        """A string."""
        self._point(field)
        self._head += _U32.pack(len(data)) + data + _NULS[len(data) & 3]

    def texts(self, field: int, texts: Sequence[str]) -> None:
        """A vector of strings."""
        for place, text in zip(self._vector(field, len(texts)), texts, strict=True):
            self.string(place, text.encode("utf-8", "replace"))

    def tensors(self, field: int, tensors: Sequence[Tensor]) -> None:
        """A vector of tensors. One that is there twice is written once."""
        written: dict[int, int] = {}
        for place, tensor in zip(self._vector(field, len(tensors)), tensors, strict=True):
            table = written.get(id(tensor))
            if table is None:
                written[id(tensor)] = table = len(self._head)
                self._tensor(tensor)
            _U32.pack_into(self._head, place, table - place)

    def _tensor(self, tensor: Tensor) -> None:
        table = len(self._head)
        number = number_of(tensor.name, tensor.datatype)
        self._head += _TENSOR.pack(table - _TENSOR_VTABLE, number, 0, 0, 0)
        shape, data, string_val = table + 8, table + 12, table + 16
        self._shape(shape, tensor.shape)
        if tensor.datatype is Datatype.BYTES:
            self._data.append((string_val, math.prod(tensor.shape), _strings(tensor)))
            self.empty(data)
        else:
            self._data.append((data, len(tensor.data), (tensor.data,)))
            self.empty(string_val)

    def _shape(self, field: int, shape: Sequence[int]) -> None:
        if len(self._head) % 8 == 0:  # elements of 8 bytes follow a length of 4
            self._head += bytes(4)
        self._point(field)
        self._head += struct.pack(f"<I{len(shape)}q", len(shape), *shape)

    def parts(self) -> list[Buffer]:
        """The whole message."""
        for field in self._empty:
            self._point(field)
        self._head += bytes(4)
        parts: list[Buffer] = [self._head]
        end = len(self._head)
        for field, length, data in self._data:
            gap = (4 - end) % 8  # data of 8 bytes' alignment follows a length of 4
            _U32.pack_into(self._head, field, end + gap - field)
            parts.append(bytes(gap) + _U32.pack(length))
            parts += data
            end += gap + 4 + size(data)
            if end > LARGEST:
                raise GatewayError(
                    Kind.TOO_LARGE, f"a GraphPipe message has at most {LARGEST} bytes"
                )
        return parts


def _strings(tensor: Tensor) -> tuple[Buffer, Buffer]:
    """The elements of a vector of strings, and the strings. The canonical layout has each as a
    flatbuffer has it, but for its end."""
    count = math.prod(tensor.shape)
    if count >= MANY and len(tensor.data) < LONG * count:
        return _many_strings(tensor.data, count)
    data = memoryview(tensor.data)
    offsets = bytearray(4 * count)
    strings = bytearray()
    begin = 0
    for place in range(0, len(offsets), 4):
        _U32.pack_into(offsets, place, len(offsets) - place + len(strings))
        stop = begin + 4 + _U32.unpack_from(data, begin)[0]
        strings += data[begin:stop]
        strings += _NULS[(stop - begin) & 3]
        begin = stop
    return offsets, strings


def _many_strings(data: Buffer, count: int) -> tuple[Buffer, Buffer]:
    """The same for many that are short: only finding unlike lengths takes a loop."""
    sizes = 4 + _lengths(data, count)
    ends = np.cumsum(sizes + 4 - (sizes & 3))
    strings = np.zeros(ends[-1], np.uint8)
    is_theirs = np.ones(len(strings), np.bool_)
    for missing in range(4):
        nuls = ends[(sizes & 3) <= missing] - 4 + missing
        is_theirs[nuls] = False
    strings[is_theirs] = np.frombuffer(data, np.uint8)
    begins = np.append(0, ends[:-1])
    offsets = (np.arange(4 * count, 0, -4) + begins).astype("<u4")
    return offsets.tobytes(), strings.data


def _lengths(data: Buffer, count: int) -> npt.NDArray[np.int64]:
    each, rest = divmod(len(data), count)
    if not rest:
        as_one = np.full(count, each - 4, "<u4").view(np.uint8).reshape(count, 4)
        if np.array_equal(np.frombuffer(data, np.uint8).reshape(count, each)[:, :4], as_one):
            return np.full(count, each - 4, np.int64)
    found: list[int] = []
    begin, unpack, add = 0, _U32.unpack_from, found.append
    for _ in range(count):
        (length,) = unpack(data, begin)
        add(length)
        begin += 4 + length
    return np.array(found, np.int64)
