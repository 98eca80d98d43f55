"""Converts TensorProtos to canonical tensors.

The elements are in tensor_content or in the field of their type. If that field has too few values,
its last value is repeated until the shape is full. If the field has no values, all elements are 0
or empty. A message of 20 bytes may therefore announce 2^40 elements.

*Rule 1.* The announced size is compared with the limits before anything is allocated.
*Rule 2.* Values that TensorFlow would silently change are rejected: integers that do not fit their
datatype (TensorFlow wraps them), and a tensor whose values are all in the field of another type
(TensorFlow reads zeros).

This module does not use the protobuf runtime, which would copy the elements and allocate up to a
hundred times the size of a message. Clients and servers repeat the same datatypes and shapes, so
the parsed beginnings of TensorProtos are cached.
"""

from __future__ import annotations

import math
import struct
from itertools import repeat
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from infergate.codecs.protos import varints
from infergate.codecs.protos.wire_scanner import (
    DELIMITED,
    FIXED32,
    FIXED64,
    MAX_VARINT_BYTES,
    VARINT,
    FieldBudget,
    MalformedMessageError,
    WireField,
    budgeted_fields,
    read_field,
    read_varint,
)
from infergate.codecs.tfs.datatypes import (
    DATATYPES,
    DT_INVALID,
    FIELDS_BY_NUMBER,
    TYPES,
    ValueField,
    type_name,
)
from infergate.codecs.tfs.tensor_writer import dim_field
from infergate.core.bounded_cache import BoundedCache
from infergate.core.datatypes import NUMPY_DTYPES, Datatype
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import (
    MAX_ELEMENTS_ON_LOOP,
    MIB,
    Limits,
    NeedsOffloadError,
    check_loop_cost,
)
from infergate.core.tensor import (
    MAX_BYTES_ELEMENTS,
    Buffer,
    Tensor,
    add_bytes_elements,
    check_shape,
    check_size,
)

_DTYPE, _SHAPE, _CONTENT, _STRINGS = 1, 2, 4, 8
_DTYPE_TAG: Final = _DTYPE << 3 | VARINT
_SHAPE_TAG: Final = bytes((_SHAPE << 3 | DELIMITED,))
_STRING_TAG: Final = _STRINGS << 3 | DELIMITED
_SHORT_LENGTH: Final = 0x80
_WIRE_TYPES: Final = {0: VARINT, 4: FIXED32, 8: FIXED64}
"""The wire type of a value, by its size in bytes. Size 0 stands for a varint."""
VARINTS_ON_LOOP: Final = MIB
"""Maximum size in bytes of varints that are read on the event loop. Reading 1 MiB takes 12 ms."""
REPEATED_ON_LOOP: Final = 8 * MIB
"""Maximum size in bytes of repeated values that are written on the event loop. Writing 8 MiB takes
4 ms."""
_MAX_PARTS: Final = 4096
"""Maximum number of strings that are collected before they are joined."""
_LAST_SHIFT: Final = 28
"""The bit position of a length's last 7 bits."""
_MAX_CACHED_HEAD: Final = 64
_MAX_CACHED_HEADS: Final = 1024
_CHECKED_BY_LENGTH: Final = frozenset(Datatype) - {Datatype.BOOL, Datatype.BYTES}
"""The datatypes whose tensor_content needs only a length check."""
_LENGTH_PREFIX: Final = struct.Struct("<I")
_pack_length: Final = _LENGTH_PREFIX.pack


class _Parts(NamedTuple):
    """A TensorProto: ``values`` by field number, and ``strings`` in the canonical layout."""

    dtype: int
    dims: list[int]
    content: Buffer
    values: dict[int, Buffer]
    strings: Buffer
    string_count: int


class _Head(NamedTuple):
    """The beginning of a TensorProto: its dtype and shape. The elements take ``size`` bytes, and
    are used in place if they are in a field with one of ``tags``."""

    datatype: Datatype
    shape: tuple[int, ...]
    size: int
    tags: frozenset[int]


_heads: Final[BoundedCache[bytes, _Head]] = BoundedCache(_MAX_CACHED_HEADS)


