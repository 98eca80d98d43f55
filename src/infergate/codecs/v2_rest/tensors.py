"""The parts that requests and responses share: JSON objects of tensors, parameters, and binary
data.

*Rule.* ``binary_data_size``, ``binary_data`` and ``binary_data_output`` describe the format of a
message, as does ``content_type: base64`` of BYTES in JSON; they never leave this package. If
canonical parameters contain the first three (as in KServe's responses over gRPC), they describe a
former format and are dropped.
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
"""Maximum number of tensors that the event loop reads. Each takes up to 50 µs."""
_DIGITS: Final = re.compile(r"[0-9]{1,18}")
_KNOWN: Final = ", ".join(BY_NAME)
MOST_PARAMETERS: Final = 1 << 14
"""Maximum number of values in all parameters of a message. Each becomes a Python object, and more
than one if it is sent to another process or becomes a protobuf message."""


# ---- the body: JSON, then binary tensor data ----------------------------------------------------


@record
class Body:
    """A message's JSON, and the binary data after it. ``binary`` is None if there is no length
    header."""

    json: bytes
    binary: memoryview | None


def split(headers: Mapping[str, str], body: Buffer, limits: Limits) -> Body:
    """Split ``body`` at the length in the header. Raises BAD_REQUEST, or TOO_LARGE over
    ``limits.json``."""
    header = headers.get(HEADER)
    if header is None:
        check_json_size(len(body), limits)
        return Body(body if isinstance(body, bytes) else bytes(body), None)
    length = json_length(header)
    if length > len(body):
        raise bad_request(
            f"Inference-Header-Content-Length is {length}, but the body has {len(body)} bytes"
        )
    check_json_size(length, limits)
    view = memoryview(body)
    return Body(bytes(view[:length]), view[length:])


def json_length(told: str) -> int:
    """Parse the value of the length header. Raises BAD_REQUEST."""
    if not _DIGITS.fullmatch(told.strip()):
        raise bad_request(
            f"Inference-Header-Content-Length is '{shown(told)}', not a number of bytes"
        )
    return int(told)


def check_json_size(size: int, limits: Limits) -> None:
    """Raise TOO_LARGE if ``size`` exceeds ``limits.json``."""
    if size > limits.json:
        raise GatewayError(
            Kind.TOO_LARGE,
            f"{size} bytes of JSON exceed the limit of {limits.json}",
            limit="json",
        )


# ---- reading ------------------------------------------------------------------------------------


class Blobs:
    """Reads the bytes after the JSON in the order of the tensors."""

    def __init__(self, binary: memoryview | None) -> None:
        self._binary: Final = binary
        self._taken = 0

    def take(self, name: str, size: int) -> Buffer:
        """Return the next ``size`` bytes. Raises BAD_REQUEST if there are fewer."""
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
        """Raise BAD_REQUEST if unread bytes are left."""
        left = len(self._binary) - self._taken if self._binary is not None else 0
        if left:
            raise bad_request(f"{left} bytes follow the last tensor's binary data")


def read_tensors(
    node: Node, path: str, read_one: Callable[[Node, str], Tensor], limits: Limits
) -> tuple[Tensor, ...]:
    """Read an array of tensors with unique names."""
    tensors: dict[str, Tensor] = {}
    nodes = items(node, path, limits.tensors)
    check_loop(limits, len(nodes), TENSORS_ON_LOOP)
    for index, item in enumerate(nodes):
        tensor = read_one(item, f"{path}[{index}]")
        if tensor.name in tensors:
            raise bad_request(f"{path} has '{shown(tensor.name)}' twice")
        tensors[tensor.name] = tensor
    return tuple(tensors.values())


@dataclass(frozen=True, slots=True)
class Side:
    """How tensors of a request, or of a response, are read. ``parse_datatype`` returns None for an
    unknown name; ``default_data`` returns the data of a tensor that has neither data nor a size."""

    reading: Reading
    datatype: Callable[[str], Datatype | None]
    without_data: Callable[[str, tuple[int, ...], Parameters], Buffer]


@dataclass(slots=True)
class Source:
    """The state of reading one message's tensors: the wire features found so far, the number of
    BYTES elements that shapes announce, and the number of values and text characters in
    parameters."""

    side: Side
    blobs: Blobs
    limits: Limits
    places: Mapping[str, Place | None] | None = None
    """Of a response: the shared memory regions that its outputs were to be written to, by tensor
    name. None for a request, whose tensors name their own regions."""
    forms: set[Form] = field(default_factory=set)
    bytes_elements: int = 0
    parameters: int = 0
    letters: int = 0

    def members(self, node: Node, path: str, known: Iterable[str]) -> dict[str, Node]:
        """Read members like ``json_document.read_members``, and record whether one is null."""
        nullable = named(node, path, known)
        members = present(nullable)
        if len(members) < len(nullable):
            self.forms.add(Form.NULL)
        return members


def read_tensor(node: Node, path: str, source: Source) -> Tensor:
    """Read and validate one tensor. Raises BAD_REQUEST naming the field or the tensor."""
    members = source.members(node, path, _FIELDS)
    name, datatype, shape = _described(members, path, source)
    parameters: Parameters = read_parameters(members, path, source)
    region, parameters = _read_place(name, datatype, shape, parameters, source)
    if region is not None:
        if "data" in members or BINARY_SIZE in parameters:
            raise bad_request(f"tensor '{shown(name)}' has both data and a shared memory region")
        return Tensor(name, datatype, shape, b"", parameters, region)
    if BINARY_SIZE in parameters:
        size = parameters[BINARY_SIZE]
        if type(size) is not int or size < 0:
            raise bad_request(
                f"tensor '{name}': {BINARY_SIZE} is {shown(size)}, not a number of bytes"
            )
        if "data" in members:
            raise bad_request(f"tensor '{name}' has both data and {BINARY_SIZE}")
        parameters = {key: value for key, value in parameters.items() if key != BINARY_SIZE}
        data = source.blobs.take(name, size)
        check_data(name, datatype, shape, data)
    elif "data" in members:
        data = _read_data(name, datatype, shape, members["data"], source.side.reading)
        if not is_array(members["data"]):
            source.forms.add(Form.BARE)
        if datatype is Datatype.BYTES and parameters and is_base64(parameters):
            data = decode_base64(name, data)
            parameters = {key: value for key, value in parameters.items() if key != CONTENT_TYPE}
            source.forms.add(Form.BASE64)
        source.forms.update(forms_of(datatype, data))
    else:
        data = source.side.without_data(name, shape, parameters)
    return Tensor(name, datatype, shape, data, parameters)


def _described(
    told: Mapping[str, Node], path: str, source: Source
) -> tuple[str, Datatype, tuple[int, ...]]:
    """Read name, datatype and shape of a tensor."""
    name = required_name(told, path)
    datatype_name = string(_required(told, "datatype", path), f"{path}.datatype")
    datatype = source.side.datatype(datatype_name)
    if datatype is None:
        raise bad_request(
            f"tensor '{shown(name)}': unknown datatype '{shown(datatype_name)}' (known: {_KNOWN})"
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
    """Return the tensor's shared memory region, and its parameters without those of the region."""
    if source.places is None:
        region, held = read_place(held, f"tensor '{shown(name)}'")
        if region is not None:
            source.forms.add(Form.SHARED)
        return region, held
    region = source.places.get(name)
    if region is None:
        return None, held
    return written_place(region, datatype, shape), without_place(held)


