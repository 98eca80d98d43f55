"""Writes tensors as nested lists in JSON, in the row format or the column format.

Numbers have the fewest digits that identify them. Floats always have a decimal point or an
exponent. By default, NaN and infinity are unquoted words. A BYTES element that is not UTF-8, or
whose tensor's name ends in ``_bytes``, is ``{"b64": "…"}``. Any other BYTES element is a string.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Final

import numpy as np
import orjson

from infergate.codecs.json_tensors.json_data import (
    NON_FINITE_SPELLINGS,
    number_array,
    write_array,
)
from infergate.codecs.json_tensors.json_document import abbreviated
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.json_size import json_size_bounds
from infergate.core.tensor import Tensor, unpack_bytes

_SPELLING: Final = NON_FINITE_SPELLINGS["literal"]
Spelling = tuple[bytes, bytes, bytes]
"""The JSON of NaN, infinity and negative infinity."""
_MAX_EMPTY_LISTS: Final = 1 << 16
"""Maximum number of empty lists for a tensor without elements. The shape of such a tensor could
require any number of empty lists."""
MAX_LIST_COST: Final = 1 << 26
"""Maximum product of a tensor's number of inner lists and number of dimensions. To write a tensor
at this limit, orjson takes about 1 s, or 4 s for two dimensions."""
_CHEAP_DIMENSIONS: Final = 8
_BINARY_SUFFIX: Final = "_bytes"
_ROWS_AT_ONCE: Final = 4096
"""Maximum number of rows that are converted to Python objects at a time."""


def write_columns(
    tensors: Sequence[Tensor], *, is_named: bool | None = None, spelling: Spelling = _SPELLING
) -> bytes:
    """Return ``tensors`` as the JSON of ``inputs`` or ``outputs``. If ``is_named`` is True, the
    JSON is an object with a member per tensor. If it is False, the JSON is the elements of the only
    tensor. If it is None, the JSON is an object unless there is exactly one tensor. Raises
    TOO_LARGE."""
    if is_named is None:
        is_named = len(tensors) != 1
    if not is_named:
        return _dumps(_nested(tensors[0], spelling))
    return _dumps({tensor.name: _nested(tensor, spelling) for tensor in tensors})


def write_rows(
    tensors: Sequence[Tensor], *, is_named: bool | None = None, spelling: Spelling = _SPELLING
) -> bytes:
    """Return ``tensors`` as the JSON of ``instances`` or ``predictions``. The JSON has an object
    per row or, if there is only one tensor and ``is_named`` is not True, the rows of that tensor.
    Raises BAD_REQUEST like :func:`check_rows`, and TOO_LARGE."""
    count = check_rows(tensors)
    if len(tensors) == 1 and not is_named:
        return _dumps(_nested(tensors[0], spelling))
    columns = [(tensor.name, _array(tensor)) for tensor in tensors]
    parts = []
    for start in range(0, count, _ROWS_AT_ONCE):
        end = min(start + _ROWS_AT_ONCE, count)
        block = [(name, _row_values(values[start:end], spelling)) for name, values in columns]
        rows = [{name: values[i] for name, values in block} for i in range(end - start)]
        parts.append(_dumps(rows)[1:-1])
    return b"[" + b",".join(parts) + b"]"


def check_rows(tensors: Sequence[Tensor]) -> int:
    """Return the number of rows of ``tensors``. Raises BAD_REQUEST if a tensor has no dimensions,
    or if the numbers of rows differ."""
    count = None
    for tensor in tensors:
        if not tensor.shape:
            raise bad_request(f"Tensor name: {tensor.name} has no shape information ")
        if count is not None and tensor.shape[0] != count:
            raise bad_request(
                f"Tensor name: {tensor.name} has inconsistent batch size: {tensor.shape[0]} "
                f"expecting: {count}"
            )
        count = tensor.shape[0]
    return count or 0


def nesting_cost(tensors: Sequence[Tensor]) -> int:
    """Return the size of ``tensors`` in bytes, plus the cost of their inner lists. The cost of a
    list grows with the number of the tensor's dimensions."""
    return sum(
        len(t.data) + _inner_lists(t.shape) * (2 + len(t.shape) // _CHEAP_DIMENSIONS)
        for t in tensors
    )


def row_cost(tensors: Sequence[Tensor]) -> int:
    """Return the :func:`nesting_cost` of ``tensors``, plus the size of the names, which every row
    repeats if there are several tensors."""
    cost = nesting_cost(tensors)
    if len(tensors) > 1 and have_rows(tensors):
        cost += tensors[0].shape[0] * sum(4 + len(tensor.name) for tensor in tensors)
    return cost


def have_rows(tensors: Sequence[Tensor]) -> bool:
    """Return whether all ``tensors`` have dimensions, and the same first dimension."""
    counts = {tensor.shape[:1] for tensor in tensors}
    return len(counts) == 1 and () not in counts


def _inner_lists(shape: tuple[int, ...]) -> int:
    """Return the number of lists inside the outermost list of a tensor of ``shape``."""
    total, count = 0, 1
    for size in shape[:-1]:
        count *= size
        total += count
    return total


def row_size_bounds(tensors: Sequence[Tensor]) -> tuple[int, int]:
    """Return the minimum and maximum size in bytes of ``tensors`` as nested lists in JSON."""
    low, high = json_size_bounds(tensors)
    lists = sum(3 * len(tensor.shape) * math.prod(tensor.shape) for tensor in tensors)
    names = sum(len(tensor.name) + 4 for tensor in tensors) * max(
        (tensor.shape[0] for tensor in tensors if tensor.shape and len(tensor.data)), default=0
    )
    return low, high + lists + 6 * names


def _array(tensor: Tensor) -> Any:
    """Return the elements as an array of the tensor's shape. Elements of a BYTES tensor are objects
    that orjson can write. Raises TOO_LARGE."""
    shape = tensor.shape
    if not len(tensor.data) and 0 in shape:
        shape = (*takewhile(bool, shape), 0)  # lists cannot express dimensions after a 0
        if math.prod(shape[:-1]) > _MAX_EMPTY_LISTS:
            raise GatewayError(
                Kind.TOO_LARGE,
                f"tensor '{tensor.name}' has no elements, but its shape {list(tensor.shape)} "
                f"requires over {_MAX_EMPTY_LISTS} empty lists",
            )
    if _inner_lists(shape) * len(shape) > MAX_LIST_COST:
        raise GatewayError(
            Kind.TOO_LARGE,
            f"tensor '{tensor.name}': shape {abbreviated(list(shape))} needs too many nested lists",
        )
    if tensor.datatype is not Datatype.BYTES:
        return number_array(tensor).reshape(shape)
    is_binary = tensor.name.endswith(_BINARY_SUFFIX)
    elements = list(unpack_bytes(tensor.data))
    array = np.empty(len(elements), np.object_)
    array[:] = [_element_value(element, is_binary=is_binary) for element in elements]
    return array.reshape(shape)


def _element_value(element: bytes, *, is_binary: bool) -> Any:
    if not is_binary:
        try:
            return element.decode()
        except UnicodeDecodeError:
            pass
    return {"b64": base64.b64encode(element).decode()}


def _nested(tensor: Tensor, spelling: Spelling) -> Any:
    array = _array(tensor)
    if array.dtype == np.object_:
        return array.tolist()
    if not array.ndim:
        return orjson.Fragment(_dumps(write_array(array[None], spelling))[1:-1])
    return write_array(array, spelling)


def _row_values(array: Any, spelling: Spelling) -> Sequence[Any]:
    if array.dtype == np.object_:
        return array.tolist()  # type: ignore[no-any-return]
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return [orjson.Fragment(_dumps(write_array(row[None], spelling))[1:-1]) for row in array]
    return list(array)


def _dumps(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
