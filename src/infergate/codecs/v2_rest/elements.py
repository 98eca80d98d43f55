"""Tensor data in JSON: arrays of numbers, booleans and strings ⇄ the canonical layout.

*Strategy.* Reading, simdjson copies a number array out in one go (nested arrays flattened) and
numpy converts it. Only where that fails is the array walked in Python, which either names the
element at fault or finds what simdjson cannot carry: NaN and Infinity, as literals or strings.
Writing, orjson prints numpy arrays itself.

*Rule 1.* Numbers are never coerced: an integer type takes integers in its range, BOOL takes
booleans, BYTES takes strings. Float types take any number: read as FP64, as every JSON reader
does, and rounded from there to the nearest, ties to even; a finite number that rounds to infinity
is an error.
*Rule 2.* Data may be nested or flat; the count must be what the shape announces. How it is nested
is not compared with the shape (nor does Triton).
*Rule 3.* What is walked in Python is walked no further than one element beyond what the shape
announces.
"""

from __future__ import annotations

import base64
import binascii
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from typing import Literal as OneOf

import numpy as np
import orjson
import simdjson

from infergate.codecs.v2_rest.document import Literal, Node, is_array, kind, shown
from infergate.codecs.v2_rest.few import MOST_WRITTEN, write_few
from infergate.codecs.v2_rest.rounding import ROUND, Array, overflown
from infergate.core.datatypes import INTEGERS, NUMPY, Datatype
from infergate.core.errors import GatewayError, bad_request
from infergate.core.tensor import (
    Buffer,
    Parameters,
    Tensor,
    float32_from_bf16,
    pack_bytes,
    unpack_bytes,
)


@dataclass(frozen=True, slots=True)
class Reading:
    """What one side may say. ``errors``: how strings become bytes; ``packed``: UINT8 data may be
    one base64 string."""

    errors: str
    packed: bool


_SPECIALS: Final[dict[str | None, float]] = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
    None: math.nan,  # MLServer, KServe
}
"""What stands for a float that JSON has no number for."""
REQUEST: Final = Reading(errors="strict", packed=False)
# rest-proxy packs UINT8; for ``surrogateescape`` see document.read_tolerantly.
ANSWER: Final = Reading(errors="surrogateescape", packed=True)


def read_elements(
    name: str, datatype: Datatype, shape: tuple[int, ...], node: Node, reading: Reading
) -> Buffer:
    """The canonical data of tensor ``name`` from its JSON. Raises BAD_REQUEST naming it."""
    if not is_array(node):
        is_only_text = type(node) is str and datatype is Datatype.BYTES and shape == (1,)
        if shape != () and not is_only_text:
            raise bad_request(f"tensor '{name}': data must be an array, not {kind(node)}")
        node = [node]
    if isinstance(node, simdjson.Array):
        values = _copied_out(datatype, node)
        if values is not None:
            _check_count(name, shape, values.size)
            return values.view(np.uint8).data
    flat = _flattened(node, math.prod(shape))
    _check_count(name, shape, len(flat))
    if datatype is Datatype.BYTES:
        return pack_bytes(_encoded(name, flat, reading))
    if datatype is Datatype.BOOL:
        values = _booleans(name, flat)
    elif datatype in INTEGERS:
        values = _integers(name, datatype, flat)
    else:
        values = _floats(name, datatype, flat)
    return values.view(np.uint8).data


def _check_count(name: str, shape: tuple[int, ...], count: int) -> None:
    announced = math.prod(shape)
    if count != announced:
        raise bad_request(
            f"tensor '{name}': shape {list(shape)} announces {announced} elements, "
            f"the data holds {'more' if count > announced else count}"
        )


def _copied_out(datatype: Datatype, node: simdjson.Array) -> Array | None:
    """The array's numbers in ``datatype``; None where not all of them are, or fit."""
    if datatype in (Datatype.BOOL, Datatype.BYTES):
        return None
    of_type: OneOf["d", "u", "i"] = "d"
    if datatype in INTEGERS:
        of_type = "u" if datatype is Datatype.UINT64 else "i"
    try:
        buffer = node.as_buffer(of_type=of_type)
    except (TypeError, ValueError):
        return None
    wide = np.frombuffer(buffer, _WIDE[of_type])
    if of_type == "d":
        values = ROUND[datatype](wide)
        return values if overflown(datatype, values).size == 0 else None
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