class TensorProtoReader:
    """Reads the tensors of one message. The limits on bytes and on the number of values apply to
    the total of these tensors."""

    def __init__(self, limits: Limits, budget: FieldBudget) -> None:
        self._limits: Final = limits
        self._budget: Final = budget
        self._values_left = MAX_BYTES_ELEMENTS
        """The number of strings and unpacked values that may still be read. Each of them is a
        separate field."""
        self._bytes_elements = 0
        self._size = 0
        """The size of the elements that were not used in place, in bytes."""

    def read(self, name: str, proto: memoryview) -> Tensor:
        """Return the tensor ``name`` in ``proto``, a TensorProto. Raises MalformedMessageError,
        NeedsOffloadError, BAD_REQUEST and TOO_LARGE."""
        # The dtype takes two bytes, and the shape has a tag and a length of one byte each.
        head_end = 4 + proto[3] if len(proto) > 4 and proto[0] == _DTYPE_TAG else 0
        is_cacheable = head_end < min(_MAX_CACHED_HEAD, len(proto)) and proto[2:3] == _SHAPE_TAG
        if is_cacheable and (head := _heads.get(bytes(proto[:head_end]))) is not None:
            data = _elements(head, proto, head_end)
            if data is not None and len(head.shape) <= self._limits.rank:
                return Tensor(name, head.datatype, head.shape, data)
        tensor = self._read(name, proto)
        if is_cacheable and tensor.datatype in _CHECKED_BY_LENGTH:
            _cache_head(bytes(proto[:head_end]), tensor)
        return tensor

    def _read(self, name: str, proto: memoryview) -> Tensor:
        parts = self._scan(name, proto)
        datatype = DATATYPES.get(parts.dtype)
        if datatype is None:
            raise _unsupported(name, parts.dtype)
        shape = check_shape(name, parts.dims, self._limits)
        if datatype is Datatype.BYTES:
            data = self._read_strings(name, shape, parts)
        elif len(parts.content):
            data = _read_content(name, datatype, shape, parts.content)
        else:
            data = self._read_values(name, datatype, shape, parts)
        return Tensor(name, datatype, shape, data)

    # ---- fields

    def _scan(self, name: str, proto: memoryview) -> _Parts:
        dtype = DT_INVALID
        dims: list[int] = []
        content: Buffer = b""
        values: dict[int, Buffer] = {}
        strings, string_count, data = bytearray(), 0, b""
        position, end = 0, len(proto)
        while position < end:
            if proto[position] == _STRING_TAG:
                data = data or bytes(proto)  # slicing bytes is cheaper than slicing views
                self._count_single_read()
                count, position = self._scan_strings(name, data, position, strings)
                string_count += count
                continue
            field = read_field(proto, position)
            value = proto[field.value_start : field.end]
            position = field.end
            if field.number in FIELDS_BY_NUMBER:
                self._add_values(name, values, field, value)
                continue
            self._budget.spend()
            if field.number == _DTYPE and field.wire_type == VARINT:
                dtype = read_varint(value, 0, MAX_VARINT_BYTES)[0] & 0xFFFFFFFF
            elif field.number == _SHAPE and field.wire_type == DELIMITED:
                self._add_dims(name, dims, value)
            elif field.number == _CONTENT and field.wire_type == DELIMITED:
                content = value
        return _Parts(dtype, dims, content, values, strings, string_count)

    def _add_dims(self, name: str, dims: list[int], shape: memoryview) -> None:
        """Add the dimensions of a TensorShapeProto. Repeated messages are merged, as in
        protobuf."""
        for field in budgeted_fields(shape, self._budget):
            if field.number != 2 or field.wire_type != DELIMITED:
                continue
            if len(dims) == self._limits.rank:
                raise bad_request(
                    f"tensor '{name}': shape has over {self._limits.rank} dimensions (the limit)",
                    limit="rank",
                )
            size = 0
            dim = shape[field.value_start : field.end]
            for inner in budgeted_fields(dim, self._budget):
                if inner.number == 1 and inner.wire_type == VARINT:
                    size = read_varint(dim, inner.value_start, MAX_VARINT_BYTES)[0] % 2**64
            dims.append(size - 2**64 if size >= 2**63 else size)

    def _add_values(
        self, name: str, values: dict[int, Buffer], field: WireField, value: memoryview
    ) -> None:
        """Append a packed run or a single value to the values of its field."""
        if field.number == _STRINGS:
            raise MalformedMessageError("a string_val does not have the tag that protobuf writes")
        if field.wire_type == _WIRE_TYPES[FIELDS_BY_NUMBER[field.number].itemsize]:
            self._count_single_read()
            self._values_left -= 1
            if self._values_left < 0:
                raise _too_many_values(name)
        else:
            self._budget.spend()
            if field.wire_type != DELIMITED or not len(value):
                return
        earlier = values.get(field.number)
        if earlier is None:
            values[field.number] = value
        elif isinstance(earlier, bytearray):
            earlier += value
        else:
            values[field.number] = bytearray(earlier) + value

    def _count_single_read(self) -> None:
        """On the event loop, charge an unpacked value, or the first string of a run, to the field
        budget. Reading it takes over 1 µs, as for any nested field. Reading each further string of
        a run takes a fifth of that time."""
        if self._limits.is_on_event_loop:
            self._budget.spend()

    def _scan_strings(
        self, name: str, data: bytes, position: int, strings: bytearray
    ) -> tuple[int, int]:
        """Add a run of string_val fields to ``strings``. Return the number of strings and the end
        of the run."""
        parts: list[bytes] = []
        end, count, max_count = len(data), 0, self._values_left
        if self._limits.is_on_event_loop:
            max_count -= MAX_BYTES_ELEMENTS - MAX_ELEMENTS_ON_LOOP
        while position < end and data[position] == _STRING_TAG:
            if count >= max_count:
                if self._limits.is_on_event_loop:
                    raise NeedsOffloadError
                raise _too_many_values(name)
            start = position + 2
            if start <= end and (length := data[position + 1]) < _SHORT_LENGTH:
                position = start + length
                if position > end:
                    raise MalformedMessageError("a string_val runs past the end of its tensor")
            else:
                _, _, _, start, position = read_field(data, position)
            parts.append(_pack_length(position - start) + data[start:position])
            count += 1
            if len(parts) >= _MAX_PARTS:
                strings += b"".join(parts)
                parts.clear()
        strings += b"".join(parts)
        self._values_left -= count
        return count, position

    # ---- elements

    def _add_size(self, name: str, shape: tuple[int, ...], datatype: Datatype, size: int) -> None:
        """Count the bytes of elements that are not used in place (Rule 1)."""
        self._size += size
        if self._size > self._limits.body:
            raise GatewayError(
                Kind.TOO_LARGE,
                f"tensor '{name}': with shape {list(shape)} of {datatype.value}, the tensors of "
                f"the message have {self._size} bytes; the limit is {self._limits.body}",
                limit="body",
            )

    def _read_values(
        self, name: str, datatype: Datatype, shape: tuple[int, ...], parts: _Parts
    ) -> Buffer:
        """Return the elements in the field of ``datatype``. The last element is repeated as
        needed."""
        field = TYPES[datatype].field
        expected = math.prod(shape)
        size = expected * datatype.itemsize
        run = parts.values.get(field.number, b"")
        if not len(run):
            if parts.values or parts.string_count:
                raise _wrong_field(name, datatype, field, parts)
            self._add_size(name, shape, datatype, size)
            check_loop_cost(self._limits, size, REPEATED_ON_LOOP)
            return bytes(size)
        if field.itemsize:
            if len(run) % field.itemsize:
                raise MalformedMessageError(f"the last element of {field.name} is cut short")
            if len(run) >= size:
                return memoryview(run)[:size]
            self._add_size(name, shape, datatype, size)
            values: npt.NDArray[Any] = np.frombuffer(run, dtype=NUMPY_DTYPES[datatype])
        else:
            self._add_size(name, shape, datatype, size)
            check_loop_cost(self._limits, len(run), VARINTS_ON_LOOP)
            values = _read_integers(name, datatype, field, run)
        check_loop_cost(self._limits, size, REPEATED_ON_LOOP)
        return _fill(values, expected)

    def _read_strings(self, name: str, shape: tuple[int, ...], parts: _Parts) -> Buffer:
        self._bytes_elements = add_bytes_elements(name, shape, self._bytes_elements, self._limits)
        expected = math.prod(shape)
        if len(parts.content):
            return _read_string_content(name, shape, bytes(parts.content)) if expected else b""
        strings, count = parts.strings, parts.string_count
        if not count and parts.values:
            raise _wrong_field(name, Datatype.BYTES, TYPES[Datatype.BYTES].field, parts)
        if count >= expected:
            return strings if count == expected else strings[: _last_start(strings, expected + 1)]
        last = bytes(strings[_last_start(strings, count) :]) if count else bytes(4)
        missing = expected - count
        size = len(strings) + missing * len(last)
        self._add_size(name, shape, Datatype.BYTES, size)
        check_loop_cost(self._limits, size, REPEATED_ON_LOOP)
        return b"".join((strings, *repeat(last, missing)))


