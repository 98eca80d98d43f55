"""Converts tensor data between JSON (arrays of numbers, booleans and strings) and the canonical
layout.

simdjson copies the numbers of a flat or nested array, and numpy converts the copy. If this fails, a
loop finds the invalid element, or reads values that simdjson cannot copy, such as NaN.

*Rule 1.* Values are never coerced: an integer type takes integers in its range, BOOL takes
booleans, and BYTES takes strings. Float types take any number and round it to the nearest value,
with ties to even. A finite number that would become infinity is an error.

*Rule 2.* Data may be nested or flat, as in Triton. Only the number of elements must match the
shape. The loop stops if there are more elements than the shape requires."""

from __future__ import annotations

import base64
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from typing import Literal as OneOf

import numpy as np
import orjson
import simdjson

from infergate.codecs.json_tensors.json_document import (
    Node,
    NonFiniteLiteral,
    abbreviated,
    is_array,
    json_kind,
)
from infergate.codecs.json_tensors.rounding import ROUND, Array, infinite_indices
from infergate.codecs.json_tensors.small_data import MAX_WRITTEN_BYTES, write_small_data
from infergate.core.datatypes import INTEGERS, NUMPY_DTYPES, Datatype
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
class DataRules:
    """The rules for data of requests or responses. ``unicode_errors`` is the error handler for
    encoding strings. ``allows_packed_uint8`` allows UINT8 data in a base64 string.
    ``allows_non_finite_text`` allows strings and null for floats that JSON cannot express."""

    unicode_errors: str
    allows_packed_uint8: bool
    allows_non_finite_text: bool = True


_NON_FINITE_VALUES: Final[dict[str | None, float]] = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
    None: math.nan,  # MLServer, KServe
}
"""The floats that JSON cannot express, by the string, literal or null that stands for each."""
REQUEST_RULES: Final = DataRules(unicode_errors="strict", allows_packed_uint8=False)
# rest-proxy packs UINT8. json_document.parse_backend_json explains ``surrogateescape``.
RESPONSE_RULES: Final = DataRules(unicode_errors="surrogateescape", allows_packed_uint8=True)

ElementLabel = Callable[[int], str]
"""A function that describes the element at an index, for error messages."""


def element_label(name: str, index: int) -> str:
    """Describe the element of tensor ``name`` at ``index``, for error messages."""
    return f"tensor '{name}': element {index}"


def read_data(
    name: str, datatype: Datatype, shape: tuple[int, ...], node: Node, rules: DataRules
) -> Buffer:
    """Return the canonical data of tensor ``name`` from its JSON. Raises BAD_REQUEST, which names
    the tensor."""
    if not is_array(node):
        is_single_string = type(node) is str and datatype is Datatype.BYTES and shape == (1,)
        if shape != () and not is_single_string:
            raise bad_request(f"tensor '{name}': data must be an array, not {json_kind(node)}")
        node = [node]
    if isinstance(node, simdjson.Array):
        values = copy_numbers(datatype, node)
        if values is not None:
            _check_count(name, shape, values.size)
            return values.view(np.uint8).data
    elements = _flatten(node, math.prod(shape))
    _check_count(name, shape, len(elements))
    return convert_elements(partial(element_label, name), datatype, elements, rules)


def convert_elements(
    label: ElementLabel, datatype: Datatype, elements: list[Node], rules: DataRules
) -> Buffer:
    """Return the canonical data of ``elements``. Raises BAD_REQUEST with the ``label`` of the
    invalid element."""
    if datatype is Datatype.BYTES:
        return pack_bytes(_encode_strings(label, elements, rules))
    if datatype is Datatype.BOOL:
        _check_types(label, elements, frozenset({bool}), "; BOOL takes booleans")
        values: Array = np.array(elements, np.bool_)
    elif datatype in INTEGERS:
        values = _integers(label, datatype, elements)
    else:
        values = _floats(label, datatype, elements, rules)
    return values.view(np.uint8).data


def _check_count(name: str, shape: tuple[int, ...], count: int) -> None:
    expected = math.prod(shape)
    if count != expected:
        raise bad_request(
            f"tensor '{name}': shape {list(shape)} requires {expected} elements, "
            f"but the data holds {'more' if count > expected else count}"
        )


