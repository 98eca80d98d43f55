"""FP64 values in the float types: to the nearest, ties to even, overflow to infinity."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from infergate.core.datatypes import Datatype
from infergate.core.tensor import bf16_from_float32

Array = npt.NDArray[Any]


def _same(values: Array) -> Array:
    return values


def _to_float32(values: Array) -> Array:
    with np.errstate(over="ignore"):
        return values.astype("<f4")


def _to_float16(values: Array) -> Array:
    with np.errstate(over="ignore"):
        return values.astype("<f2")


def _to_bfloat16(values: Array) -> Array:
    """Rounded once. float64 → float32 → bfloat16, each to nearest, would round twice and miss ties,
    so the first step rounds to odd: inexact results keep a set last bit, which the second step
    sees as "not a tie"."""
    narrow = _to_float32(values)
    bits = narrow.view("<u4").copy()
    with np.errstate(invalid="ignore"):
        exact = narrow.astype("<f8")
        inexact = (exact != values) & ~np.isnan(values)
        bits -= inexact & (np.abs(exact) > np.abs(values))  # towards zero
    bits |= inexact
    return np.ascontiguousarray(bf16_from_float32(bits.view("<f4")))


ROUND: Final[Mapping[Datatype, Callable[[Array], Array]]] = {
    Datatype.FP64: _same,
    Datatype.FP32: _to_float32,
    Datatype.FP16: _to_float16,
    Datatype.BF16: _to_bfloat16,
}


def overflown(datatype: Datatype, values: Array) -> npt.NDArray[np.intp]:
    """Where ``values`` are infinite."""
    if datatype is Datatype.BF16:
        return np.flatnonzero((values & 0x7FFF) == 0x7F80)
    infinite = np.isinf(values)
    return np.flatnonzero(infinite) if infinite.any() else _NOWHERE


_NOWHERE: Final = np.empty(0, np.intp)
