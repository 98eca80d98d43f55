"""Rounds FP64 values to the float types: to the nearest value, with ties to even and overflow to
infinity."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from infergate.core.datatypes import Datatype
from infergate.core.tensor import bf16_from_float64

Array: TypeAlias = npt.NDArray[Any]


def _narrow(dtype: str, values: Array) -> Array:
    with np.errstate(over="ignore"):
        return values.astype(dtype)


ROUND: Final[Mapping[Datatype, Callable[[Array], Array]]] = {
    Datatype.FP64: lambda values: values,
    Datatype.FP32: partial(_narrow, "<f4"),
    Datatype.FP16: partial(_narrow, "<f2"),
    Datatype.BF16: bf16_from_float64,
}


def infinite_indices(datatype: Datatype, values: Array) -> npt.NDArray[np.intp]:
    """Return the indices of the infinite elements of ``values``."""
    if datatype is Datatype.BF16:
        return np.flatnonzero((values & 0x7FFF) == 0x7F80)
    infinite = np.isinf(values)
    return np.flatnonzero(infinite) if infinite.any() else _NO_INDICES


_NO_INDICES: Final = np.empty(0, np.intp)