def _elements(head: _Head, proto: memoryview, head_end: int) -> memoryview | None:
    """Return the elements of ``proto`` if the head is followed by a single field of ``head.size``
    bytes. Return None for any other TensorProto."""
    if proto[head_end] not in head.tags:
        return None
    length = shift = 0
    position, end = head_end + 1, len(proto)
    while position < end:
        byte = proto[position]
        length |= (byte & 0x7F) << shift
        position += 1
        if byte < _SHORT_LENGTH:
            is_exact = length == head.size == end - position
            return proto[position:] if is_exact else None
        shift += 7
        if shift > _LAST_SHIFT:
            return None
    return None


def _cache_head(head: bytes, tensor: Tensor) -> None:
    """Cache ``head``, the beginning of the TensorProto from which ``tensor`` was read, unless later
    fields changed its meaning."""
    field = TYPES[tensor.datatype].field
    dims = b"".join([dim_field(size) for size in tensor.shape])
    if head != bytes((_DTYPE_TAG, TYPES[tensor.datatype].number, *_SHAPE_TAG, len(dims))) + dims:
        return
    tags = {_CONTENT << 3 | DELIMITED}
    if field.itemsize:
        tags.add(field.number << 3 | DELIMITED)
    size = math.prod(tensor.shape) * tensor.datatype.itemsize
    if size:
        _heads[head] = _Head(tensor.datatype, tensor.shape, size, frozenset(tags))


