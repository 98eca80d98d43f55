"""The canonical tensor datatypes.

Their names come from the Open Inference Protocol (V2). Each codec has one table that maps its own
names to these names. ``BYTES`` is the only datatype whose elements have no fixed size."""

from __future__ import annotations

import enum
from typing import Final

import numpy as np
import numpy.typing as npt


class Datatype(enum.Enum):
    """A tensor element type. ``itemsize`` is in bytes, or 0 for BYTES, because its elements vary in
    size."""

    BOOL = "BOOL"
    UINT8 = "UINT8"
    UINT16 = "UINT16"
    UINT32 = "UINT32"
    UINT64 = "UINT64"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FP16 = "FP16"
    FP32 = "FP32"
    FP64 = "FP64"
    BF16 = "BF16"
    BYTES = "BYTES"

    itemsize: int
    v2_name: str
    """The same text as ``value``. Reading ``v2_name`` is faster, because ``enum`` looks up
    ``value`` with two Python calls."""

    __hash__ = object.__hash__  # members are singletons; Enum's own hash is four times as slow

    def __init__(self, v2_name: str) -> None:
        self.v2_name = v2_name
        bits = "".join(filter(str.isdigit, v2_name))
        self.itemsize = int(bits) // 8 if bits else int(v2_name == "BOOL")


DATATYPES_BY_NAME: Final[dict[str, Datatype]] = {member.value: member for member in Datatype}

INTEGERS: Final = frozenset(
    member for member in Datatype if member.value.startswith(("INT", "UINT"))
)
FLOATS: Final = frozenset({Datatype.FP16, Datatype.BF16, Datatype.FP32, Datatype.FP64})

NUMPY_DTYPES: Final[dict[Datatype, npt.DTypeLike]] = {
    Datatype.BOOL: np.dtype("?"),
    Datatype.UINT8: np.dtype("u1"),
    Datatype.UINT16: np.dtype("<u2"),
    Datatype.UINT32: np.dtype("<u4"),
    Datatype.UINT64: np.dtype("<u8"),
    Datatype.INT8: np.dtype("i1"),
    Datatype.INT16: np.dtype("<i2"),
    Datatype.INT32: np.dtype("<i4"),
    Datatype.INT64: np.dtype("<i8"),
    Datatype.FP16: np.dtype("<f2"),
    Datatype.FP32: np.dtype("<f4"),
    Datatype.FP64: np.dtype("<f8"),
    # numpy has no bfloat16: the bits are stored as uint16 (see tensor.bf16_from_float32)
    Datatype.BF16: np.dtype("<u2"),
}
"""The numpy dtype with the canonical memory layout of each datatype except BYTES."""
