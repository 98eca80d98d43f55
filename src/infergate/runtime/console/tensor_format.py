"""The console's JSON format of tensors. This module has no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from math import prod
from typing import Any, Final

import numpy as np

from infergate.core.datatypes import DATATYPES_BY_NAME, NUMPY_DTYPES, Datatype
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
_MAX_EXAMPLE_ELEMENTS: Final = 64
"""Maximum number of listed values in an example. In a larger tensor, one value fills all
elements."""
_DYNAMIC_SIZE: Final = 4
"""The size of a dynamic dimension in an example. If the first of several dimensions is dynamic, its
size is 1, because it is often the batch dimension."""
MAX_BYTES: Final = 16 * MIB
"""Maximum bytes of all inputs together. Processing tensors, especially as JSON, delays other
requests."""
_MAX_ELEMENTS: Final = 256
"""The maximum number of output elements shown."""
_MAX_ELEMENT_BYTES: Final = 256
"""The maximum number of bytes of a BYTES element that are shown."""


def parse(description: Any, limits: Limits) -> Tensor:
    """Return the tensor with the ``name``, ``datatype``, ``shape`` and ``data`` in ``description``.
    ``data`` is a list (nested or flat), or one value for all elements. Raises BAD_REQUEST."""
    if not isinstance(description, Mapping):
        raise bad_request("each input must be an object with name, datatype, shape and data")
    name, shape = description.get("name", ""), description.get("shape")
    datatype = DATATYPES_BY_NAME.get(str(description.get("datatype")))
    if not isinstance(name, str) or datatype is None or not isinstance(shape, list):
        raise bad_request(
            f"input {name!r}: expected a string as name, a V2 datatype such as FP32, and a list as "
            "shape"
        )
    checked = check_shape(name, shape, limits)
    data = description.get("data")
    try:
        wire = _encode(datatype, data if isinstance(data, list) else [data])
    except (TypeError, ValueError, OverflowError) as error:
        raise bad_request(f"input {name!r}: {error}") from None
    if not isinstance(data, list):
        if len(wire) * prod(checked) > MAX_BYTES:
            raise bad_request(
                f"input {name!r}: filling its shape would take more than {MAX_BYTES} bytes"
            )
        wire *= prod(checked)
    check_data(name, datatype, checked, wire)
    return Tensor(name, datatype, checked, wire)


def _encode(datatype: Datatype, data: list[Any]) -> bytes:
    if datatype is Datatype.BYTES:
        return pack_bytes([str(element).encode() for element in _flatten(data)])
    if datatype is Datatype.BF16:
        return bf16_from_float32(np.array(data, np.float32)).tobytes()
    return np.array(data, NUMPY_DTYPES[datatype]).tobytes()


def _flatten(data: list[Any]) -> list[Any]:
    """Flatten nested lists without recursion, because JSON may be nested too deeply for Python's
    stack."""
    elements: list[Any] = []
    iterators = [iter(data)]
    while iterators:
        for item in iterators[-1]:
            if isinstance(item, list):
                iterators.append(iter(item))
                break
            elements.append(item)
        else:
            iterators.pop()
    return elements


def example(model: ModelMetadata) -> list[Json]:
    """Return inputs that match the metadata of ``model``."""
    return [_example(tensor) for tensor in model.inputs]


def _example(tensor: TensorMetadata) -> Json:
    shape = [
        size if size > 0 else 1 if index == 0 and len(tensor.shape) > 1 else _DYNAMIC_SIZE
        for index, size in enumerate(tensor.shape)
    ]
    count = prod(shape)
    data: Any = (
        [_value(tensor.datatype, n) for n in range(count)] if count <= _MAX_EXAMPLE_ELEMENTS else []
    )
    data = data or _value(tensor.datatype, 1)
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": shape, "data": data}


def _value(datatype: str, n: int) -> Any:
    return f"text {n}" if datatype == "BYTES" else bool(n % 2) if datatype == "BOOL" else n % 100


def to_json(tensor: Tensor) -> Json:
    """Return ``tensor`` as JSON with at most ``_MAX_ELEMENTS`` elements."""
    if tensor.datatype is Datatype.BYTES:
        data: list[Any] = [
            _text(element) for element in islice(unpack_bytes(tensor.data), _MAX_ELEMENTS)
        ]
    else:
        data = tensor.numpy().reshape(-1)[:_MAX_ELEMENTS].tolist()
    return {
        "name": tensor.name,
        "datatype": tensor.datatype.value,
        "shape": list(tensor.shape),
        "data": data,
    }


def _text(element: bytes) -> str:
    text = element[:_MAX_ELEMENT_BYTES].decode(errors="replace")
    return f"{text}…" if len(element) > _MAX_ELEMENT_BYTES else text