def _fill(values: npt.NDArray[Any], expected: int) -> Buffer:
    """Return ``expected`` values as bytes. Surplus values are dropped, and the last value is
    repeated if values are missing."""
    if len(values) < expected:
        filled = np.empty(expected, dtype=values.dtype)
        filled[: len(values)] = values
        filled[len(values) :] = values[-1]
        values = filled
    if not expected:
        return b""
    return np.ascontiguousarray(values[:expected]).data.cast("B")


def _read_content(name: str, datatype: Datatype, shape: tuple[int, ...], content: Buffer) -> Buffer:
    if not math.prod(shape):
        return b""  # TensorFlow ignores the content of such a tensor
    check_size(name, datatype, shape, len(content))
    if datatype is Datatype.BOOL and np.frombuffer(content, dtype="u1").max(initial=0) > 1:
        raise bad_request(f"tensor '{name}': an element of BOOL is neither 0 nor 1")
    return content


def _read_integers(
    name: str, datatype: Datatype, field: ValueField, run: Buffer
) -> npt.NDArray[Any]:
    """Return the varints in ``run``, truncated to the size of ``field`` as protobuf does. Raises
    BAD_REQUEST for a value that does not fit ``datatype``."""
    wide: npt.NDArray[Any] = varints.read(run, varints.count(run), "<u8").astype("<u8", copy=False)
    if datatype is Datatype.BOOL:
        bools: npt.NDArray[Any] = (wide != 0).astype("u1")
        return bools
    if datatype.itemsize == 8:
        return wide
    bits = wide.astype("<u4")
    if datatype.itemsize == 4:
        return bits
    values = bits.view("<i4")
    narrow = values.astype("<u2" if field.name == "half_val" else NUMPY_DTYPES[datatype])
    outside = np.flatnonzero(narrow != values)
    if outside.size:
        raise bad_request(
            f"tensor '{name}': value {outside[0]} of {field.name} ({values[outside[0]]}) is out "
            f"of range for {datatype.value}"
        )
    return narrow


def _read_string_content(name: str, shape: tuple[int, ...], content: bytes) -> Buffer:
    """Return the strings in tensor_content: all lengths as varints, followed by all strings."""
    expected = math.prod(shape)
    position = 0
    lengths: list[int] = []
    try:
        for _ in range(expected):
            length, position = read_varint(content, position, MAX_VARINT_BYTES)
            lengths.append(length)
    except MalformedMessageError:
        raise bad_request(
            f"tensor '{name}': tensor_content ends before the lengths of {expected} strings"
        ) from None
    if position + sum(lengths) != len(content):
        raise bad_request(
            f"tensor '{name}': the strings of shape {list(shape)} take {sum(lengths)} bytes, "
            f"but tensor_content has {len(content) - position} left for them"
        )
    elements = bytearray()
    for length in lengths:
        elements += _pack_length(length)
        elements += content[position : position + length]
        position += length
    return elements


def _last_start(strings: Buffer, count: int) -> int:
    """Return the position of the last of ``count`` strings in the canonical layout."""
    position = 0
    for _ in range(count - 1):
        position += 4 + int(_LENGTH_PREFIX.unpack_from(strings, position)[0])
    return position


def _unsupported(name: str, dtype: int) -> GatewayError:
    if dtype == DT_INVALID:
        return bad_request(f"tensor '{name}': it has no dtype")
    return bad_request(f"tensor '{name}': datatype {type_name(dtype)} is not supported")


def _too_many_values(name: str) -> GatewayError:
    return GatewayError(
        Kind.TOO_LARGE,
        f"tensor '{name}': the message has over {MAX_BYTES_ELEMENTS} strings and unpacked values "
        "(the limit)",
    )


def _wrong_field(name: str, datatype: Datatype, field: ValueField, parts: _Parts) -> GatewayError:
    number = next(iter(parts.values), _STRINGS)
    return bad_request(
        f"tensor '{name}': {FIELDS_BY_NUMBER[number].name} is set; {datatype.value} elements "
        f"belong in {field.name}"
    )
