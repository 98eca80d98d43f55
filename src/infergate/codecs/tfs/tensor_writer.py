"""Converts canonical tensors to TensorProtos.

The elements are written to tensor_content (raw) or, as TensorFlow Serving does by default, to the
field of their type (typed). Strings are always typed, because TensorFlow's Python library does not
read them in tensor_content. Clients that use TensorFlow or numpy read both forms, but clients in
other languages often read only the typed fields. FP32, FP64 and BOOL elements have the same bytes
in both forms. Typed integers and 16-bit floats are converted one by one, which is slow."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Final

import numpy as np

from infergate.codecs.protos.wire_scanner import VARINT, field_prefix, varint_field
from infergate.codecs.tfs.datatypes import TYPES
from infergate.codecs.tfs.messages import TensorProto
from infergate.core.datatypes import NUMPY_DTYPES, Datatype
from infergate.core.tensor import Buffer, Tensor

_SHAPE, _DIM, _CONTENT, _STRINGS = 2, 2, 4, 8
_DTYPE_TAG: Final = 1 << 3 | VARINT
_SIZE: Final = 1
_UNCHANGED: Final = frozenset({Datatype.FP32, Datatype.FP64, Datatype.BOOL})
"""The datatypes whose packed values are the bytes of tensor_content."""
MAX_TYPED_ELEMENTS: Final = 1 << 16
"""Maximum number of elements of a tensor of integers or 16-bit floats that ``auto`` writes typed.
Writing an element takes 0.1 µs."""
_COST_OF_STRING: Final = 8
_COST_OF_INTEGER: Final = 4
"""The cost of writing a string and an integer, as the number of bytes of JSON that take the same
time."""
_VARINT_BYTES: Final = 10
_STRING_BYTES: Final = 6
_MAX_COPIED: Final = 1024
"""Maximum size in bytes of a string that is copied. Copying a short string is faster than sending
it as a separate part."""
_LENGTH_BYTES: Final = 4
_SHORT_PREFIXES: Final = tuple(field_prefix(_STRINGS, length) for length in range(128))
"""The tag and the length that precede a short string_val, by the length."""
_unpack_length: Final = struct.Struct("<I").unpack_from


def tensor_parts(tensor: Tensor, contents: str) -> list[Buffer]:
    """Return ``tensor`` as a TensorProto. ``contents`` is auto, raw or typed. Numbers in
    tensor_content and packed floats are not copied."""
    datatype = tensor.datatype
    entry = TYPES[datatype]
    dims = b"".join(map(dim_field, tensor.shape))
    head = bytes((_DTYPE_TAG, entry.number)) + field_prefix(_SHAPE, len(dims)) + dims
    if not len(tensor.data):
        return [head]
    if datatype is Datatype.BYTES:
        return _string_parts(head, tensor.data)
    if contents == "auto":
        is_typed = datatype in _UNCHANGED or math.prod(tensor.shape) <= MAX_TYPED_ELEMENTS
    else:
        is_typed = contents == "typed"
    data = tensor.data
    if datatype is Datatype.BOOL:
        data = _normalized_bools(data)
    if not is_typed:
        return [head + field_prefix(_CONTENT, len(data)), data]
    if datatype in _UNCHANGED:
        return [head + field_prefix(entry.field.number, len(data)), data]
    values = np.frombuffer(data, dtype=NUMPY_DTYPES[datatype])
    if datatype is Datatype.FP16:
        values = values.view("<u2")
    return [head, TensorProto(**{entry.field.name: values.tolist()}).SerializeToString()]


def _normalized_bools(data: Buffer) -> Buffer:
    """Return ``data`` with each non-zero byte replaced by 1, because TensorFlow rejects other
    values."""
    octets = np.frombuffer(data, dtype="u1")
    return data if octets.max() <= 1 else (octets != 0).tobytes()


def dim_field(size: int) -> bytes:
    """Return a dimension of a TensorShapeProto, as protobuf writes it."""
    value = varint_field(_SIZE, size) if size else b""
    return field_prefix(_DIM, len(value)) + value


def _string_parts(head: bytes, data: Buffer) -> list[Buffer]:
    """Return ``head`` and a string_val for each string. Long strings are not copied."""
    view, position, end = memoryview(data), 0, len(data)
    parts: list[Buffer] = []
    short = [head]
    while position < end:
        (length,) = _unpack_length(view, position)
        start = position + _LENGTH_BYTES
        position = start + length
        if length < len(_SHORT_PREFIXES):
            short.append(_SHORT_PREFIXES[length] + view[start:position])
            continue
        short.append(field_prefix(_STRINGS, length))
        if length <= _MAX_COPIED:
            short.append(bytes(view[start:position]))
        else:
            parts += (b"".join(short), view[start:position])
            short = []
    if short:
        parts.append(b"".join(short))
    return parts


def writing_cost(tensors: Sequence[Tensor], contents: str) -> int:
    """Return the cost of writing ``tensors``, as the number of bytes of JSON that take the same
    time."""
    return _total(tensors, contents, _COST_OF_STRING, _COST_OF_INTEGER)


def written_bytes(tensors: Sequence[Tensor], contents: str) -> int:
    """Return the maximum number of bytes that are allocated to write ``tensors``."""
    text_bytes = sum(len(tensor.data) for tensor in tensors if tensor.datatype is Datatype.BYTES)
    return text_bytes + _total(tensors, contents, _STRING_BYTES, _VARINT_BYTES)


def _total(tensors: Sequence[Tensor], contents: str, per_string: int, per_integer: int) -> int:
    total = 0
    for tensor in tensors:
        count = math.prod(tensor.shape)
        if tensor.datatype is Datatype.BYTES:
            total += per_string * count
        elif tensor.datatype not in _UNCHANGED and (
            contents == "typed" or (contents == "auto" and count <= MAX_TYPED_ELEMENTS)
        ):
            total += per_integer * count
    return total
