"""A few elements between JSON and the canonical layout, by ``struct``.

*Why.* Each call of numpy costs 1 to 3 µs, which pays from some hundred elements on
(docs/decisions/0016-small-json.md).
*Rule.* What comes of it is what ``elements`` makes of it; None, where that is not sure.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from itertools import chain
from typing import Any, Final

import numpy as np

from infergate.core.datatypes import INTEGERS, Datatype
from infergate.core.tensor import Tensor, pack_bytes

MOST_WRITTEN: Final = 256
"""Bytes of a tensor whose numbers are written here."""
_DEEPEST: Final = 8
"""Levels that data is nested."""
_CODES: Final = {
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
"""How ``struct`` calls the datatypes. Packing rounds to FP32 as ``rounding`` does, and refuses what
is out of range, or would become infinite."""

# ---- reading ------------------------------------------------------------------------------------


def _pack_texts(elements: list[str]) -> bytes:
    return pack_bytes([element.encode() for element in elements])


def _pack_numbers(code: str) -> Callable[[list[Any]], bytes]:
    def pack(elements: list[Any]) -> bytes:
        return struct.pack(f"<{len(elements)}{code}", *elements)

    return pack


_READING: Final[dict[str, tuple[Datatype, frozenset[type], Callable[[list[Any]], bytes]]]] = {
    "BOOL": (Datatype.BOOL, frozenset({bool}), bytes),
    "BYTES": (Datatype.BYTES, frozenset({str}), _pack_texts),
    **{
        datatype.value: (
            datatype,
            frozenset({int} if datatype in INTEGERS else {int, float}),
            _pack_numbers(code),
        )
        for datatype, code in _CODES.items()
    },
}
"""By its spelling, which costs less to look up: a datatype, the types of the values that it takes
(``elements``, Rule 1), and how they are packed. FP16 and BF16 need more than that."""
_LISTS: Final = frozenset({list})


def read_few(spelt: str, count: int, data: list[Any]) -> tuple[Datatype, bytes] | None:
    """The ``count`` elements of datatype ``spelt`` in ``data``, flat or nested, as orjson read it.

    Integers over 64 bits are floats there, which are the nearest, so that float types may be told
    in them.
    """
    known = _READING.get(spelt)
    if known is None:
        return None
    datatype, allowed, pack = known
    types = set(map(type, data))
    depth = 1
    while types == _LISTS and depth < _DEEPEST:
        data = list(chain.from_iterable(data))
        types = set(map(type, data))
        depth += 1
    if len(data) != count or not types <= allowed:
        return None
    try:
        return datatype, pack(data)
    except (OverflowError, struct.error):
        return None


# ---- writing ------------------------------------------------------------------------------------


def write_few(tensor: Tensor) -> Any:
    """The elements of ``tensor``, which is no BYTES, as a flat list that orjson writes."""
    data = tensor.data
    code = _CODES.get(tensor.datatype)
    if code is None:
        return [byte != 0 for byte in data] if tensor.datatype is Datatype.BOOL else None
    values = struct.unpack(f"<{len(data) // tensor.datatype.itemsize}{code}", data)
    if code not in "fd":
        return values
    if not math.isfinite(sum(values)):  # some are not, or the sum of those of FP64 is not
        return None
    if code == "d":
        return values
    narrow = np.frombuffer(data, "<f4")  # Python's floats would be written in the digits of FP64
    return narrow if narrow.flags.aligned else None
