"""The V2 classification extension: the best ``k`` of an output's values, with their labels.

An output requested with parameter ``classification: k`` is answered with a BYTES tensor whose
elements read ``value:index`` or ``value:index:label``, best first. Behaviour follows Triton
(``src/classification.cc``); where it leaves the order open we state one: equal values by index, NaN
last. FP16 and BF16, which Triton refuses, are classified too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from infergate.core.datatypes import FLOATS, INTEGERS, Datatype
from infergate.core.errors import bad_request
from infergate.core.messages import RequestedOutput
from infergate.core.tensor import Tensor, pack_bytes

PARAMETER: Final = "classification"
MOST_CLASSES: Final = 16384
"""Classes in one answer. Each costs a string many times its value's size, so that a body within
the limits could else ask for an answer far beyond them; and so many take 20 to 50 ms to write.
Triton has no such bound."""
_DIGITS: Final = (7, 8, 9)
"""The last are enough for any float of 32 bits."""


def class_count(output: RequestedOutput) -> int | None:
    """How many classes ``output`` asks for; None if it wants its values.

    Raises BAD_REQUEST where the parameter is no integer that servers have room for.
    """
    count = output.parameters.get(PARAMETER)
    if count is None:
        return None
    if type(count) is not int or not 0 < count < 2**32:
        raise bad_request(
            f"output '{output.name}': parameter '{PARAMETER}' must be an integer from 1 to 2^32-1"
        )
    return count


def classify(tensor: Tensor, count: int, batch_rank: int = 0, labels: Sequence[str] = ()) -> Tensor:
    """The ``count`` best values of ``tensor`` as a BYTES tensor of the same name.

    The first ``batch_rank`` dimensions stay and all others are ranked together, so the shape is
    ``shape[:batch_rank] + (k,)``, where ``k`` is ``count`` or the number of values if that is
    less. Values read as :func:`spelled`, integers as integers. Raises BAD_REQUEST for BOOL and
    BYTES and for answers of more than MOST_CLASSES.
    """
    if tensor.datatype not in FLOATS | INTEGERS:
        raise bad_request(
            f"output '{tensor.name}': class result not available due to unsupported type "
            f"'{tensor.datatype.value}'"
        )
    batch = tensor.shape[:batch_rank]
    values = math.prod(tensor.shape[batch_rank:])
    kept = min(count, values)
    rows = math.prod(batch)
    if rows * kept > MOST_CLASSES:
        raise bad_request(
            f"output '{tensor.name}': {rows * kept} classes are asked for, the limit is "
            f"{MOST_CLASSES}"
        )
    scores = tensor.numpy().reshape(rows, values)
    order = np.argsort(_falling(tensor.datatype, scores), axis=-1, kind="stable")[:, :kept]
    best = np.take_along_axis(scores, order, axis=-1)
    if tensor.datatype in INTEGERS:
        told = [str(value) for value in best.ravel().tolist()]
    else:
        kind = np.float64 if tensor.datatype is Datatype.FP64 else np.float32
        told = spelled(best.ravel().astype(kind))
    elements = [
        _element(value, index, labels)
        for value, index in zip(told, order.ravel().tolist(), strict=True)
    ]
    return Tensor(tensor.name, Datatype.BYTES, (*batch, kept), pack_bytes(elements))


def _falling(datatype: Datatype, scores: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # Negating the least integer, or an unsigned one, would overflow; inverting its bits does not
    # and orders the same. numpy sorts NaN last.
    falling: npt.NDArray[Any] = np.negative(scores) if datatype in FLOATS else np.invert(scores)
    return falling


def spelled(values: npt.NDArray[Any]) -> list[str]:
    """Each of ``values``, floats of 32 or 64 bits, in full precision: with six decimals, as Triton
    writes them, where these tell it from its neighbours; else as short as does."""
    plain = values.tolist()
    told = [f"{value:f}" for value in plain]
    inexact = _inexact(told, values)
    if values.dtype == np.float64:
        for index in inexact.tolist():
            told[index] = repr(plain[index])
        return told
    for digits in _DIGITS:
        for index in inexact.tolist():
            told[index] = f"{plain[index]:.{digits}g}"
        inexact = inexact[_inexact([told[index] for index in inexact.tolist()], values[inexact])]
    return told


def _inexact(told: list[str], values: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Where ``told`` are other numbers than ``values``."""
    with np.errstate(over="ignore"):
        return np.flatnonzero(np.array(told, "U").astype(values.dtype) != values)


def _element(value: str, index: int, labels: Sequence[str]) -> bytes:
    label = labels[index] if index < len(labels) else ""
    return f"{value}:{index}:{label}".encode() if label else f"{value}:{index}".encode()
