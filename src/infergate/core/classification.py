"""The V2 classification extension: the top ``k`` values of an output, with their labels.

The response to ``classification: k`` is a BYTES tensor whose elements are ``value:index`` or
``value:index:label``, highest value first, as in Triton (``src/classification.cc``). Triton does
not define the order of equal values; this module sorts them by index, and puts NaN last. Unlike
Triton, this module also classifies FP16 and BF16."""

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

CLASSIFICATION: Final = "classification"
MAX_CLASSES: Final = 16384
"""Maximum number of classes in one response. A class becomes a string many times the size of its
value, so without this limit a small request could produce a response far larger than the configured
limits on messages. Formatting the maximum number takes 20 to 50 ms. Triton has no such limit."""
_SIGNIFICANT_DIGITS: Final = (7, 8, 9)
"""The numbers of digits to try, in this order. Nine digits are enough for any 32-bit float."""


def class_count(output: RequestedOutput) -> int | None:
    """Return how many classes ``output`` requests, or None if it requests the values themselves.

    Raises BAD_REQUEST unless the parameter is an integer from 1 to 2^32-1."""
    count = output.parameters.get(CLASSIFICATION)
    if count is None:
        return None
    if type(count) is not int or not 0 < count < 2**32:
        raise bad_request(
            f"output '{output.name}': parameter '{CLASSIFICATION}' must be an integer "
            "from 1 to 2^32-1"
        )
    return count


def classify(tensor: Tensor, count: int, batch_rank: int = 0, labels: Sequence[str] = ()) -> Tensor:
    """Return the ``count`` highest values of ``tensor`` as a BYTES tensor of the same name.

    The first ``batch_rank`` dimensions are kept, and the values of the other dimensions are ranked
    together: the shape is ``shape[:batch_rank] + (k,)``, where ``k`` is the smaller of ``count``
    and the number of ranked values. Floats are written by ``format_floats``, and integers are
    written in decimal. Raises BAD_REQUEST for BOOL and BYTES, and for responses of more than
    MAX_CLASSES classes."""
    if tensor.datatype not in FLOATS | INTEGERS:
        raise bad_request(
            f"output '{tensor.name}': class result not available due to unsupported type "
            f"'{tensor.datatype.value}'"
        )
    batch = tensor.shape[:batch_rank]
    row_length = math.prod(tensor.shape[batch_rank:])
    k = min(count, row_length)
    rows = math.prod(batch)
    if rows * k > MAX_CLASSES:
        raise bad_request(
            f"output '{tensor.name}': {rows * k} classes are requested; the limit is {MAX_CLASSES}"
        )
    scores = tensor.numpy().reshape(rows, row_length)
    order = np.argsort(descending_keys(tensor.datatype, scores), axis=-1, kind="stable")[:, :k]
    top_values = np.take_along_axis(scores, order, axis=-1)
    if tensor.datatype in INTEGERS:
        texts = [str(value) for value in top_values.ravel().tolist()]
    else:
        dtype = np.float64 if tensor.datatype is Datatype.FP64 else np.float32
        texts = format_floats(top_values.ravel().astype(dtype))
    elements = [
        _encode_class(value, index, labels)
        for value, index in zip(texts, order.ravel().tolist(), strict=True)
    ]
    return Tensor(tensor.name, Datatype.BYTES, (*batch, k), pack_bytes(elements))


def descending_keys(datatype: Datatype, scores: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return keys that sort ``scores`` from the highest to the lowest, with NaN last."""
    # Negating the smallest integer or an unsigned integer would overflow. Inverting the bits gives
    # the same order without overflow. numpy sorts NaN last.
    keys: npt.NDArray[Any] = np.negative(scores) if datatype in FLOATS else np.invert(scores)
    return keys


def format_floats(values: npt.NDArray[Any]) -> list[str]:
    """Format ``values``, 32-bit or 64-bit floats, as text that parses to the same values. The text
    has six decimals, as in Triton, if they suffice. Otherwise, 32-bit floats have up to
    9 significant digits, and 64-bit floats the digits of ``repr``."""
    numbers = values.tolist()
    texts = [f"{value:f}" for value in numbers]
    inexact = _inexact_indices(texts, values)
    if values.dtype == np.float64:
        for index in inexact.tolist():
            texts[index] = repr(numbers[index])
        return texts
    for digits in _SIGNIFICANT_DIGITS:
        for index in inexact.tolist():
            texts[index] = f"{numbers[index]:.{digits}g}"
        inexact = inexact[
            _inexact_indices([texts[index] for index in inexact.tolist()], values[inexact])
        ]
    return texts


def _inexact_indices(texts: list[str], values: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    with np.errstate(over="ignore"):
        return np.flatnonzero(np.array(texts, "U").astype(values.dtype) != values)


def _encode_class(value: str, index: int, labels: Sequence[str]) -> bytes:
    label = labels[index] if index < len(labels) else ""
    return f"{value}:{index}:{label}".encode() if label else f"{value}:{index}".encode()
