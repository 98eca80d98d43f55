"""Converts between typed tensor contents and the canonical layout.

A packed float or double field holds exactly the canonical bytes and is used in place. Integers and
bools are varints, which numpy converts. The protobuf runtime does not parse typed contents, because
its lists would take fifteen times the size on the wire before the shape could be checked. Values
outside the datatype's range are rejected, although Triton wraps them (300 as INT8 becomes 44)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from infergate.codecs.protos import varints
from infergate.codecs.protos.wire_scanner import (
    DELIMITED,
    FIXED32,
    FIXED64,
    MAX_LENGTH_BYTES,
    VARINT,
    FieldBudget,
    MalformedMessageError,
    WireField,
    budgeted_fields,
    field_prefix,
    read_varint,
    scan_fields,
)
from infergate.codecs.v2_grpc.messages import InferTensorContents
from infergate.core.datatypes import NUMPY_DTYPES, Datatype
from infergate.core.errors import bad_request
from infergate.core.records import record
from infergate.core.tensor import Buffer, unpack_bytes
from infergate.core.wire import join_parts


class _ContentsField(NamedTuple):
    """The field that holds the elements of a datatype, its number, the elements' wire type and, for
    varints, the dtype of the decoded values."""

    field: str
    number: int
    element: int
    dtype: str = ""


TYPED_FIELDS: Final[dict[Datatype, _ContentsField]] = {
    Datatype.BOOL: _ContentsField("bool_contents", 1, VARINT, "<u8"),
    Datatype.INT8: _ContentsField("int_contents", 2, VARINT, "<i4"),
    Datatype.INT16: _ContentsField("int_contents", 2, VARINT, "<i4"),
    Datatype.INT32: _ContentsField("int_contents", 2, VARINT, "<i4"),
    Datatype.INT64: _ContentsField("int64_contents", 3, VARINT, "<i8"),
    Datatype.UINT8: _ContentsField("uint_contents", 4, VARINT, "<u4"),
    Datatype.UINT16: _ContentsField("uint_contents", 4, VARINT, "<u4"),
    Datatype.UINT32: _ContentsField("uint_contents", 4, VARINT, "<u4"),
    Datatype.UINT64: _ContentsField("uint64_contents", 5, VARINT, "<u8"),
    Datatype.FP32: _ContentsField("fp32_contents", 6, FIXED32),
    Datatype.FP64: _ContentsField("fp64_contents", 7, FIXED64),
    Datatype.BYTES: _ContentsField("bytes_contents", 8, DELIMITED),
}
"""The field of each datatype. FP16 and BF16 have no field, because they "must be represented as raw
content" (V2 protocol)."""
_BY_NUMBER: Final = {spec.number: spec for spec in TYPED_FIELDS.values()}
_BYTES_TAG: Final = TYPED_FIELDS[Datatype.BYTES].number << 3 | DELIMITED
_pack: Final = struct.Struct("<I").pack
_MAX_PARTS: Final = 4096
_SHORT_LENGTH: Final = 0x80
"""Lengths below this limit take one byte."""


@record
class TypedContents:
    """The typed contents of one tensor. Each of the `pieces` is an InferTensorContents. There are
    several pieces if the field `contents` is repeated, and no pieces if it is absent."""

    pieces: Sequence[memoryview]
    budget: FieldBudget
    """The field budget of the message that contains the pieces."""

    def has_elements(self) -> bool:
        """Return whether there are any elements. Raises MalformedMessageError."""
        return any(_is_set(field) for _, field in self.fields())

    def fields(self) -> Iterator[tuple[memoryview, WireField]]:
        """Yield each field and the piece that contains it."""
        for piece in self.pieces:
            for field in budgeted_fields(piece, self.budget):
                yield piece, field


def _is_set(field: WireField) -> bool:
    """Return whether `field` has elements. A field with an unexpected wire type has no elements, as
    in protobuf."""
    spec = _BY_NUMBER.get(field.number)
    if spec is None or field.wire_type not in (DELIMITED, spec.element):
        return False
    return field.end > field.value_start or spec.element == DELIMITED


