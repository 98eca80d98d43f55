"""Tensors as a person writes and reads them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, Final

import numpy as np

from infergate.core.datatypes import BY_NAME, NUMPY, Datatype
from infergate.core.errors import bad_request
from infergate.core.limits import Limits
from infergate.core.messages import ModelMetadata, TensorMetadata
from infergate.core.tensor import (
    Tensor,
    bf16_from_float32,
    check_data,
    check_shape,
    pack_bytes,
)

Json = dict[str, Any]
_SPELT: Final = 64
"""Elements of an example that are written down; of a longer one, the one that fills it."""
_OPEN: Final = 4
"""What a dimension of any size is in an example, but for the first, which is often a batch."""
_MOST: Final = 1 << 24
"""Elements of a tensor that is filled."""
_TOLD: Final = 256
"""Elements of an answer that are told."""


def read(given: Any, limits: Limits) -> Tensor:
    """The tensor that ``given`` describes: ``name``, ``datatype``, ``shape``, and ``data``, a list
    (nested or not), or one value that all elements have. Raises BAD_REQUEST."""
    if not isinstance(given, Mapping):
        raise bad_request("each input is an object: name, datatype, shape, data")
    name, shape = given.get("name", ""), given.get("shape")
    datatype = BY_NAME.get(str(given.get("datatype")))
    if not isinstance(name, str) or datatype is None or not isinstance(shape, list):
        raise bad_request(f"input {name!r}: it needs a name, a datatype and a shape")
    checked = check_shape(name, shape, limits)
    data = given.get("data")
    if not isinstance(data, list):
        if prod(checked) > _MOST:
            raise bad_request(f"input {name!r}: too large to be filled")
        data = [data] * prod(checked)
    try:
        wire = _data(datatype, data)
    except (TypeError, ValueError, OverflowError) as error:
        raise bad_request(f"input {name!r}: {error}") from None
    check_data(name, datatype, checked, wire)
    return Tensor(name, datatype, checked, wire)


def _data(datatype: Datatype, data: list[Any]) -> bytes:
    if datatype is Datatype.BYTES:
        return pack_bytes([str(each).encode() for each in _flat(data)])
    if datatype is Datatype.BF16:
        return bf16_from_float32(np.array(data, np.float32)).tobytes()
    return np.array(data, NUMPY[datatype]).tobytes()


def _flat(data: list[Any]) -> list[Any]:
    found: list[Any] = []
    for each in data:
        found += _flat(each) if isinstance(each, list) else [each]
    return found


def example(model: ModelMetadata) -> list[Json]:
    """Inputs that ``model`` may well take."""
    return [_example(each) for each in model.inputs]


def _example(tensor: TensorMetadata) -> Json:
    shape = [
        each if each > 0 else 1 if index == 0 and len(tensor.shape) > 1 else _OPEN
        for index, each in enumerate(tensor.shape)
    ]
    count = prod(shape)
    values: list[Any] = [f"text {n}" for n in range(count)] if tensor.datatype == "BYTES" else []
    if not values and count <= _SPELT:
        whole = [n % 100 for n in range(count)]
        values = [bool(n % 2) for n in whole] if tensor.datatype == "BOOL" else list(whole)
    data = values if values and count <= _SPELT else values[0] if values else 1
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": shape, "data": data}


def told(tensor: Tensor) -> Json:
    """``tensor`` as JSON, its first elements."""
    data: list[Any] = tensor.numpy().reshape(-1)[:_TOLD].tolist()
    if tensor.datatype is Datatype.BYTES:
        data = [bytes(each).decode(errors="replace") for each in data]
    return {
        "name": tensor.name,
        "datatype": tensor.datatype.value,
        "shape": list(tensor.shape),
        "data": data,
    }
