"""Converts small tensors between JSON and the canonical layout with ``struct``.

This is faster than numpy, in which every call takes 1 to 3 µs
(docs/decisions/0016-small-json-reader.md). The functions return None if their results might differ
from the results of ``json_data``."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from itertools import chain
from typing import Any, Final

import numpy as np

from infergate.core.datatypes import INTEGERS, Datatype
from infergate.core.tensor import Tensor, pack_bytes

MAX_WRITTEN_BYTES: Final = 256
"""Maximum size in bytes of a tensor that ``json_data`` passes to ``write_small_data``."""
_MAX_DEPTH: Final = 8
"""Maximum nesting depth of data that this module reads."""
_STRUCT_CODES: Final = {
    Datatype.INT8: "b",
    Datatype.UINT8: "B",
    Datatype.INT16: "h",
    Datatype.UINT16: "H",
    Datatype.INT32: "i",
    Datatype.UINT32: "I",
    Datatype.INT64: "q",
    Datatype.UINT64: "Q",
    Datatype.FP32: "f",
    Datatype.FP64: "d",
}
"""The ``struct`` format code of each datatype. Packing rounds FP32 values like the module
``rounding``, and rejects overflow."""

# ---- reading ------------------------------------------------------------------------------------


def _pack_texts(elements: list[str]) -> bytes:
    return pack_bytes([element.encode() for element in elements])


_Packer = Callable[[list[Any]], bytes] | None
_PACKERS: Final[dict[str, tuple[Datatype, frozenset[type], str, _Packer]]] = {
    "BOOL": (Datatype.BOOL, frozenset({bool}), "", bytes),
    "BYTES": (Datatype.BYTES, frozenset({str}), "", _pack_texts),
    **{
        datatype.value: (
            datatype,
            frozenset({int} if datatype in INTEGERS else {int, float}),
            code,
            None,
        )
        for datatype, code in _STRUCT_CODES.items()
    },
}
"""Maps the name of a datatype to the datatype, the accepted Python types (Rule 1 of ``json_data``),
and the ``struct`` code or packing function."""
_LIST_TYPES: Final = frozenset({list})


def read_small_data(
    datatype_name: str, count: int, data: list[Any]
) -> tuple[Datatype, bytes] | None:
    """Return the datatype and the canonical data of ``data``, a flat or nested list from orjson
    with ``count`` elements. Return None if ``json_data`` must read the elements.

    orjson parses integers over 64 bits as the nearest floats, which float datatypes accept.
    """
    packer = _PACKERS.get(datatype_name)
    if packer is None:
        return None
    datatype, allowed, code, pack = packer
    types = set(map(type, data))
    depth = 1
    while types == _LIST_TYPES and depth < _MAX_DEPTH:
        data = list(chain.from_iterable(data))
        types = set(map(type, data))
        depth += 1
    if len(data) != count or not types <= allowed:
        return None
    try:
        return datatype, struct.pack(f"<{count}{code}", *data) if pack is None else pack(data)
    except (OverflowError, struct.error):
        return None


# ---- writing ------------------------------------------------------------------------------------


def write_small_data(tensor: Tensor) -> Any:
    """Return the elements of ``tensor`` as a flat sequence that orjson can write, or None if
    ``json_data`` must write the elements."""
    data = tensor.data
    code = _STRUCT_CODES.get(tensor.datatype)
    if code is None:
        return [byte != 0 for byte in data] if tensor.datatype is Datatype.BOOL else None
    values = struct.unpack(f"<{len(data) // tensor.datatype.itemsize}{code}", data)
    if code not in "fd":
        return values
    if not math.isfinite(sum(values)):  # an element is not finite, or the sum of FP64 overflowed
        return None
    if code == "d":
        return values
    narrow = np.frombuffer(data, "<f4")  # orjson would write Python floats with FP64 digits
    return narrow if narrow.flags.aligned else None