def _flattened(node: Node, most: int) -> list[Node]:
    """The elements of the array ``node`` at whatever depth; some beyond ``most``, and no further,
    where there are more."""
    flat: list[Node] = []
    pending = [iter((node,))]
    while pending:
        for item in pending[-1]:
            if type(item) not in _ARRAYS:
                flat.append(item)
            elif len(item) > most - len(flat):  # too many, unless they are empty arrays
                pending.append(iter(item))
                break
            else:
                listed = list(item)
                if not _ARRAYS.isdisjoint(map(type, listed)):
                    pending.append(iter(listed))
                    break
                flat += listed
            if len(flat) > most:
                return flat
        else:
            pending.pop()
    return flat


_ARRAYS: Final = frozenset({simdjson.Array, list})


def _wrong(name: str, index: int, value: Node, wanted: str) -> GatewayError:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    said = shown(value) if number else kind(value)
    return bad_request(f"tensor '{name}': element {index} is {said}, {wanted}")


def _encoded(name: str, flat: list[Node], reading: Reading) -> list[bytes]:
    _check_types(name, flat, frozenset({str}), "BYTES takes strings")
    try:
        return [value.encode("utf-8", reading.errors) for value in flat]
    except UnicodeEncodeError as error:
        index = flat.index(error.object)
        raise _wrong(name, index, flat[index], "with half a surrogate pair") from None


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


def _floats(name: str, datatype: Datatype, flat: list[Node]) -> Array:
    """Numbers, and words for what is no number."""
    wanted = f"{datatype.value} takes numbers"
    words = [value for value in flat if type(value) not in _NUMBERS]
    told = flat
    if words:
        _check_types(name, flat, _NUMBERS | _WORDS, wanted)
        unknown = set(words).difference(_SPECIALS)
        if unknown:
            index = next(i for i, value in enumerate(flat) if value in unknown)
            raise _wrong(name, index, flat[index], wanted)
        told = [value if type(value) in _NUMBERS else _SPECIALS[value] for value in flat]
    try:
        values = ROUND[datatype](np.array(told, "<f8"))
    except OverflowError:
        index = next(i for i, v in enumerate(told) if type(v) is int and abs(v) > _GREATEST)
        raise _wrong(name, index, told[index], f"beyond {datatype.value}") from None
    for index in overflown(datatype, values).tolist():
        if type(flat[index]) in _NUMBERS:
            raise _wrong(name, index, flat[index], f"beyond {datatype.value}")
    return values


_NUMBERS: Final[frozenset[type]] = frozenset({int, float})
_WORDS: Final[frozenset[type]] = frozenset({str, Literal, type(None)})
_GREATEST: Final = sys.float_info.max

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
    if len(tensor.data) <= MOST_WRITTEN and (few := write_few(tensor)) is not None:
        return few
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
    """The elements of a BYTES tensor; None where they must be written in base64: where one is not
    UTF-8, or the tensor's parameters promise base64 and one is none. (MLServer marks elements that
    hold base64 over gRPC too.)"""
    if (
        tensor.parameters
        and is_base64(tensor.parameters)
        and None in map(_unpacked, unpack_bytes(tensor.data))
    ):
        return None
    try:
        return [element.decode() for element in unpack_bytes(tensor.data)]
    except UnicodeDecodeError:
        return None


def write_base64(tensor: Tensor) -> list[str]:
    """The elements of a BYTES tensor in base64, of which :data:`BASE64` tells."""
    return [base64.b64encode(element).decode() for element in unpack_bytes(tensor.data)]


# ---- base64 -----------------------------------------------------------------------------------

CONTENT_TYPE: Final = "content_type"
BASE64: Final = {CONTENT_TYPE: "base64"}
"""The parameter that marks BYTES in base64 (rest-proxy, MLServer)."""
_BASE64: Final = frozenset({"base64", "b64"})


def is_base64(parameters: Parameters) -> bool:
    """Whether the parameters of a BYTES tensor mark its elements as base64, in any spelling that
    rest-proxy takes."""
    spelt = parameters.get(CONTENT_TYPE)
    return isinstance(spelt, str) and spelt.lower() in _BASE64


def decode_base64(name: str, data: Buffer) -> Buffer:
    """The canonical data of a BYTES tensor whose elements are base64. Raises BAD_REQUEST."""
    elements = [_unpacked(element) for element in unpack_bytes(data)]
    if None in elements:
        raise bad_request(
            f"tensor '{name}': element {elements.index(None)} is not base64, as its parameter "
            f"{CONTENT_TYPE} says"
        )
    return pack_bytes([element for element in elements if element is not None])


def _unpacked(element: Buffer) -> bytes | None:
    """What ``element`` is the base64 of; None where it is not base64."""
    try:
        return base64.b64decode(element, validate=True)
    except binascii.Error:
        return None
