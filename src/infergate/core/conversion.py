"""Lossless conversion of datatypes that not every protocol supports.

``convert`` keeps every value if the target is one of LOSSLESS_TARGETS. In the other direction, a
number other than 0 becomes true, and a number that bfloat16 cannot represent is rounded to the
nearest bfloat16; NaN stays NaN."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from infergate.core.datatypes import FLOATS, INTEGERS, NUMPY_DTYPES, Datatype
from infergate.core.tensor import Tensor, bf16_from_float32, bf16_from_float64, float32_from_bf16

LOSSLESS_TARGETS: Final = {
    Datatype.BOOL: INTEGERS | (FLOATS - {Datatype.BF16}),
    Datatype.BF16: frozenset({Datatype.FP32, Datatype.FP64}),
}
"""For each datatype that some protocol does not support, the datatypes to which ``convert`` casts
it without loss."""


def convert(tensor: Tensor, target: Datatype) -> Tensor:
    """Return ``tensor`` as ``target``, which is one of the LOSSLESS_TARGETS of its datatype or, for
    the reverse conversion, the original datatype."""
    with np.errstate(over="ignore", invalid="ignore"):  # overflow becomes infinity, NaN stays NaN
        elements = _convert_elements(tensor, target)
    return replace(tensor, datatype=target, data=memoryview(elements.tobytes()))


def _convert_elements(tensor: Tensor, target: Datatype) -> npt.NDArray[Any]:
    stored_dtype = "u1" if tensor.datatype is Datatype.BOOL else NUMPY_DTYPES[tensor.datatype]
    elements: npt.NDArray[Any] = np.frombuffer(tensor.data, stored_dtype)
    if tensor.datatype is Datatype.BF16:
        return float32_from_bf16(elements).astype(NUMPY_DTYPES[target])
    if target is Datatype.BF16:
        if tensor.datatype is Datatype.FP64:
            return bf16_from_float64(elements)
        return bf16_from_float32(elements)
    return elements.astype(bool).astype(NUMPY_DTYPES[target])  # 0 is false
