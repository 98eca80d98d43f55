"""What the tensors of requests and answers have in common: their JSON objects and binary data.

*Rule.* ``binary_data_size``, ``binary_data`` and ``binary_data_output`` tell the form of a message,
and so does ``content_type: base64`` of BYTES in JSON; they never leave this package. Among
canonical parameters the former tell of a form that is no more (KServe's answers over gRPC have
them), and are left out.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from infergate.codecs.v2_rest.document import (
    Node,
    check_length,
    is_array,
    items,
    kind,
    named,
    parameters,
    present,
    shown,
    string,
)
from infergate.codecs.v2_rest.elements import (
    CONTENT_TYPE,
    Reading,
    decode_base64,
    is_base64,
    read_elements,
)
from infergate.codecs.v2_rest.forms import Form, forms_of
from infergate.core.datatypes import BY_NAME, Datatype
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import Limits, check_loop
from infergate.core.names import check_tensor_name
from infergate.core.places import Place, read_place, without_place, write_place, written_place
from infergate.core.records import record
from infergate.core.tensor import (
    NO_PARAMETERS,
    Buffer,
    Parameters,
    Tensor,
    add_bytes_elements,
    check_data,
    check_shape,
)

HEADER: Final = "inference-header-content-length"
BINARY_TYPE: Final = "application/octet-stream"
BINARY_SIZE: Final = "binary_data_size"
BINARY: Final = "binary_data"
BINARY_OUTPUT: Final = "binary_data_output"
_OF_FORM: Final = frozenset({BINARY_SIZE, BINARY, BINARY_OUTPUT})
_FIELDS: Final = ("name", "datatype", "shape", "parameters", "data")
TENSORS_ON_LOOP: Final = 256
"""Each costs the event loop up to 50 µs."""
_DIGITS: Final = re.compile(r"[0-9]{1,18}")
_KNOWN: Final = ", ".join(BY_NAME)
MOST_PARAMETERS: Final = 1 << 14
"""Values in all parameters of a message: each becomes a Python object, and more than one where it
goes from process to process or becomes a protobuf message."""


# ---- the body: JSON, then tensors' bytes --------------------------------------------------------


@record
class Body:
    """A message's JSON, and what follows it: None where the header gave no length."""

    json: bytes
    binary: memoryview | None


def split(headers: Mapping[str, str], body: Buffer, limits: Limits) -> Body:
    """Cut ``body`` where the header says. Raises BAD_REQUEST, or TOO_LARGE over ``limits.json``."""
    told = headers.get(HEADER)
    if told is None:
        check_json_size(len(body), limits)
        return Body(body if isinstance(body, bytes) else bytes(body), None)
    length = json_length(told)
    if length > len(body):
        raise bad_request(
            f"Inference-Header-Content-Length is {length}, but the body has {len(body)} bytes"
        )
    check_json_size(length, limits)
    view = memoryview(body)
    return Body(bytes(view[:length]), view[length:])


def json_length(told: str) -> int:
    """The value of the length header. Raises BAD_REQUEST."""
    if not _DIGITS.fullmatch(told.strip()):
        raise bad_request(
            f"Inference-Header-Content-Length is '{shown(told)}', not a number of bytes"
        )
    return int(told)


def check_json_size(size: int, limits: Limits) -> None:
    """Raises TOO_LARGE."""
    if size > limits.json:
        raise GatewayError(
            Kind.TOO_LARGE,
            f"{size} bytes of JSON are over the limit of {limits.json}",
            limit="json",
        )


# ---- reading ------------------------------------------------------------------------------------


class Blobs:
    """The bytes after the JSON, handed out in the order of the tensors."""

    def __init__(self, binary: memoryview | None) -> None:
        self._binary: Final = binary
        self._taken = 0

    def take(self, name: str, size: int) -> Buffer:
        """The next ``size`` bytes. Raises BAD_REQUEST where there are fewer, or none at all."""
        if self._binary is None:
            raise bad_request(
                f"tensor '{name}': {BINARY_SIZE} needs the header Inference-Header-Content-Length"
            )
        left = len(self._binary) - self._taken
        if size > left:
            raise bad_request(
                f"tensor '{name}': {BINARY_SIZE} is {size}, but {left} bytes are left"
            )
        self._taken += size
        return self._binary[self._taken - size : self._taken]

    def finish(self) -> None:
        """Raises BAD_REQUEST where bytes are left over."""
        left = len(self._binary) - self._taken if self._binary is not None else 0
        if left:
            raise bad_request(f"{left} bytes follow the last tensor's binary data")


