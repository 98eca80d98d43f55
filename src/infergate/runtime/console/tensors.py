"""Tensors as a person writes and reads them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from math import prod
from typing import Any, Final

import numpy as np

from infergate.core.datatypes import BY_NAME, NUMPY, Datatype
from infergate.core.errors import bad_request
from infergate.core.limits import MIB, Limits
from infergate.core.messages import ModelMetadata, TensorMetadata
from infergate.core.tensor import (
    Tensor,
    bf16_from_float32,
    check_data,
    check_shape,
    pack_bytes,
    unpack_bytes,
)

Json = dict[str, Any]
_SPELT: Final = 64
"""Elements of an example that are written down; of a longer one, the one that fills it."""
_OPEN: Final = 4
"""What a dimension of any size is in an example, but for the first, which is often a batch."""
MOST: Final = 16 * MIB
"""Bytes of a tensor: what is made of it here, JSON above all, keeps requests waiting."""
_TOLD: Final = 256
"""Elements of an answer that are told."""
_LONGEST: Final = 256
"""Bytes of one of them, where they are BYTES."""


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
    try:
        wire = _data(datatype, data if isinstance(data, list) else [data])
    except (TypeError, ValueError, OverflowError) as error:
        raise bad_request(f"input {name!r}: {error}") from None
    if not isinstance(data, list):
        if len(wire) * prod(checked) > MOST:
            raise bad_request(f"input {name!r}: more than {MOST} bytes are too many to be filled")
        wire *= prod(checked)
    check_data(name, datatype, checked, wire)
    return Tensor(name, datatype, checked, wire)


def _data(datatype: Datatype, data: list[Any]) -> bytes:
    if datatype is Datatype.BYTES:
        return pack_bytes([str(each).encode() for each in _flat(data)])
    if datatype is Datatype.BF16:
        return bf16_from_float32(np.array(data, np.float32)).tobytes()
    return np.array(data, NUMPY[datatype]).tobytes()


def _flat(data: list[Any]) -> list[Any]:
    """Without recursion: JSON may be nested deeper than Python calls."""
    found: list[Any] = []
    within = [iter(data)]
    while within:
        for each in within[-1]:
            if isinstance(each, list):
                within.append(iter(each))
                break
            found.append(each)
        else:
            within.pop()
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
    data: Any = [_value(tensor.datatype, n) for n in range(count)] if count <= _SPELT else []
    data = data or _value(tensor.datatype, 1)
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": shape, "data": data}


def _value(datatype: str, n: int) -> Any:
    return f"text {n}" if datatype == "BYTES" else bool(n % 2) if datatype == "BOOL" else n % 100


def told(tensor: Tensor) -> Json:
    """``tensor`` as JSON, its first elements."""
    if tensor.datatype is Datatype.BYTES:
        data: list[Any] = [_text(each) for each in islice(unpack_bytes(tensor.data), _TOLD)]
    else:
        data = tensor.numpy().reshape(-1)[:_TOLD].tolist()
    return {
        "name": tensor.name,
        "datatype": tensor.datatype.value,
        "shape": list(tensor.shape),
        "data": data,
    }


def _text(element: bytes) -> str:
    text = element[:_LONGEST].decode(errors="replace")
    return f"{text}…" if len(element) > _LONGEST else text
