"""Rounds FP64 values to the float types: to the nearest value, with ties to even and overflow to
infinity."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from infergate.core.datatypes import Datatype
from infergate.core.tensor import bf16_from_float64

Array: TypeAlias = npt.NDArray[Any]


def _to_float32(values: Array) -> Array:
    with np.errstate(over="ignore"):
        return values.astype("<f4")


def _to_float16(values: Array) -> Array:
    with np.errstate(over="ignore"):
        return values.astype("<f2")


ROUND: Final[Mapping[Datatype, Callable[[Array], Array]]] = {
    Datatype.FP64: lambda values: values,
    Datatype.FP32: _to_float32,
    Datatype.FP16: _to_float16,
    Datatype.BF16: bf16_from_float64,
}


def infinite_indices(datatype: Datatype, values: Array) -> npt.NDArray[np.intp]:
    """Return the indices of infinite ``values``."""
    if datatype is Datatype.BF16:
        return np.flatnonzero((values & 0x7FFF) == 0x7F80)
    infinite = np.isinf(values)
    return np.flatnonzero(infinite) if infinite.any() else _NO_INDICES


_NO_INDICES: Final = np.empty(0, np.intp)