def read_tensors(
    node: Node, path: str, read_one: Callable[[Node, str], Tensor], limits: Limits
) -> tuple[Tensor, ...]:
    """An array of tensors, no name twice."""
    found: dict[str, Tensor] = {}
    listed = items(node, path, limits.tensors)
    check_loop(limits, len(listed), TENSORS_ON_LOOP)
    for index, item in enumerate(listed):
        tensor = read_one(item, f"{path}[{index}]")
        if tensor.name in found:
            raise bad_request(f"{path} has '{shown(tensor.name)}' twice")
        found[tensor.name] = tensor
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class Side:
    """How the tensors of one side are read. ``datatype`` makes sense of a spelling;
    ``without_data`` of a tensor that has neither data nor a size."""

    reading: Reading
    datatype: Callable[[str], Datatype | None]
    without_data: Callable[[str, tuple[int, ...], Parameters], Buffer]


@dataclass(slots=True)
class Source:
    """One message that is being read. The forms it is found to hold are added to ``forms``, the
    BYTES elements its shapes announce to ``bytes_elements``, its parameters' values to
    ``parameters`` and the characters of their texts to ``letters``."""

    side: Side
    blobs: Blobs
    limits: Limits
    places: Mapping[str, Place | None] | None = None
    """Of an answer: the places in shared memory that its tensors were to be written to. None: the
    tensors tell their own."""
    forms: set[Form] = field(default_factory=set)
    bytes_elements: int = 0
    parameters: int = 0
    letters: int = 0

    def members(self, node: Node, path: str, known: Iterable[str]) -> dict[str, Node]:
        """``document.members``, noting null."""
        told = named(node, path, known)
        found = present(told)
        if len(found) < len(told):
            self.forms.add(Form.NULL)
        return found


def read_tensor(node: Node, path: str, source: Source) -> Tensor:
    """One tensor, checked. Raises BAD_REQUEST naming the field or the tensor."""
    told = source.members(node, path, _FIELDS)
    name, datatype, shape = _described(told, path, source)
    held: Parameters = read_parameters(told, path, source)
    place, held = _read_place(name, datatype, shape, held, source)
    if place is not None:
        if "data" in told or BINARY_SIZE in held:
            raise bad_request(f"tensor '{shown(name)}' has data beside its place in shared memory")
        return Tensor(name, datatype, shape, b"", held, place)
    if BINARY_SIZE in held:
        size = held[BINARY_SIZE]
        if type(size) is not int or size < 0:
            raise bad_request(
                f"tensor '{name}': {BINARY_SIZE} is {shown(size)}, not a number of bytes"
            )
        if "data" in told:
            raise bad_request(f"tensor '{name}' has both data and {BINARY_SIZE}")
        held = {key: value for key, value in held.items() if key != BINARY_SIZE}
        data = source.blobs.take(name, size)
        check_data(name, datatype, shape, data)
    elif "data" in told:
        data = _read_data(name, datatype, shape, told["data"], source.side.reading)
        if not is_array(told["data"]):
            source.forms.add(Form.BARE)
        if datatype is Datatype.BYTES and held and is_base64(held):
            data = decode_base64(name, data)
            held = {key: value for key, value in held.items() if key != CONTENT_TYPE}
            source.forms.add(Form.BASE64)
        source.forms.update(forms_of(datatype, data))
    else:
        data = source.side.without_data(name, shape, held)
    return Tensor(name, datatype, shape, data, held)


def _described(
    told: Mapping[str, Node], path: str, source: Source
) -> tuple[str, Datatype, tuple[int, ...]]:
    """Name, datatype and shape of a tensor."""
    name = required_name(told, path)
    spelt = string(_required(told, "datatype", path), f"{path}.datatype")
    datatype = source.side.datatype(spelt)
    if datatype is None:
        raise bad_request(
            f"tensor '{shown(name)}': datatype '{shown(spelt)}' is not known ({_KNOWN})"
        )
    dimensions = items(_required(told, "shape", path), f"{path}.shape", source.limits.rank, "rank")
    for dimension in dimensions:
        if type(dimension) is not int:
            raise bad_request(f"{path}.shape must hold integers, not {kind(dimension)}")
    shape = check_shape(name, dimensions, source.limits)
    if datatype is Datatype.BYTES:
        source.bytes_elements = add_bytes_elements(
            name, shape, source.bytes_elements, source.limits
        )
    return name, datatype, shape