def read_contents(name: str, datatype: Datatype, expected: int, typed: TypedContents) -> Buffer:
    """Return the elements of `typed` in the canonical layout. For BYTES, return at most `expected`
    + 1 elements, so that the caller detects excess elements. Raises MalformedMessageError and
    BAD_REQUEST."""
    spec = TYPED_FIELDS.get(datatype)
    if spec is None:
        raise bad_request(
            f"tensor '{name}': {datatype.value} has no typed contents and must be sent as raw data"
        )
    if spec.element == DELIMITED:
        return _read_bytes(name, spec, expected, typed)
    runs: list[Buffer] = []
    for piece, field in typed.fields():
        if _is_set(field):
            _check_number(name, datatype, field.number)
            runs.append(piece[field.value_start : field.end])
    if spec.element == VARINT:
        return _read_integers(name, datatype, expected, runs)
    if any(len(run) % datatype.itemsize for run in runs):
        raise MalformedMessageError(
            f"tensor '{name}': the last element of {spec.field} is cut short"
        )
    return join_parts(runs)


def _check_number(name: str, datatype: Datatype, number: int) -> None:
    if number != TYPED_FIELDS[datatype].number:
        raise bad_request(
            f"tensor '{name}': {_BY_NUMBER[number].field} is set; {datatype.value} elements "
            f"belong in {TYPED_FIELDS[datatype].field}"
        )


def _read_integers(
    name: str, datatype: Datatype, expected: int, runs: Sequence[Buffer]
) -> memoryview:
    spec = TYPED_FIELDS[datatype]
    count = sum(map(varints.count, runs))
    if count != expected:
        raise bad_request(
            f"tensor '{name}': the shape requires {expected} elements, "
            f"but {spec.field} holds {count}"
        )
    values = varints.read(join_parts(runs), count, spec.dtype)
    if datatype is Datatype.BOOL:
        values = values != 0
    narrow = values.astype(NUMPY_DTYPES[datatype], copy=False)
    if datatype.itemsize < values.itemsize:
        outside = np.flatnonzero(narrow != values)
        if outside.size:
            raise bad_request(
                f"tensor '{name}': element {outside[0]} ({values[outside[0]]}) is out of range for "
                f"{datatype.value}"
            )
    return narrow.data.cast("B") if count else memoryview(b"")


def _read_bytes(name: str, spec: _ContentsField, expected: int, typed: TypedContents) -> bytearray:
    """Return BYTES elements in the canonical layout, without counting them in the field budget."""
    elements = bytearray()
    parts: list[bytes] = []
    remaining = expected + 1
    for piece in typed.pieces:
        data = bytes(piece)  # slices of bytes are cheaper than slices of views
        position, end = 0, len(data)
        while position < end and len(parts) < remaining:
            if len(parts) >= _MAX_PARTS:
                elements += b"".join(parts)
                remaining -= len(parts)
                parts.clear()
            if data[position] != _BYTES_TAG:
                typed.budget.spend()
                other = next(scan_fields(piece[position:], 1))
                start, position = position + other.value_start, position + other.end
                if not _is_set(other):
                    continue
                _check_number(name, Datatype.BYTES, other.number)
            else:
                start = position + 2
                if start <= end and (length := data[position + 1]) < _SHORT_LENGTH:
                    position = start + length
                else:
                    length, start = read_varint(data, position + 1, MAX_LENGTH_BYTES)
                    position = start + length
                if position > end:
                    raise MalformedMessageError(
                        f"tensor '{name}': an element of {spec.field} is cut short"
                    )
            parts.append(_pack(position - start) + data[start:position])
    elements += b"".join(parts)
    return elements


def write_contents(datatype: Datatype, data: Buffer) -> Any:
    """Return canonical `data` as an InferTensorContents. `datatype` must be in TYPED_FIELDS."""
    spec = TYPED_FIELDS[datatype]
    if datatype is Datatype.BYTES:
        return InferTensorContents(bytes_contents=unpack_bytes(data))
    if spec.dtype:
        values = np.frombuffer(data, dtype=NUMPY_DTYPES[datatype]).tolist()
        return InferTensorContents(**{spec.field: values})
    return InferTensorContents.FromString(field_prefix(spec.number, len(data)) + data)
