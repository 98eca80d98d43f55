"""Writes inferences as flatbuffers without copying the data of their tensors.

The Builder of the flatbuffers library copies all data and is slow for small objects. This module
writes a message from front to back: a constant head (the vtables and the outermost tables), the
objects that the head refers to, and the data of each tensor as a separate part of the body.

The writer omits no vector, because clients fail if a vector is absent. Unused data, string and
error vectors share one empty vector. Tensor data is aligned to 8 bytes, and other objects are
aligned as C++ verifiers require.

``write_table`` and ``write_offsets`` are for other messages, which are written with the Builder.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from infergate.codecs.graphpipe.datatypes import type_number
from infergate.codecs.graphpipe.fields import INFER
from infergate.codecs.graphpipe.flatbuffer_reader import (
    LONG_STRING_BYTES,
    MIN_BATCH_STRINGS,
    TableField,
)
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.tensor import Buffer, Tensor
from infergate.core.wire import total_size

MAX_MESSAGE_BYTES: Final = 2**31 - 1
"""Maximum size of a flatbuffer in bytes, according to the specification."""
_U32: Final = struct.Struct("<I")
_STRING_PADDING: Final = (b"\0\0\0\0", b"\0\0\0", b"\0\0", b"\0")
"""The NUL and the padding to 4 bytes after a string, indexed by the string's length modulo 4."""

# A head consists of the offset of the outermost table, vtables (size of the vtable, size of the
# table, position of each field) and tables (distance to the vtable, fields). The writer sets the
# offsets in the fields later.

_TENSOR_VTABLE: Final = 4
_TENSOR_VTABLES: Final = struct.pack("<6H", 12, 20, 4, 8, 12, 16)
_TENSOR_TABLE: Final = struct.Struct("<iB3xIII")
"""The fields are type, shape, data and string_val."""

_REQUEST_HEAD: Final = b"".join(
    (
        struct.pack("<I", 36),
        _TENSOR_VTABLES,
        struct.pack("<6H", 12, 20, 4, 8, 12, 16),  # at 16: vtable of InferRequest
        struct.pack("<4H", 8, 12, 4, 8),  # at 28: vtable of Request
        struct.pack("<iB3xI", 36 - 28, INFER, 4),  # at 36: the Request
        struct.pack("<iIIII", 48 - 16, 0, 0, 0, 0),  # at 48: the InferRequest
    )
)
_CONFIG_FIELD, _INPUT_NAMES_FIELD, _INPUT_TENSORS_FIELD, _OUTPUT_NAMES_FIELD = 52, 56, 60, 64

_RESPONSE_HEAD: Final = b"".join(
    (
        struct.pack("<I", 24),
        _TENSOR_VTABLES,
        struct.pack("<4H", 8, 12, 4, 8),  # at 16: vtable of InferResponse
        struct.pack("<iII", 24 - 16, 0, 0),  # at 24: the InferResponse
    )
)
_OUTPUT_TENSORS_FIELD, _ERRORS_FIELD = 28, 32


def write_request(
    config: bytes, tensors: Sequence[Tensor], output_names: Sequence[str]
) -> list[Buffer]:
    """Write the Request table of an inference. Raises UNSUPPORTED and TOO_LARGE."""
    writer = _MessageWriter(_REQUEST_HEAD)
    writer.write_string(_CONFIG_FIELD, config)
    writer.write_strings(_INPUT_NAMES_FIELD, [tensor.name for tensor in tensors])
    writer.write_strings(_OUTPUT_NAMES_FIELD, output_names)
    writer.write_tensors(_INPUT_TENSORS_FIELD, tensors)
    return writer.finish()


def write_response(tensors: Sequence[Tensor]) -> list[Buffer]:
    """Write an InferResponse. Raises UNSUPPORTED and TOO_LARGE."""
    writer = _MessageWriter(_RESPONSE_HEAD)
    writer.write_empty_vector(_ERRORS_FIELD)
    writer.write_tensors(_OUTPUT_TENSORS_FIELD, tensors)
    return writer.finish()


