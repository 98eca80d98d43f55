"""Datatypes that not every protocol carries, and what they can become without loss.

*Rule.* ``converted`` keeps every value on its way there. On the way back a number other than 0 is
true, and one that is not a bfloat16 is rounded to the nearest; NaN stays NaN.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from infergate.core.datatypes import FLOATS, INTEGERS, NUMPY, Datatype
from infergate.core.tensor import Tensor, bf16_from_float32, bf16_from_float64, float32_from_bf16

EXACT: Final = {
    Datatype.BOOL: INTEGERS | (FLOATS - {Datatype.BF16}),
    Datatype.BF16: frozenset({Datatype.FP32, Datatype.FP64}),
}
"""What holds every value of a datatype that some protocol lacks."""


def converted(tensor: Tensor, to: Datatype) -> Tensor:
    """``tensor`` as ``to``: one of the EXACT of its datatype, or back again."""
    with np.errstate(over="ignore", invalid="ignore"):  # what is too large is infinity; NaN is NaN
        elements = _elements(tensor, to)
    return replace(tensor, datatype=to, data=memoryview(elements.tobytes()))


def _elements(tensor: Tensor, to: Datatype) -> npt.NDArray[Any]:
    kept = "u1" if tensor.datatype is Datatype.BOOL else NUMPY[tensor.datatype]
    given: npt.NDArray[Any] = np.frombuffer(tensor.data, kept)
    if tensor.datatype is Datatype.BF16:
        return float32_from_bf16(given).astype(NUMPY[to])
    if to is Datatype.BF16:
        if tensor.datatype is Datatype.FP64:
            return bf16_from_float64(given)
        return bf16_from_float32(given)
    return given.astype(bool).astype(NUMPY[to])  # from or to BOOL: any number but 0 is true
