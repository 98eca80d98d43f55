"""Computes bounds on the size of a tensor as JSON text, before the text is written."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from infergate.core.datatypes import Datatype
from infergate.core.tensor import Tensor

_ELEMENT_CHARACTERS: Final[dict[Datatype, tuple[int, int]]] = {
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
"""The minimum and the maximum number of characters of an element and its comma, including null,
NaN and "-Infinity"."""
_LENGTH_PREFIX_BYTES: Final = 4
_STRING_OVERHEAD: Final = (3, 128)
"""The minimum and maximum overhead of a string. The minimum is two quotes and a comma; the maximum
includes the temporary Python string."""
_MAX_ESCAPED_CHARACTERS: Final = 6
"""The maximum number of characters in the JSON escape of one byte."""


def json_size_bounds(tensors: Iterable[Tensor]) -> tuple[int, int]:
    """Return the minimum and the maximum size in bytes of the elements of ``tensors`` as JSON; the
    maximum includes the temporary Python strings."""
    min_bytes = max_bytes = 0
    for tensor in tensors:
        size = len(tensor.data)
        if tensor.datatype is Datatype.BYTES:
            count = math.prod(tensor.shape) if size else 0
            low = size - _LENGTH_PREFIX_BYTES * count
            min_bytes += low + _STRING_OVERHEAD[0] * count
            max_bytes += _MAX_ESCAPED_CHARACTERS * low + _STRING_OVERHEAD[1] * count
        else:
            low, high = _ELEMENT_CHARACTERS[tensor.datatype]
            count = size // tensor.datatype.itemsize
            min_bytes += low * count
            max_bytes += high * count
    return min_bytes, max_bytes