def copy_numbers(datatype: Datatype, node: simdjson.Array) -> Array | None:
    """Return the array's numbers as ``datatype``. Return None for BOOL and BYTES, and if an element
    is not a valid value of ``datatype``."""
    if datatype in (Datatype.BOOL, Datatype.BYTES):
        return None
    of_type: OneOf["d", "u", "i"] = "d"
    if datatype in INTEGERS:
        of_type = "u" if datatype is Datatype.UINT64 else "i"
    try:
        buffer = node.as_buffer(of_type=of_type)
    except (TypeError, ValueError):
        return None
    wide = np.frombuffer(buffer, _WIDE_DTYPES[of_type])
    if of_type == "d":
        values = ROUND[datatype](wide)
        return values if infinite_indices(datatype, values).size == 0 else None
    if wide.dtype != NUMPY_DTYPES[datatype] and wide.size:
        low, high = _INTEGER_BOUNDS[datatype]
        if wide.min() < low or wide.max() > high:
            return None
    return wide.astype(NUMPY_DTYPES[datatype], copy=False)


_INTEGER_BOUNDS: Final = {
    datatype: (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    for datatype, dtype in NUMPY_DTYPES.items()
    if datatype in INTEGERS
}
_WIDE_DTYPES: Final = {"d": "<f8", "u": "<u8", "i": "<i8"}


def _flatten(node: Node, max_elements: int) -> list[Node]:
    """Return the elements of ``node`` at all depths. The list may be truncated to ``max_elements``
    + 1 elements."""
    flat: list[Node] = []
    pending = [iter((node,))]
    while pending:
        for item in pending[-1]:
            if type(item) not in _ARRAY_TYPES:
                flat.append(item)
            elif len(item) > max_elements - len(flat):  # the array probably exceeds the limit
                pending.append(iter(item))
                break
            else:
                children = list(item)
                if not _ARRAY_TYPES.isdisjoint(map(type, children)):
                    pending.append(iter(children))
                    break
                flat += children
            if len(flat) > max_elements:
                return flat
        else:
            pending.pop()
    return flat


_ARRAY_TYPES: Final = frozenset({simdjson.Array, list})


def _element_error(label: ElementLabel, index: int, value: Node, problem: str) -> GatewayError:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    shown = abbreviated(value) if is_number else json_kind(value)
    return bad_request(f"{label(index)} is {shown}{problem}")


def _encode_strings(label: ElementLabel, flat: list[Node], rules: DataRules) -> list[bytes]:
    _check_types(label, flat, frozenset({str}), "; BYTES takes strings")
    try:
        return [value.encode("utf-8", rules.unicode_errors) for value in flat]
    except UnicodeEncodeError as error:
        index = flat.index(error.object)
        raise _element_error(label, index, flat[index], ", with an unpaired surrogate") from None


def _check_types(
    label: ElementLabel, flat: list[Node], allowed: frozenset[type], problem: str
) -> None:
    if not allowed.issuperset(map(type, flat)):
        index = next(i for i, value in enumerate(flat) if type(value) not in allowed)
        raise _element_error(label, index, flat[index], problem)


def _integers(label: ElementLabel, datatype: Datatype, flat: list[Node]) -> Array:
    _check_types(label, flat, frozenset({int}), f"; {datatype.value} takes integers")
    low, high = _INTEGER_BOUNDS[datatype]
    if flat and (min(flat) < low or max(flat) > high):
        index = next(i for i, value in enumerate(flat) if not low <= value <= high)
        problem = f"; {datatype.value} takes integers from {low} to {high}"
        raise _element_error(label, index, flat[index], problem)
    return np.array(flat, NUMPY_DTYPES[datatype])


def _floats(label: ElementLabel, datatype: Datatype, flat: list[Node], rules: DataRules) -> Array:
    problem = f"; {datatype.value} takes numbers"
    non_numbers = [value for value in flat if type(value) not in _NUMBER_TYPES]
    numbers = flat
    if non_numbers:
        non_finite = _NON_FINITE_TYPES if rules.allows_non_finite_text else _LITERAL_TYPES
        _check_types(label, flat, _NUMBER_TYPES | non_finite, problem)
        unknown = set(non_numbers).difference(_NON_FINITE_VALUES)
        if unknown:
            index = next(i for i, value in enumerate(flat) if value in unknown)
            raise _element_error(label, index, flat[index], problem)
        numbers = [
            value if type(value) in _NUMBER_TYPES else _NON_FINITE_VALUES[value] for value in flat
        ]
    try:
        values = ROUND[datatype](np.array(numbers, "<f8"))
    except OverflowError:
        index = next(
            i
            for i, number in enumerate(numbers)
            if type(number) is int and abs(number) > _MAX_FLOAT
        )
        raise _element_error(label, index, numbers[index], f", beyond {datatype.value}") from None
    for index in infinite_indices(datatype, values).tolist():
        if type(flat[index]) in _NUMBER_TYPES:
            raise _element_error(label, index, flat[index], f", beyond {datatype.value}")
    return values


_NUMBER_TYPES: Final[frozenset[type]] = frozenset({int, float})
_LITERAL_TYPES: Final[frozenset[type]] = frozenset({NonFiniteLiteral})
_NON_FINITE_TYPES: Final[frozenset[type]] = _LITERAL_TYPES | {str, type(None)}
_MAX_FLOAT: Final = int(sys.float_info.max)  # an int, so that mypyc compares ints

# ---- writing ----------------------------------------------------------------------------------

NON_FINITE_SPELLINGS: Final[Mapping[str, tuple[bytes, bytes, bytes]]] = {
    "literal": (b"NaN", b"Infinity", b"-Infinity"),
    "string": (b'"NaN"', b'"Infinity"', b'"-Infinity"'),
    "null": (b"null", b"null", b"null"),
}
"""The JSON of NaN, Infinity and -Infinity for each value of the option ``non_finite``. ``literal``
is Triton's form, which is not valid JSON but is the only form that every known V2 client reads."""


def write_numbers(tensor: Tensor, spelling: tuple[bytes, bytes, bytes]) -> Any:
    """Return the elements of ``tensor``, which is not BYTES, as an object that orjson writes as a
    flat array. Floats get the fewest digits that identify them."""
    if (
        len(tensor.data) <= MAX_WRITTEN_BYTES
        and (small_data := write_small_data(tensor)) is not None
    ):
        return small_data
    return write_array(number_array(tensor), spelling)


def number_array(tensor: Tensor) -> Array:
    """Return the elements of ``tensor``, which is not BYTES, as a flat array that orjson can
    write."""
    if tensor.datatype is Datatype.BOOL:
        flags: Array = np.frombuffer(tensor.data, np.uint8) != 0
        return flags
    values = np.frombuffer(tensor.data, NUMPY_DTYPES[tensor.datatype])
    if not values.flags.aligned:  # the data is an unaligned slice of a body
        values = values.copy()
    return float32_from_bf16(values) if tensor.datatype is Datatype.BF16 else values


def write_array(values: Array, spelling: tuple[bytes, bytes, bytes]) -> Any:
    """Return ``values``, an array of any shape, as an object that orjson can write."""
    if values.dtype.kind != "f":
        return values
    non_finite = ~np.isfinite(values)
    if not non_finite.any():
        return values
    nan, positive, negative = spelling
    # orjson writes null for NaN and infinity, and for no other value.
    texts = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY).split(b"null")
    words = [
        nan if v != v else positive if v > 0 else negative  # noqa: PLR0124 - only NaN differs from itself
        for v in values[non_finite].tolist()
    ]
    parts = [texts[0]]
    for word, text in zip(words, texts[1:], strict=True):
        parts += (word, text)
    return orjson.Fragment(b"".join(parts))