class _MessageWriter:
    """Writes a message that begins with ``head``. ``field`` arguments are positions of offsets."""

    def __init__(self, head: bytes) -> None:
        self._head = bytearray(head)
        self._empty_fields: Final[list[int]] = []
        self._tensor_data: Final[list[tuple[int, int, Sequence[Buffer]]]] = []

    def _write_offset(self, field: int) -> None:
        """Point the offset at ``field`` to the next object."""
        _U32.pack_into(self._head, field, len(self._head) - field)

    def _write_vector(self, field: int, length: int) -> range:
        """Write a vector of ``length`` offsets and return their positions."""
        self._write_offset(field)
        self._head += _U32.pack(length)
        start = len(self._head)
        self._head += bytes(4 * length)
        return range(start, len(self._head), 4)

    def write_empty_vector(self, field: int) -> None:
        """Point the offset at ``field`` to the shared empty vector."""
        self._empty_fields.append(field)

    def write_string(self, field: int, data: bytes) -> None:
        """Write a string with its length and padding, and point the offset at ``field`` to the
        string."""
        self._write_offset(field)
        self._head += _U32.pack(len(data)) + data + _STRING_PADDING[len(data) & 3]

    def write_strings(self, field: int, texts: Sequence[str]) -> None:
        """Write a vector of strings."""
        for position, text in zip(self._write_vector(field, len(texts)), texts, strict=True):
            self.write_string(position, text.encode("utf-8", "replace"))

    def write_tensors(self, field: int, tensors: Sequence[Tensor]) -> None:
        """Write a vector of tensors. Repeated tensors share one table."""
        table_of: dict[int, int] = {}
        for position, tensor in zip(self._write_vector(field, len(tensors)), tensors, strict=True):
            table = table_of.get(id(tensor))
            if table is None:
                table_of[id(tensor)] = table = len(self._head)
                self._write_tensor(tensor)
            _U32.pack_into(self._head, position, table - position)

    def _write_tensor(self, tensor: Tensor) -> None:
        table_start = len(self._head)
        number = type_number(tensor.name, tensor.datatype)
        self._head += _TENSOR_TABLE.pack(table_start - _TENSOR_VTABLE, number, 0, 0, 0)
        shape_field, data_field, strings_field = table_start + 8, table_start + 12, table_start + 16
        self._write_shape(shape_field, tensor.shape)
        if tensor.datatype is Datatype.BYTES:
            self._tensor_data.append(
                (strings_field, math.prod(tensor.shape), _pack_strings(tensor))
            )
            self.write_empty_vector(data_field)
        else:
            self._tensor_data.append((data_field, len(tensor.data), (tensor.data,)))
            self.write_empty_vector(strings_field)

    def _write_shape(self, field: int, shape: Sequence[int]) -> None:
        if len(self._head) % 8 == 0:  # align the elements, after a 4-byte length, to 8 bytes
            self._head += bytes(4)
        self._write_offset(field)
        self._head += struct.pack(f"<I{len(shape)}q", len(shape), *shape)

    def finish(self) -> list[Buffer]:
        """Return the complete message."""
        for field in self._empty_fields:
            self._write_offset(field)
        self._head += bytes(4)
        parts: list[Buffer] = [self._head]
        end = len(self._head)
        for field, length, data in self._tensor_data:
            padding = (4 - end) % 8  # align the data, after a 4-byte length, to 8 bytes
            _U32.pack_into(self._head, field, end + padding - field)
            parts.append(bytes(padding) + _U32.pack(length))
            parts += data
            end += padding + 4 + total_size(data)
            if end > MAX_MESSAGE_BYTES:
                raise GatewayError(
                    Kind.TOO_LARGE, f"the GraphPipe message exceeds {MAX_MESSAGE_BYTES} bytes"
                )
        return parts


def _pack_strings(tensor: Tensor) -> tuple[Buffer, Buffer]:
    """Return the offsets of a vector of strings, and the strings."""
    count = math.prod(tensor.shape)
    if count >= MIN_BATCH_STRINGS and len(tensor.data) < LONG_STRING_BYTES * count:
        return _pack_many_strings(tensor.data, count)
    data = memoryview(tensor.data)
    offsets = bytearray(4 * count)
    strings = bytearray()
    start = 0
    for position in range(0, len(offsets), 4):
        _U32.pack_into(offsets, position, len(offsets) - position + len(strings))
        end = start + 4 + _U32.unpack_from(data, start)[0]
        strings += data[start:end]
        strings += _STRING_PADDING[(end - start) & 3]
        start = end
    return offsets, strings


def _pack_many_strings(data: Buffer, count: int) -> tuple[Buffer, Buffer]:
    """Do the same as ``_pack_strings`` with numpy, which is faster for many strings."""
    sizes = 4 + _string_lengths(data, count)
    ends = np.cumsum(sizes + 4 - (sizes & 3))
    strings = np.zeros(ends[-1], np.uint8)
    is_content = np.ones(len(strings), np.bool_)
    for remainder in range(4):
        nuls = ends[(sizes & 3) <= remainder] - 4 + remainder
        is_content[nuls] = False
    strings[is_content] = np.frombuffer(data, np.uint8)
    starts = np.append(0, ends[:-1])
    offsets = (np.arange(4 * count, 0, -4) + starts).astype("<u4")
    return offsets.tobytes(), strings.data


def _string_lengths(data: Buffer, count: int) -> npt.NDArray[np.int64]:
    size, remainder = divmod(len(data), count)
    if not remainder:
        expected = np.full(count, size - 4, "<u4").view(np.uint8).reshape(count, 4)
        if np.array_equal(np.frombuffer(data, np.uint8).reshape(count, size)[:, :4], expected):
            return np.full(count, size - 4, np.int64)
    lengths: list[int] = []
    position, unpack, append = 0, _U32.unpack_from, lengths.append
    for _ in range(count):
        (length,) = unpack(data, position)
        append(length)
        position += 4 + length
    return np.array(lengths, np.int64)


def write_table(builder: Any, offsets: Mapping[TableField, int]) -> int:
    """Write a table of offsets with a ``flatbuffers.Builder``, and return the table's offset."""
    builder.StartObject(len(offsets))
    for field, offset in offsets.items():
        builder.PrependUOffsetTRelativeSlot(field.slot, offset, 0)
    return int(builder.EndObject())


def write_offsets(builder: Any, offsets: Sequence[int]) -> int:
    """Write a vector of offsets with a ``flatbuffers.Builder``, and return the vector's offset."""
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())