def _read_data(
    name: str, datatype: Datatype, shape: tuple[int, ...], node: Node, reading: Reading
) -> Buffer:
    if type(node) is str and datatype is Datatype.UINT8 and reading.packed:
        try:
            data = base64.b64decode(node, validate=True)
        except (binascii.Error, ValueError):
            raise bad_request(f"tensor '{name}': the data string is not base64") from None
        check_data(name, datatype, shape, data)
        return data
    return read_elements(name, datatype, shape, node, reading)


def read_parameters(told: Mapping[str, Node], path: str, source: Source) -> Parameters:
    """Read the ``parameters`` member of an object. Raises BAD_REQUEST, and TOO_LARGE if the
    message's parameters hold too many values or too much text."""
    if "parameters" not in told:
        return NO_PARAMETERS
    parameters_path = f"{path}.parameters" if path else "parameters"
    found = parameters(told["parameters"], parameters_path)
    values, characters = _weighed(found)
    source.parameters += values
    source.letters += characters
    if source.parameters > MOST_PARAMETERS:
        raise GatewayError(
            Kind.TOO_LARGE,
            f"{parameters_path}: the message's parameters exceed {MOST_PARAMETERS} values",
        )
    check_length(source.letters, parameters_path)
    return found


def _weighed(held: Any) -> tuple[int, int]:
    """Return the number of values in ``parameters`` at all depths, and the number of characters in
    their texts."""
    count = characters = 0
    pending = [held]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            characters += sum(map(len, value))
            value = value.values()
        count += len(value)
        for item in value:
            item_type = type(item)
            if item_type is str:
                characters += len(item)
            elif item_type in _HOLDING:
                pending.append(item)
    return count, characters


_HOLDING: Final = frozenset({dict, list})


def required_name(told: Mapping[str, Node], path: str) -> str:
    """Read a tensor's ``name``, which must not be empty."""
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
    """Return the JSON object of ``tensor`` without its data, in Triton's order of members.

    ``wire_parameters`` are added to the tensor's own; a tensor in shared memory has only those of
    its region.
    """
    members: dict[str, Any] = {
        "name": tensor.name,
        "datatype": tensor.datatype.spelling,
        "shape": tensor.shape,
    }
    if tensor.place is not None:
        extra = write_place(tensor.place)
    if tensor.parameters or extra:
        parameters = {**write_parameters(tensor.parameters, tensor.name), **extra}
        if parameters:
            members["parameters"] = parameters
    return members


def write_parameters(values: Parameters, owner: str) -> dict[str, Any]:
    """Return ``values`` in a form that orjson writes. Raises UNSUPPORTED naming a value that JSON
    cannot express."""
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
            found = str(value) if isinstance(value, float) else type(value).__name__
            raise GatewayError(Kind.UNSUPPORTED, f"{where} is {found}, which JSON cannot express")


def dump(told: Any) -> bytes:
    """Encode ``document`` as JSON. Raises UNSUPPORTED."""
    try:
        return orjson.dumps(told, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        raise GatewayError(Kind.UNSUPPORTED, f"JSON cannot express this message: {error}") from None