def write_strings(tensor: Tensor) -> list[str] | None:
    """Return the elements of a BYTES tensor as text. Return None if the elements must be written as
    base64, because an element is not UTF-8, or because the parameters declare base64 and an element
    is not base64. (Over gRPC, MLServer uses the same parameter for elements that already hold
    base64.)"""
    if (
        tensor.parameters
        and is_base64(tensor.parameters)
        and None in map(decode_element, unpack_bytes(tensor.data))
    ):
        return None
    try:
        return [element.decode() for element in unpack_bytes(tensor.data)]
    except UnicodeDecodeError:
        return None


def write_base64(tensor: Tensor) -> list[str]:
    """Return the elements of a BYTES tensor as base64. The tensor needs the parameter in
    :data:`BASE64_PARAMETERS`."""
    return [base64.b64encode(element).decode() for element in unpack_bytes(tensor.data)]


# ---- base64 -----------------------------------------------------------------------------------

CONTENT_TYPE: Final = "content_type"
BASE64_PARAMETERS: Final = {CONTENT_TYPE: "base64"}
"""The parameter that marks BYTES as base64 (rest-proxy, MLServer)."""
_BASE64_NAMES: Final = frozenset({"base64", "b64"})


def is_base64(parameters: Parameters) -> bool:
    """Return whether ``parameters`` mark BYTES as base64, in any form that rest-proxy accepts."""
    content_type = parameters.get(CONTENT_TYPE)
    return isinstance(content_type, str) and content_type.lower() in _BASE64_NAMES


def decode_base64(name: str, data: Buffer) -> Buffer:
    """Decode each element of the BYTES tensor ``name`` from base64, and return the canonical data.
    Raises BAD_REQUEST."""
    elements = [decode_element(element) for element in unpack_bytes(data)]
    if None in elements:
        raise bad_request(
            f"tensor '{name}': element {elements.index(None)} is not base64, although the "
            f"tensor's parameter {CONTENT_TYPE} declares base64"
        )
    return pack_bytes([element for element in elements if element is not None])


def decode_element(element: Buffer | str) -> bytes | None:
    """Decode ``element`` from base64, or return None if it is not base64."""
    try:
        return base64.b64decode(element, validate=True)
    except ValueError:
        return None
