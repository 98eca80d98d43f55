"""Datatypes that not every protocol carries, and what they can become without loss.

*Rule.* ``converted`` keeps every value on its way there. On the way back a number other than 0 is
true, and one that is not a bfloat16 is rounded to the nearest; NaN stays NaN.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from infergate.core.datatypes import FLOATS, INTEGERS, NUMPY, Datatype
from infergate.core.tensor import Tensor, bf16_from_float32, float32_from_bf16

EXACT: Final = {
    Datatype.BOOL: INTEGERS | (FLOATS - {Datatype.BF16}),
    Datatype.BF16: frozenset({Datatype.FP32, Datatype.FP64}),
}
"""What holds every value of a datatype that some protocol lacks."""


def converted(tensor: Tensor, to: Datatype) -> Tensor:
    """``tensor`` as ``to``: one of the EXACT of its datatype, or back again."""
    data = memoryview(tensor.data)
    if tensor.datatype is Datatype.BOOL:
        elements = (np.frombuffer(data, "u1") != 0).astype(NUMPY[to])
    elif tensor.datatype is Datatype.BF16:
        bits = np.frombuffer(data, NUMPY[Datatype.BF16])
        elements = float32_from_bf16(bits).astype(NUMPY[to])
    elif to is Datatype.BOOL:
        elements = np.frombuffer(data, NUMPY[tensor.datatype]) != 0
    else:
        with np.errstate(over="ignore"):  # beyond float32 is infinity
            values = np.frombuffer(data, NUMPY[tensor.datatype]).astype("<f4")
        elements = bf16_from_float32(values)
    return replace(tensor, datatype=to, data=memoryview(elements.tobytes()))
