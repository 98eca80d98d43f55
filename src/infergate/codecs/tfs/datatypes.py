"""TensorFlow's datatypes, the equivalent canonical datatypes, and the fields that hold their
values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from infergate.codecs.tfs.messages import DTYPES
from infergate.core.datatypes import Datatype

DT_INVALID: Final = 0
_REFERENCE: Final = 100
"""The difference between the number of a reference type and the number of its value type."""


@dataclass(frozen=True, slots=True)
class ValueField:
    """A field of TensorProto that holds values. ``itemsize`` is the size of a value in bytes, or 0
    for varints and strings."""

    name: str
    number: int
    itemsize: int = 0


@dataclass(frozen=True, slots=True)
class TensorFlowType:
    """A datatype of TensorFlow: its number in the enum DataType, and the field that holds its
    values."""

    number: int
    field: ValueField


_INT: Final = ValueField("int_val", 7)
_HALF: Final = ValueField("half_val", 13)


def _type(name: str, field: ValueField) -> TensorFlowType:
    return TensorFlowType(DTYPES[name], field)


TYPES: Final[dict[Datatype, TensorFlowType]] = {
    Datatype.FP32: _type("DT_FLOAT", ValueField("float_val", 5, 4)),
    Datatype.FP64: _type("DT_DOUBLE", ValueField("double_val", 6, 8)),
    Datatype.INT32: _type("DT_INT32", _INT),
    Datatype.UINT8: _type("DT_UINT8", _INT),
    Datatype.INT16: _type("DT_INT16", _INT),
    Datatype.INT8: _type("DT_INT8", _INT),
    Datatype.BYTES: _type("DT_STRING", ValueField("string_val", 8)),
    Datatype.INT64: _type("DT_INT64", ValueField("int64_val", 10)),
    Datatype.BOOL: _type("DT_BOOL", ValueField("bool_val", 11)),
    Datatype.BF16: _type("DT_BFLOAT16", _HALF),
    Datatype.UINT16: _type("DT_UINT16", _INT),
    Datatype.FP16: _type("DT_HALF", _HALF),
    Datatype.UINT32: _type("DT_UINT32", ValueField("uint32_val", 16)),
    Datatype.UINT64: _type("DT_UINT64", ValueField("uint64_val", 17)),
}
"""The TensorFlow type of each canonical datatype. Complex, quantized and other types of TensorFlow
have no canonical datatype."""
DATATYPES: Final[dict[int, Datatype]] = {entry.number: d for d, entry in TYPES.items()}
"""The canonical datatypes by number in the enum DataType."""
FIELDS_BY_NUMBER: Final[dict[int, ValueField]] = {
    **{entry.field.number: entry.field for entry in TYPES.values()},
    9: ValueField("scomplex_val", 9, 4),
    12: ValueField("dcomplex_val", 12, 8),
}
"""The fields of TensorProto that hold values, by number."""
_NAMES: Final[dict[int, str]] = {number: name for name, number in DTYPES.items()}


def type_name(number: int) -> str:
    """Return the DataType enum's name for a number, for errors and metadata."""
    if number > _REFERENCE and number - _REFERENCE in _NAMES:
        return f"{_NAMES[number - _REFERENCE]}_REF"
    return _NAMES.get(number, f"DataType {number}")


def metadata_datatype(number: int) -> str:
    """Return the datatype that a model's metadata reports: the canonical name, or TensorFlow's name
    if there is no canonical datatype."""
    datatype = DATATYPES.get(number)
    return type_name(number) if datatype is None else datatype.value
