"""Tensor data in JSON: arrays of numbers, booleans and strings ⇄ the canonical layout.

*Strategy.* Reading, simdjson copies a number array out in one go (nested arrays flattened) and
numpy converts it. Only where that fails is the array walked in Python, which either names the
element at fault or finds what simdjson cannot carry: NaN and Infinity, as literals or strings.
Writing, orjson prints numpy arrays itself.

*Rule 1.* Numbers are never coerced: an integer type takes integers in its range, BOOL takes
booleans, BYTES takes strings. Float types take any number, rounded to the nearest, ties to even;
a finite number that rounds to infinity is an error.
*Rule 2.* Data may be nested or flat; the count must be what the shape announces. How it is nested
is not compared with the shape (nor does Triton).
"""

from __future__ import annotations

import base64
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import orjson
import simdjson

from infergate.codecs.v2_rest.document import Node, is_array, kind, shown
from infergate.core.datatypes import INTEGERS, NUMPY, Datatype
from infergate.core.errors import GatewayError, bad_request
from infergate.core.tensor import (
    Buffer,
    Tensor,
    bf16_from_float32,
    check_data,
    float32_from_bf16,
    pack_bytes,
    unpack_bytes,
)

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Reading:
    """What one side may say. ``specials``: what stands for a float that JSON has no number for;
    ``errors``: how strings become bytes; ``packed``: UINT8 data may be one base64 string."""

    specials: Mapping[str | None, float]
    errors: str
    packed: bool


_SPECIALS: Final[dict[str | None, float]] = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
}
REQUEST: Final = Reading(specials=_SPECIALS, errors="strict", packed=False)
# MLServer and KServe write null for NaN, rest-proxy packs UINT8; for ``surrogateescape`` see
# document.read_tolerantly.
ANSWER: Final = Reading(
    specials={**_SPECIALS, None: math.nan}, errors="surrogateescape", packed=True
)


def read_elements(
    name: str, datatype: Datatype, shape: tuple[int, ...], node: Node, reading: Reading
) -> Buffer:
    """The canonical data of tensor ``name`` from its JSON. Raises BAD_REQUEST naming it."""
    if not is_array(node):
        if shape != ():
            raise bad_request(f"tensor '{name}': data must be an array, not {kind(node)}")
        node = [node]
    if isinstance(node, simdjson.Array):
        values = _copied_out(datatype, node)
        if values is not None:
            _check_count(name, shape, values.size)
            return values.view(np.uint8).data
        node = node.as_list()
    flat = list(_flattened(node))
    _check_count(name, shape, len(flat))
    if datatype is Datatype.BYTES:
        data = pack_bytes(_encoded(name, flat, reading))
        check_data(name, datatype, shape, data)
        return data
    if datatype is Datatype.BOOL:
        values = _booleans(name, flat)
    elif datatype in INTEGERS:
        values = _integers(name, datatype, flat)
    else:
        values = _floats(name, datatype, flat, reading)
    return values.view(np.uint8).data


def _check_count(name: str, shape: tuple[int, ...], count: int) -> None:
    if count != math.prod(shape):
        raise bad_request(
            f"tensor '{name}': shape {list(shape)} announces {math.prod(shape)} elements, "
            f"the data holds {count}"
        )


def _copied_out(datatype: Datatype, node: simdjson.Array) -> Array | None:
    """The array's numbers in ``datatype``; None where not all of them are, or fit."""
    if datatype in (Datatype.BOOL, Datatype.BYTES):
        return None
    of_type: Literal["d", "u", "i"] = "d"
    if datatype in INTEGERS:
        of_type = "u" if datatype is Datatype.UINT64 else "i"
    try:
        buffer = node.as_buffer(of_type=of_type)
    except (TypeError, ValueError):
        return None
    wide = np.frombuffer(buffer, _WIDE[of_type])
    if of_type == "d":
        values = ROUND[datatype](wide)
        return values if _overflown(datatype, values).size == 0 else None
    if wide.dtype != NUMPY[datatype] and wide.size:
        low, high = _BOUNDS[datatype]
        if wide.min() < low or wide.max() > high:
            return None
    return wide.astype(NUMPY[datatype], copy=False)