def _read_place(
    name: str, datatype: Datatype, shape: tuple[int, ...], held: Parameters, source: Source
) -> tuple[Place | None, Parameters]:
    """The place of a tensor in shared memory, and its parameters but those of the place."""
    if source.places is None:
        place, held = read_place(held, f"tensor '{shown(name)}'")
        if place is not None:
            source.forms.add(Form.SHARED)
        return place, held
    place = source.places.get(name)
    if place is None:
        return None, held
    return written_place(place, datatype, shape), without_place(held)


def _read_data(
    name: str, datatype: Datatype, shape: tuple[int, ...], node: Node, reading: Reading
) -> Buffer:
    if type(node) is str and datatype is Datatype.UINT8 and reading.packed:
        try:
            data = base64.b64decode(node, validate=True)
        except (binascii.Error, ValueError):
            raise bad_request(f"tensor '{name}': the data is a string, not base64") from None
        check_data(name, datatype, shape, data)
        return data
    return read_elements(name, datatype, shape, node, reading)


def read_parameters(told: Mapping[str, Node], path: str, source: Source) -> Parameters:
    """The ``parameters`` member of an object that ``members`` has read. Raises BAD_REQUEST, and
    TOO_LARGE where the message's parameters are too many."""
    if "parameters" not in told:
        return NO_PARAMETERS
    place = f"{path}.parameters" if path else "parameters"
    held = parameters(told["parameters"], place)
    values, letters = _weighed(held)
    source.parameters += values
    source.letters += letters
    if source.parameters > MOST_PARAMETERS:
        raise GatewayError(
            Kind.TOO_LARGE,
            f"{place}: the message's parameters hold over {MOST_PARAMETERS} values",
        )
    check_length(source.letters, place)
    return held


def _weighed(held: Any) -> tuple[int, int]:
    """How many values ``held`` holds, at whatever depth, and how many characters its texts have."""
    count = letters = 0
    pending = [held]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            letters += sum(map(len, value))
            value = value.values()
        count += len(value)
        for each in value:
            kind_of = type(each)
            if kind_of is str:
                letters += len(each)
            elif kind_of in _HOLDING:
                pending.append(each)
    return count, letters


_HOLDING: Final = frozenset({dict, list})


def required_name(told: Mapping[str, Node], path: str) -> str:
    """The ``name`` of a tensor, not empty."""
    name = string(_required(told, "name", path), f"{path}.name")
    if not name:
        raise bad_request(f"{path}.name is empty")
    check_tensor_name(name, path)
    return name


def _required(told: Mapping[str, Node], key: str, path: str) -> Node:
    if key not in told:
        raise bad_request(f"{path}.{key} is missing")
    return told[key]


# ---- writing ------------------------------------------------------------------------------------


def write_tensor(tensor: Tensor, extra: Parameters) -> dict[str, Any]:
    """The object of ``tensor`` less its data, in Triton's order. ``extra`` are wire parameters, of
    which one in shared memory has its place only."""
    told: dict[str, Any] = {
        "name": tensor.name,
        "datatype": tensor.datatype.spelling,
        "shape": tensor.shape,
    }
    if tensor.place is not None:
        extra = write_place(tensor.place)
    if tensor.parameters or extra:
        parameters = {**write_parameters(tensor.parameters, tensor.name), **extra}
        if parameters:
            told["parameters"] = parameters
    return told


def write_parameters(values: Parameters, owner: str) -> dict[str, Any]:
    """``values`` as orjson writes them. Raises UNSUPPORTED naming what JSON cannot tell."""
    return {
        key: _written(value, f"{owner}: parameter '{key}'")
        for key, value in values.items()
        if key not in _OF_FORM
    }


def _written(value: Any, where: str) -> Any:
    match value:
        case None | str() | bool():
            return value
        case int():
            return value if -(2**63) <= value < 2**64 else orjson.Fragment(str(value).encode())
        case float() if math.isfinite(value):
            return value
        case list() | tuple():
            return [_written(item, where) for item in value]
        case Mapping():
            return {key: _written(item, where) for key, item in value.items()}
        case _:
            said = str(value) if isinstance(value, float) else type(value).__name__
            raise GatewayError(Kind.UNSUPPORTED, f"{where} is {said}, which JSON cannot tell")


def dump(told: Any) -> bytes:
    """``told`` as JSON. Raises UNSUPPORTED."""
    try:
        return orjson.dumps(told, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        raise GatewayError(Kind.UNSUPPORTED, f"JSON cannot tell this message: {error}") from None
