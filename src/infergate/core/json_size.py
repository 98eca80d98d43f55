"""How long the JSON text of a tensor is, before it is written."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from infergate.core.datatypes import Datatype
from infergate.core.tensor import Tensor

_ELEMENT: Final[dict[Datatype, tuple[int, int]]] = {
    Datatype.BOOL: (5, 6),
    Datatype.INT8: (2, 5),
    Datatype.UINT8: (2, 4),
    Datatype.INT16: (2, 7),
    Datatype.UINT16: (2, 6),
    Datatype.INT32: (2, 12),
    Datatype.UINT32: (2, 11),
    Datatype.INT64: (2, 21),
    Datatype.UINT64: (2, 21),
    Datatype.FP16: (4, 25),
    Datatype.BF16: (4, 25),
    Datatype.FP32: (4, 25),
    Datatype.FP64: (4, 25),
}
"""Characters of one element and its comma, at least and at most; null and NaN are no shorter, and
"-Infinity" no longer."""
_PREFIX: Final = 4
"""Bytes of the length before each element of BYTES."""
_STRING: Final = (3, 128)
"""Two quotes and a comma; and, while it is written, a Python object."""
_ESCAPED: Final = 6
"""Characters that a byte may become."""


def json_size(tensors: Iterable[Tensor]) -> tuple[int, int]:
    """Bytes that the elements of ``tensors`` take as JSON: at least, and, with the strings that
    they are written from, at most."""
    least = most = 0
    for tensor in tensors:
        size = len(tensor.data)
        if tensor.datatype is Datatype.BYTES:
            count = math.prod(tensor.shape) if size else 0
            low = size - _PREFIX * count
            least += low + _STRING[0] * count
            most += _ESCAPED * low + _STRING[1] * count
        else:
            low, high = _ELEMENT[tensor.datatype]
            count = size // tensor.datatype.itemsize
            least += low * count
            most += high * count
    return least, most