_BOUNDS: Final = {
    datatype: (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    for datatype, dtype in NUMPY.items()
    if datatype in INTEGERS
}
_WIDE: Final = {"d": "<f8", "u": "<u8", "i": "<i8"}


def _flattened(node: Node) -> Iterator[Node]:
    for item in node:
        if type(item) is list:
            yield from _flattened(item)
        else:
            yield item


def _wrong(name: str, index: int, value: Node, wanted: str) -> GatewayError:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    said = shown(value) if number else kind(value)
    return bad_request(f"tensor '{name}': element {index} is {said}, {wanted}")


def _encoded(name: str, flat: list[Node], reading: Reading) -> Iterator[bytes]:
    for index, value in enumerate(flat):
        if type(value) is not str:
            raise _wrong(name, index, value, "BYTES takes strings")
        try:
            yield value.encode("utf-8", reading.errors)
        except UnicodeEncodeError:
            raise _wrong(name, index, value, "with half a surrogate pair") from None


def _check_types(name: str, flat: list[Node], allowed: frozenset[type], wanted: str) -> None:
    if not allowed.issuperset(map(type, flat)):
        index = next(i for i, value in enumerate(flat) if type(value) not in allowed)
        raise _wrong(name, index, flat[index], wanted)


def _booleans(name: str, flat: list[Node]) -> Array:
    _check_types(name, flat, frozenset({bool}), "BOOL takes booleans")
    return np.array(flat, np.bool_)


def _integers(name: str, datatype: Datatype, flat: list[Node]) -> Array:
    _check_types(name, flat, frozenset({int}), f"{datatype.value} takes integers")
    low, high = _BOUNDS[datatype]
    if flat and (min(flat) < low or max(flat) > high):
        index = next(i for i, value in enumerate(flat) if not low <= value <= high)
        wanted = f"{datatype.value} takes integers from {low} to {high}"
        raise _wrong(name, index, flat[index], wanted)
    return np.array(flat, NUMPY[datatype])


def _floats(name: str, datatype: Datatype, flat: list[Node], reading: Reading) -> Array:
    told = flat if _NUMBERS.issuperset(map(type, flat)) else None
    if told is None or max(map(abs, told), default=0) > _GREATEST:
        told = _walked(name, datatype, flat, reading.specials)
    values = ROUND[datatype](np.array(told, "<f8"))
    for index in _overflown(datatype, values).tolist():
        if math.isfinite(told[index]):
            raise _wrong(name, index, told[index], f"beyond {datatype.value}")
    return values


def _walked(
    name: str, datatype: Datatype, flat: list[Node], specials: Mapping[str | None, float]
) -> list[float]:
    """Numbers and ``specials`` as floats."""
    told: list[float] = []
    for index, value in enumerate(flat):
        if type(value) is float and not math.isinf(value):
            told.append(value)
        elif type(value) is int:
            try:
                told.append(float(value))
            except OverflowError:
                raise _wrong(name, index, value, f"beyond {datatype.value}") from None
        elif (value is None or isinstance(value, str)) and value in specials:
            told.append(specials[value])
        elif type(value) is float:
            raise _wrong(name, index, value, f"beyond {datatype.value}")
        else:
            raise _wrong(name, index, value, f"{datatype.value} takes numbers")
    return told


_NUMBERS: Final = frozenset({int, float})
_GREATEST: Final = sys.float_info.max

# ---- rounding ---------------------------------------------------------------------------------


def _same(values: Array) -> Array:
    return values


def _to_float32(values: Array) -> Array:
    with np.errstate(over="ignore"):
        return values.astype("<f4")


def _to_float16(values: Array) -> Array:
    with np.errstate(over="ignore"):
        return values.astype("<f2")


def _to_bfloat16(values: Array) -> Array:
    """Rounded once. float64 → float32 → bfloat16, each to nearest, would round twice and miss ties,
    so the first step rounds to odd: inexact results keep a set last bit, which the second step
    sees as "not a tie"."""
    narrow = _to_float32(values)
    bits = narrow.view("<u4").copy()
    with np.errstate(invalid="ignore"):
        exact = narrow.astype("<f8")
        inexact = (exact != values) & ~np.isnan(values)
        bits -= inexact & (np.abs(exact) > np.abs(values))  # towards zero
    bits |= inexact
    return np.ascontiguousarray(bf16_from_float32(bits.view("<f4")))


ROUND: Final[Mapping[Datatype, Callable[[Array], Array]]] = {
    Datatype.FP64: _same,
    Datatype.FP32: _to_float32,
    Datatype.FP16: _to_float16,
    Datatype.BF16: _to_bfloat16,
}


def _overflown(datatype: Datatype, values: Array) -> npt.NDArray[np.intp]:
    """Where ``values`` are infinite."""
    if datatype is Datatype.BF16:
        return np.flatnonzero((values & 0x7FFF) == 0x7F80)
    infinite = np.isinf(values)
    return np.flatnonzero(infinite) if infinite.any() else _NOWHERE


_NOWHERE: Final = np.empty(0, np.intp)

# ---- writing ----------------------------------------------------------------------------------

NON_FINITE: Final[Mapping[str, tuple[bytes, bytes, bytes]]] = {
    "literal": (b"NaN", b"Infinity", b"-Infinity"),
    "string": (b'"NaN"', b'"Infinity"', b'"-Infinity"'),
    "null": (b"null", b"null", b"null"),
}
"""How each option spells NaN, Infinity and -Infinity. ``literal`` is Triton's: not JSON by the
book, and the only one that every V2 client known reads back."""


def write_numbers(tensor: Tensor, spelling: tuple[bytes, bytes, bytes]) -> Any:
    """The elements of a tensor other than BYTES as a flat list, in a form that orjson writes.

    Floats are printed in the fewest digits that read back the same.
    """
    if tensor.datatype is Datatype.BOOL:
        return np.frombuffer(tensor.data, np.uint8) != 0
    values = np.frombuffer(tensor.data, NUMPY[tensor.datatype])
    if not values.flags.aligned:  # a slice of a body
        values = values.copy()
    if tensor.datatype in INTEGERS:
        return values
    if tensor.datatype is Datatype.BF16:
        values = float32_from_bf16(values)
    odd = ~np.isfinite(values)
    if not odd.any():
        return values
    nan, positive, negative = spelling
    # orjson writes null for each of them, and for nothing else
    pieces = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY).split(b"null")
    words = [nan if v != v else positive if v > 0 else negative for v in values[odd].tolist()]  # noqa: PLR0124 - only NaN differs from itself
    mixed = [pieces[0]]
    for word, piece in zip(words, pieces[1:], strict=True):
        mixed += (word, piece)
    return orjson.Fragment(b"".join(mixed))


def write_strings(tensor: Tensor) -> list[str] | None:
    """The elements of a BYTES tensor; None where one is not UTF-8."""
    try:
        return [element.decode() for element in unpack_bytes(tensor.data)]
    except UnicodeDecodeError:
        return None


def write_base64(tensor: Tensor) -> list[str]:
    """The elements of a BYTES tensor in base64."""
    return [base64.b64encode(element).decode() for element in unpack_bytes(tensor.data)]
